// A model's text as paragraphs and blocks of code. Only text nodes are made of it: whatever it writes stays text.

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)\s*$/;

/** [{kind: "p" | "pre", text, language}] */
export function blocksOf(text) {
  const blocks = [];
  let fence = null;
  let lines = [];
  let language = "";
  const close = (kind) => {
    const body = kind === "p" ? lines.join("\n").replace(/^\n+|\s+$/g, "") : lines.join("\n");
    if (body !== "" || kind === "pre") blocks.push({ kind, text: body, language });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line);
    if (fence === null && found !== null) {
      close("p");
      [fence, language] = [found[1], found[2]];
    } else if (fence !== null && found !== null && found[2] === "" && found[1].startsWith(fence)) {
      close("pre");
      fence = null;
    } else if (fence === null && line.trim() === "") {
      close("p");
    } else {
      lines.push(line);
    }
  }
  if (fence !== null) close("pre");
  else close("p");
  return blocks;
}

/** Show text in an element; only what has changed is touched, so that it may be called for every token. */
export function show(element, text) {
  const blocks = blocksOf(text);
  if (blocks.length === 0) blocks.push({ kind: "p", text: "", language: "" });
  blocks.forEach((block, i) => {
    let node = element.children[i];
    if (node === undefined || node.localName !== block.kind) {
      const fresh = document.createElement(block.kind);
      if (block.kind === "pre") fresh.append(document.createElement("code"));
      if (node === undefined) element.append(fresh);
      else node.replaceWith(fresh);
      node = fresh;
    }
    const inner = block.kind === "pre" ? node.firstElementChild : node;
    if (inner.textContent !== block.text) inner.textContent = block.text;
    if (block.kind === "pre") node.setAttribute("aria-label", block.language ? `code (${block.language})` : "code");
  });
  while (element.children.length > blocks.length) element.lastElementChild.remove();
}
