// The playground: up to four panes, and one input for all of them or one alone.

import { Pane } from "./pane.js";

const MOST_PANES = 4;

export class Chat {
  #panes = [];
  #grid = document.getElementById("panes");
  #prompt = document.getElementById("prompt");
  #target = document.getElementById("target");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop-all");
  #template = document.getElementById("pane-template");

  /** host: {model(): name, announce(text)} */
  constructor(host) {
    this.host = host;
    const composer = document.getElementById("composer");
    composer.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.#submit();
      }
    });
    this.#stop.addEventListener("click", () => this.#panes.forEach((pane) => pane.stop()));
    this.#target.addEventListener("change", () => this.#changed());
    document.getElementById("add-pane").addEventListener("click", () => this.addPane());
    document.getElementById("clear-all").addEventListener("click", () => this.#panes.forEach((pane) => pane.clear()));
    this.addPane();
    this.addPane();
  }

  addPane() {
    if (this.#panes.length >= MOST_PANES) return;
    const pane = new Pane(this.#template, {
      model: this.host.model,
      announce: this.host.announce,
      changed: () => this.#changed(),
      close: (closed) => this.#close(closed),
    });
    this.#panes.push(pane);
    this.#grid.append(pane.element);
    this.#renamed();
  }

  #close(pane) {
    pane.stop();
    const at = this.#panes.indexOf(pane);
    this.#panes.splice(at, 1);
    pane.element.remove();
    this.#renamed();
    this.#prompt.focus();
  }

  #renamed() {
    const alone = this.#panes.length === 1;
    const chosen = this.#target.value;
    this.#panes.forEach((pane, i) => pane.rename(`Pane ${i + 1}`, alone));
    const names = alone ? [] : this.#panes.map((pane, i) => [String(i), pane.name]);
    this.#target.replaceChildren(
      ...[["all", alone ? "the pane" : "all panes"], ...names].map(([value, text]) => new Option(text, value)),
    );
    if ([...this.#target.options].some((option) => option.value === chosen)) this.#target.value = chosen;
    document.getElementById("add-pane").disabled = this.#panes.length >= MOST_PANES;
    this.#changed();
  }

  get #targets() {
    const { value } = this.#target;
    return value === "all" ? this.#panes : [this.#panes[Number(value)]];
  }

  #changed() {
    this.#send.disabled = this.#targets.every((pane) => pane.busy);
    this.#stop.disabled = !this.#panes.some((pane) => pane.busy);
  }

  #submit() {
    const text = this.#prompt.value;
    const free = this.#targets.filter((pane) => !pane.busy);
    if (text.trim() === "" || free.length === 0) return;
    if (this.host.model() === "") {
      this.host.announce("The model is not known yet.");
      this.host.connect();
      return;
    }
    this.#prompt.value = "";
    for (const pane of free) pane.send(text);
    if (free.length < this.#targets.length) this.host.announce("Panes that are still answering were left out.");
  }
}
