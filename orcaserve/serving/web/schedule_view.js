// The schedule's tab: controls, figures, the pointer and the keyboard around a Timeline.

import { figuresOf, quantile } from "./figures.js";
import { FILE_ITERATIONS, History, LIVE_ITERATIONS, nRequests, nTokens } from "./history.js";
import { LiveSource, readFiles } from "./sources.js";
import { Timeline, ZOOMS } from "./timeline.js";
import { count, span, spans, stopInWords, tellCell, tellIteration, tellLife } from "./words.js";

const FIGURES_MS = 500; // between two looks at the figures while events come in
const DRAW_MS = 50; // the same for the drawing; with reduced motion:
const CALM_MS = 1000;

const element = (id) => document.getElementById(id);

export class ScheduleView {
  #history = new History(LIVE_ITERATIONS);
  #timeline = new Timeline(element("timeline"), this.#history);
  #canvas = element("timeline");
  #live;
  #reading = null; // AbortController of the files that are read
  #file = null; // their name
  #paused = false;
  #shown = false;
  #drawn = 0;
  #timer = 0; // of the next drawing
  #figured = 0;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  /** host: {announce(text)} */
  constructor(host) {
    this.host = host;
    this.#live = new LiveSource((events) => this.#add(events), (state, text) => this.#tellState(state, text));
    this.#listen();
    new ResizeObserver(() => this.#change()).observe(this.#canvas.parentElement);
  }

  /** Begin to watch. It goes on while another view is open: what one has just caused can be looked at then. */
  watch() {
    if (this.#file === null) this.#live.open();
  }

  /** The view is on the screen, or no longer: nothing is drawn then. */
  show(shown) {
    this.#shown = shown;
    this.#change();
  }

  themeChanged() {
    this.#timeline.forgetColours();
    this.#change();
  }

  /** How many replicas there are to choose from. */
  setReplicas(n) {
    element("replica-label").hidden = n < 2;
    element("replica").replaceChildren(...Array.from({ length: n }, (_, i) => new Option(String(i), String(i))));
  }

  #listen() {
    const on = (id, event, act) => element(id).addEventListener(event, act);
    on("pause", "click", () => this.#pause(!this.#paused));
    on("newest", "click", () => this.#goTo(Infinity));
    on("zoom-in", "click", () => this.#zoom(1));
    on("zoom-out", "click", () => this.#zoom(-1));
    on("position", "input", (event) => this.#goTo(Number(event.target.value)));
    on("log-file", "change", (event) => this.#open([...event.target.files]).then(() => (event.target.value = "")));
    on("back-live", "click", () => this.#backToLive());
    on("replica", "change", (event) => {
      this.#live.replica = Number(event.target.value);
      this.#backToLive();
    });
    this.#listenToDrops();
    this.#listenToPointer();
    this.#canvas.addEventListener("keydown", (event) => this.#key(event));
    this.#canvas.addEventListener("blur", () => this.#focus(null));
  }

  #listenToDrops() {
    const sheet = element("drop");
    const view = element("schedule");
    view.addEventListener("dragover", (event) => {
      event.preventDefault();
      sheet.classList.add("dropping");
    });
    view.addEventListener("dragleave", () => sheet.classList.remove("dropping"));
    view.addEventListener("drop", (event) => {
      event.preventDefault();
      sheet.classList.remove("dropping");
      this.#open([...event.dataTransfer.files]);
    });
  }

  #listenToPointer() {
    const canvas = this.#canvas;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, left: this.#timeline.left, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag !== null && Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
      if (drag?.moved) this.#goTo(drag.left - (event.clientX - drag.x) / this.#timeline.px);
      else this.#hover(this.#timeline.at(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointerup", (event) => {
      const at = this.#timeline.at(event.offsetX, event.offsetY);
      if (drag !== null && !drag.moved && at !== null) this.#choose(at);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("pointerleave", () => this.#hover(null));
    canvas.addEventListener(
      "wheel",
      (event) => {
        const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
        if (event.ctrlKey) this.#zoom(event.deltaY < 0 ? 1 : -1, event.offsetX);
        else if (sideways) this.#goTo(this.#timeline.left + sideways / this.#timeline.px);
        else return; // up and down scroll the page
        event.preventDefault();
      },
      { passive: false },
    );
  }

  #add(events) {
    for (const event of events) {
      if (event.kind === "header") this.#began(event);
      this.#history.add(event);
    }
    if (!this.#paused || this.#file !== null) this.#change();
    else this.#showPosition();
  }

  #began(header) {
    const known = this.#history.header;
    if (known !== null && known.run !== header.run && this.#file === null) {
      this.#forget();
      this.#notice("Another engine has begun: the schedule starts anew.");
    }
  }

  #forget() {
    Object.assign(this.#timeline, { hover: null, focus: null, selected: null, left: 0, following: true });
    element("iteration-details").replaceChildren(...described([["", "None chosen yet."]]));
    element("life").replaceChildren(...described([["", "None chosen yet."]]));
    element("life-title").textContent = "Request";
    element("iteration-title").textContent = "Iteration";
  }

  #startAnew(capacity) {
    this.#history = new History(capacity);
    this.#timeline.history = this.#history;
    this.#forget();
    this.#pause(false);
    this.#notice(null);
  }

  async #open(files) {
    if (files.length === 0) return;
    this.#live.close();
    this.#reading?.abort();
    const reading = (this.#reading = new AbortController());
    this.#file = files.length === 1 ? files[0].name : `${files.length} files`;
    this.#startAnew(FILE_ITERATIONS);
    element("pause").disabled = true;
    element("back-live").hidden = false;
    this.#timeline.following = false;
    const history = this.#history;
    const add = (events) => {
      for (const event of events) history.add(event);
      this.#change();
    };
    try {
      const progress = (share) => this.#tellState("file", `${this.#file}: reading, ${Math.floor(share * 100)} %`);
      const read = await readFiles(files, add, progress, reading.signal);
      this.#tellState("file", `${this.#file}: ${count(this.#history.next, "iteration")}`);
      this.host.announce(`${this.#file} is open: ${count(read.nLines, "line")}.`);
      const remarks = [];
      if (history.first > 0) remarks.push(`only the last ${count(FILE_ITERATIONS)} iterations are kept`);
      if (read.cut) remarks.push("the last line is incomplete, and left out");
      if (read.unknown) remarks.push(`${count(read.unknown, "line")} of an unknown kind were passed over`);
      if (remarks.length) this.#notice(`${this.#file}: ${remarks.join("; ")}.`);
    } catch (error) {
      if (reading.signal.aborted) return;
      this.#notice(`The log cannot be read to its end. ${error.message}`, true);
      this.#tellState("file", this.#file);
    }
    this.#change();
  }

  #backToLive() {
    this.#reading?.abort();
    this.#file = null;
    this.#live.close();
    this.#startAnew(LIVE_ITERATIONS);
    element("pause").disabled = false;
    element("back-live").hidden = true;
    this.#live.open();
    this.#change();
  }

  #tellState(state, text) {
    const badge = element("source");
    badge.textContent = this.#paused && state === "live" ? "paused" : text;
    badge.title = text;
    badge.classList.toggle("live", state === "live" && !this.#paused);
    if (state === "live") this.#notice(null);
    if (state === "failed") this.#notice(text, true);
    this.#state = state;
  }
  #state = "connecting";

  #notice(text, bad = false) {
    const notice = element("schedule-notice");
    notice.hidden = text === null;
    notice.textContent = text ?? "";
    notice.classList.toggle("bad", bad);
  }

  #pause(paused) {
    this.#paused = paused;
    const button = element("pause");
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume" : "Pause";
    this.#timeline.following = !paused;
    if (this.#state === "live") this.#tellState("live", "live");
    this.#change();
  }

  #goTo(left) {
    this.#timeline.scrollTo(left);
    if (this.#file === null) {
      if (this.#timeline.following !== !this.#paused) this.#pause(!this.#timeline.following);
    }
    this.#change();
  }

  #zoom(steps, x) {
    const at = ZOOMS.indexOf(this.#timeline.px) + steps;
    if (at < 0 || at >= ZOOMS.length) return;
    this.#timeline.zoom(ZOOMS[at], x);
    this.host.announce(`${ZOOMS[at]} pixels an iteration`);
    this.#change();
  }

  #hover(at) {
    const before = this.#timeline.hover;
    if (at?.place === before?.place && at?.lane === before?.lane) return;
    this.#timeline.hover = at;
    this.#showTip(at);
    this.#change();
  }

  #showTip(at) {
    const tip = element("tip");
    tip.hidden = at === null;
    if (at === null) return;
    tip.replaceChildren(
      ...this.#tell(at).map((text, i) => {
        const line = document.createElement("p");
        if (i === 0) line.className = "strong";
        line.textContent = text;
        return line;
      }),
    );
    const { x, y } = this.#timeline.pointOf(at);
    const room = element("drop").clientWidth;
    tip.style.left = x < room / 2 ? `${x + 20}px` : "auto";
    tip.style.right = x < room / 2 ? "auto" : `${room - x + 20}px`;
    tip.style.top = `${y + 14}px`;
  }

  /** A cell in lines of words. */
  #tell({ lane, place }) {
    const history = this.#history;
    const iteration = history.at(place);
    const life = history.lifeAt(lane, place);
    const took = iteration.ended === null ? "still under way" : `${span(iteration.took)} on the device`;
    return [
      ...(life === undefined ? [] : [tellCell(history, life, iteration)]),
      `iteration ${count(iteration.number)}: ${count(nRequests(iteration), "request")}, ${count(nTokens(iteration), "token")}, ${took}`,
      `nobody else is in it: ${stopInWords(iteration)}`,
      `${count(iteration.waiting)} waiting; ${count(iteration.reserved)} slots reserved, ${count(iteration.used)} used`,
    ];
  }

  #focus(at) {
    this.#timeline.focus = at;
    this.#showTip(at);
    if (at !== null) element("cell-live").textContent = this.#tell(at).join(". ");
    this.#change();
  }

  #choose(at) {
    const life = this.#history.lifeAt(at.lane, at.place);
    const iteration = this.#history.at(at.place);
    element("iteration-title").textContent = `Iteration ${count(iteration.number)}`;
    this.#iteration = iteration;
    if (life !== undefined) this.#timeline.selected = life;
    this.#showDetails();
    this.#change();
    return life;
  }
  #iteration = null;

  #showDetails() {
    const history = this.#history;
    const life = this.#timeline.selected;
    if (this.#iteration !== null) element("iteration-details").replaceChildren(...described(tellIteration(history, this.#iteration)));
    if (life === null) return;
    element("life-title").textContent = `Request ${life.id}`;
    element("life").replaceChildren(...described(life.forgotten ? [["", "It is too long ago to be known."]] : tellLife(history, life)));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { focus } = this.#timeline;
    const far = 20;
    const moves = {
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -far], PageDown: [0, far],
    }; // prettier-ignore
    if (event.key in moves) this.#walk(...moves[event.key]);
    else if (event.key === "Home") this.#walkTo(this.#history.first);
    else if (event.key === "End") this.#walkTo(this.#history.next - 1);
    else if (event.key === "+" || event.key === "=") this.#zoom(1);
    else if (event.key === "-") this.#zoom(-1);
    else if (event.key === " " && this.#file === null) this.#pause(!this.#paused);
    else if (event.key === "Enter" && focus !== null && this.#history.at(focus.place)) this.#tellChosen(focus);
    else if (event.key === "Escape" && focus !== null) this.#focus(null);
    else return;
    event.preventDefault();
  }

  #tellChosen(focus) {
    const life = this.#choose(focus);
    const words = life === undefined ? tellIteration(this.#history, this.#iteration) : tellLife(this.#history, life);
    element("cell-live").textContent = words.map(([name, text]) => `${name} ${text}`).join(". ");
  }

  /** To the next row or iteration. Rows without anybody are passed over. */
  #walk(rows, places) {
    const history = this.#history;
    if (history.next === history.first) return;
    const { focus } = this.#timeline;
    if (this.#file === null && !this.#paused) this.#pause(true); // it would run away from the reader
    const clamp = (place) => Math.min(Math.max(place, history.first), history.next - 1);
    const from = focus ?? { lane: -1, place: this.#timeline.visible.to };
    const place = clamp(from.place + places);
    let { lane } = from;
    if (rows !== 0) {
      do lane += rows;
      while (lane >= 0 && lane < history.lanes.length && history.lifeAt(lane, place) === undefined);
      if (lane >= history.lanes.length || lane < -1) lane = rows > 0 ? from.lane : -1;
    }
    this.#timeline.reveal(place);
    this.#focus({ lane, place });
  }

  #walkTo(place) {
    if (this.#history.next === this.#history.first) return;
    this.#walk(0, place - (this.#timeline.focus?.place ?? this.#timeline.visible.to));
  }

  /** Something is to be drawn anew: soon, but not for every event of its own. */
  #change() {
    if (!this.#shown || this.#timer) return;
    const rest = this.#calm.matches && this.#timeline.following && this.#file === null ? CALM_MS : DRAW_MS;
    const wait = Math.max(this.#drawn + rest - performance.now(), 0);
    this.#timer = setTimeout(() => requestAnimationFrame(() => this.#draw()), wait);
  }

  #draw() {
    this.#timer = 0;
    if (!this.#shown) return;
    this.#drawn = performance.now();
    const { hover, focus } = this.#timeline;
    if (hover !== null && this.#history.at(hover.place) === undefined) this.#hover(null);
    if (focus !== null && this.#history.at(focus.place) === undefined) this.#focus(null);
    this.#timeline.draw();
    this.#showPosition();
    if (this.#drawn - this.#figured >= FIGURES_MS) this.#showFigures();
    else this.#figuring ||= setTimeout(() => this.#showFigures(), FIGURES_MS);
  }
  #figuring = 0;

  #showPosition() {
    const slider = element("position");
    const { first, next } = this.#history;
    slider.min = first;
    slider.max = Math.max(next - this.#timeline.columns, first);
    slider.value = Math.round(this.#timeline.left);
    const { from, to } = this.#timeline.visible;
    const numbers = [from, to].map((place) => this.#history.at(place)?.number ?? 0);
    slider.setAttribute("aria-valuetext", `iterations ${numbers.join(" to ")}`);
  }

  #showFigures() {
    clearTimeout(this.#figuring);
    this.#figuring = 0;
    this.#figured = performance.now();
    const history = this.#history;
    const { from, to } = this.#timeline.visible;
    const figures = figuresOf(history, from, to);
    const last = history.at(to);
    const { settings } = history;
    const of = (sorted) => spans([0.5, 0.9, 0.99].map((q) => quantile(sorted, q)));
    const rows = [
      ["tokens/s in view", figures.tokensPerSecond?.toFixed(1) ?? "–", `${count(figures.nOutput)} tokens in ${span(figures.seconds)}`],
      ["batch", last ? `${nRequests(last)} of ${settings.max_bs}` : "–", `mean in view ${figures.meanBatch?.toFixed(1) ?? "–"}`],
      ["waiting", last ? count(this.#timeline.following ? history.nWaiting : last.waiting) : count(history.nWaiting), "requests"],
      ["slots reserved / used", last ? `${count(last.reserved)} / ${count(last.used)}` : "–", settings ? `of ${count(settings.n_slots)}` : "–"],
      ["first token p50/90/99", of(figures.first), `of ${count(figures.first.length)} requests in view`],
      ["between tokens p50/90/99", of(figures.between), `of ${count(figures.between.length)} pairs in view`],
    ];
    element("figures").replaceChildren(
      ...rows.map(([name, value, more]) => {
        const box = document.createElement("div");
        for (const [tag, text, kind] of [["dt", name, ""], ["dd", value, ""], ["dd", more, "of"]]) {
          const part = document.createElement(tag);
          part.className = kind;
          part.textContent = text;
          box.append(part);
        }
        return box;
      }),
    );
    if (this.#timeline.selected !== null || this.#iteration !== null) this.#showDetails();
  }
}

/** [name, text] pairs as the inside of a <dl>. */
function described(rows) {
  return rows.flatMap(([name, text]) => {
    const [term, said] = ["dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    said.textContent = text;
    return [term, said];
  });
}
