// Draws a stretch of a History on a canvas: iterations are columns, requests are rows. Only what is visible is drawn.

import { nRequests } from "./history.js";

export const ZOOMS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]; // px of an iteration
const GUTTER = 76;
const AXIS = 18;
const STRIP_GAP = 8;
const MOST_ROWS_HEIGHT = 560;
const ROW = { most: 18, least: 4 };
const FEWEST_ROWS = 6;
const STRIPS = [
  { name: "device time", height: 40, unit: "ms" },
  { name: "batch", height: 40, unit: "" },
  { name: "waiting", height: 28, unit: "" },
  { name: "slots", height: 40, unit: "" },
];
const COLOURS = ["background", "text", "muted", "line", "increment", "initiation", "waiting", "reserved", "used", "bad", "accent"];
const NOTHING = 0;
const INCREMENT = 1;
const INITIATION = 2;
const PIECE = 3;

export class Timeline {
  #canvas;
  #context;
  #colours = null;
  #hatch = null;
  #width = 0;
  #height = 0;
  #rows = FEWEST_ROWS; // lanes that there is room for
  #rowHeight = ROW.most;

  constructor(canvas, history) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    this.history = history;
    this.px = 8;
    this.left = 0; // place at the left edge; may be a fraction while it is dragged
    this.following = true;
    this.hover = null; // {lane, place}; lane -1: an iteration alone
    this.focus = null;
    this.selected = null; // a Life
  }

  get columns() {
    return Math.max(Math.floor((this.#width - GUTTER) / this.px), 1);
  }

  get visible() {
    const from = Math.max(Math.floor(this.left), this.history.first);
    return { from, to: Math.min(Math.floor(this.left) + this.columns, this.history.next) - 1 };
  }

  /** Colours have changed, as with another theme. */
  forgetColours() {
    this.#colours = null;
  }

  scrollTo(left) {
    const { first, next } = this.history;
    const last = Math.max(next - this.columns, first);
    this.left = Math.min(Math.max(left, first), last);
    this.following = this.left >= last;
  }

  /** Another zoom, with the iteration at x (px of the canvas) where it is. */
  zoom(px, x = this.#width) {
    const there = this.left + (x - GUTTER) / this.px;
    const following = this.following;
    this.px = px;
    this.scrollTo(there - (x - GUTTER) / px);
    this.following = following || this.following;
  }

  /** Bring a place into view. */
  reveal(place) {
    if (place < this.left) this.scrollTo(place);
    else if (place >= Math.floor(this.left) + this.columns) this.scrollTo(place - this.columns + 1);
  }

  /** {lane, place} at a point of the canvas, or null where there is no iteration. */
  at(x, y) {
    if (x < GUTTER) return null;
    const place = Math.floor(this.left + (x - GUTTER) / this.px);
    if (this.history.at(place) === undefined) return null;
    const lane = y < this.#top ? -1 : Math.floor((y - this.#top) / this.#rowHeight);
    return { lane: lane < this.#rows ? lane : -1, place };
  }

  /** The middle of a cell, px of the canvas. */
  pointOf({ lane, place }) {
    const y = lane < 0 ? AXIS + 20 : this.#top + (lane + 0.5) * this.#rowHeight;
    return { x: this.#x(place) + this.px / 2, y };
  }

  get #top() {
    return AXIS + STRIPS.reduce((sum, strip) => sum + strip.height + STRIP_GAP, 0);
  }

  #x(place) {
    return GUTTER + (place - this.left) * this.px;
  }

  draw() {
    const { history } = this;
    this.#width = this.#canvas.parentElement.clientWidth;
    if (this.following) this.left = Math.max(history.next - this.columns, history.first);
    this.left = Math.max(this.left, history.first);
    this.#measure();
    this.#colours ??= this.#readColours();
    const context = this.#context;
    context.fillStyle = this.#colours.background;
    context.fillRect(0, 0, this.#width, this.#height);
    context.textBaseline = "middle";
    context.font = "11px system-ui, sans-serif";
    const { from, to } = this.visible;
    this.#drawMarks();
    this.#drawAxis(from, to);
    this.#drawStrips(from, to);
    context.save();
    context.beginPath();
    context.rect(GUTTER, this.#top, this.#width - GUTTER, this.#height - this.#top);
    context.clip();
    if (to >= from) {
      this.#drawLines(from, to);
      this.#drawCells(from, to);
      this.#drawEnds(from, to);
    }
    context.restore();
    this.#drawNames(to);
    this.#drawFocus();
  }

  /** Make room for the lanes in view; the canvas changes its size only in steps. */
  #measure() {
    const { from, to } = this.visible;
    let highest = 0;
    for (let lane = this.history.lanes.length - 1; lane >= 0 && !highest; lane--) {
      if (!this.history.livesIn(lane, from, Math.max(to, from)).next().done) highest = lane + 1;
    }
    const wanted = Math.max(Math.ceil(highest / 4) * 4, FEWEST_ROWS);
    if (wanted > this.#rows || wanted < this.#rows / 2) this.#rows = wanted;
    this.#rowHeight = Math.min(Math.max(MOST_ROWS_HEIGHT / this.#rows, ROW.least), ROW.most);
    if (this.#rowHeight > 6) this.#rowHeight = Math.floor(this.#rowHeight);
    const height = Math.ceil(this.#top + Math.min(this.#rows * this.#rowHeight, MOST_ROWS_HEIGHT) + 2);
    const ratio = window.devicePixelRatio || 1;
    const [width, tall] = [Math.round(this.#width * ratio), Math.round(height * ratio)];
    if (this.#canvas.width !== width || this.#canvas.height !== tall) {
      this.#canvas.width = width;
      this.#canvas.height = tall;
      this.#canvas.style.width = `${this.#width}px`;
      this.#canvas.style.height = `${height}px`;
      this.#hatch = null;
    }
    this.#height = height;
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  #readColours() {
    const style = getComputedStyle(this.#canvas);
    this.#hatch = null;
    return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  /** Stripes, so that an initiation is told from an increment without colours too. */
  #stripes() {
    if (this.#hatch === null) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const context = tile.getContext("2d");
      context.strokeStyle = this.#colours.background;
      context.lineWidth = 1.5;
      for (const shift of [-6, 0, 6]) {
        context.moveTo(shift, 6);
        context.lineTo(shift + 6, 0);
      }
      context.stroke();
      this.#hatch = this.#context.createPattern(tile, "repeat");
    }
    return this.#hatch;
  }

  #drawMarks() {
    const context = this.#context;
    for (const mark of [this.hover, this.focus]) {
      if (mark === null) continue;
      context.fillStyle = this.#colours.line;
      context.fillRect(this.#x(mark.place), AXIS, Math.max(this.px, 1), this.#height);
    }
    if (this.selected !== null && this.selected.lane < this.#rows) {
      const { from, to, lane } = this.selected;
      const x = Math.max(this.#x(from), GUTTER);
      const width = this.#x((to ?? this.history.next - 1) + 1) - x;
      context.fillStyle = this.#colours.line;
      if (width > 0) context.fillRect(x, this.#top + lane * this.#rowHeight, width, this.#rowHeight);
    }
  }

  #drawAxis(from, to) {
    const context = this.#context;
    const step = [10, 20, 50, 100, 200, 500, 1000].find((each) => each * this.px >= 60) ?? 1000;
    context.fillStyle = this.#colours.muted;
    context.textAlign = "left";
    context.fillText("iteration", 4, AXIS / 2);
    for (let place = from; place <= to; place++) {
      const { number } = this.history.at(place);
      if (number % step !== 0) continue;
      const x = this.#x(place);
      context.fillRect(Math.floor(x), AXIS - 4, 1, 4);
      if (x < this.#width - 30) context.fillText(number.toLocaleString("en"), x + 3, AXIS / 2);
    }
  }

  #drawStrips(from, to) {
    const { history } = this;
    const colours = this.#colours;
    const most = [0, 1, 1, 1];
    for (let place = from; place <= to; place++) {
      const iteration = history.at(place);
      most[0] = Math.max(most[0], iteration.took ?? 0);
      most[1] = Math.max(most[1], nRequests(iteration));
      most[2] = Math.max(most[2], iteration.waiting);
      most[3] = Math.max(most[3], iteration.reserved);
    }
    const { max_bs: maxBatch = 1, n_slots: nSlots = 1 } = history.settings ?? {};
    const longest = niceAbove(most[0] * 1e3);
    const scales = [longest || 1, maxBatch <= 2 * most[1] ? maxBatch : niceAbove(most[1]), niceAbove(most[2]), most[3] * 2 > nSlots ? nSlots : niceAbove(most[3])];
    const layers = [
      [["increment", (i) => (i.took ?? 0) * 1e3]],
      [["initiation", nRequests], ["increment", (i) => i.increments.length]],
      [["waiting", (i) => i.waiting]],
      [["reserved", (i) => i.reserved], ["used", (i) => i.used]],
    ];
    let y = AXIS;
    STRIPS.forEach((strip, which) => {
      const bottom = y + strip.height;
      for (const [colour, value] of layers[which]) {
        this.#drawBars(from, to, bottom, strip.height, colours[colour], (i) => value(i) / scales[which]);
      }
      if (which === 0) this.#drawLonger(from, to, bottom, strip.height, scales[0]);
      this.#drawScale(strip, bottom, scales[which]);
      y = bottom + STRIP_GAP;
    });
  }

  #drawBars(from, to, bottom, height, colour, share) {
    const context = this.#context;
    const gap = this.px >= 4 ? 1 : 0;
    context.fillStyle = colour;
    context.beginPath();
    for (let place = from; place <= to; place++) {
      const tall = Math.min(share(this.history.at(place)), 1) * height;
      if (tall > 0) context.rect(this.#x(place), bottom - tall, this.px - gap, tall);
    }
    context.fill();
  }

  /** Iterations in which requests began: their time is marked as an initiation. */
  #drawLonger(from, to, bottom, height, scale) {
    const share = (i) => (i.pieces.length ? ((i.took ?? 0) * 1e3) / scale : 0);
    this.#drawBars(from, to, bottom, height, this.#colours.initiation, share);
    this.#drawBars(from, to, bottom, height, this.#stripes(), share);
  }

  #drawScale(strip, bottom, most) {
    const context = this.#context;
    context.fillStyle = this.#colours.line;
    context.fillRect(GUTTER, bottom, this.#width - GUTTER, 1);
    context.fillStyle = this.#colours.muted;
    context.textAlign = "left";
    context.fillText(strip.name, 4, bottom - strip.height + 7);
    const text = most >= 10_000 ? `${Math.round(most / 1000)}k` : `${most}`;
    context.fillText(`≤ ${text} ${strip.unit}`.trim(), 4, bottom - strip.height + 21);
  }

  /** Where requests wait (dotted), and where they are there without being in a batch (thin). */
  #drawLines(from, to) {
    const context = this.#context;
    const thick = this.#rowHeight >= 10 ? 2 : 1;
    for (let lane = 0; lane < Math.min(this.#rows, this.history.lanes.length); lane++) {
      const y = this.#top + (lane + 0.5) * this.#rowHeight - thick / 2;
      for (const life of this.history.livesIn(lane, from, to)) {
        const end = this.#x((life.to ?? this.history.next - 1) + 1);
        const start = this.#x(life.from);
        const begun = life.begun === null ? end : Math.max(this.#x(life.begun), start);
        if (begun > start) this.#line(start, begun, y + thick / 2, this.#colours.waiting, thick, [2, 3]);
        if (end > begun) this.#line(begun, end, y + thick / 2, this.#colours.muted, 1, []);
      }
    }
    context.setLineDash([]);
  }

  #line(from, to, y, colour, width, dashes) {
    const context = this.#context;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dashes);
    context.beginPath();
    context.moveTo(Math.max(from, GUTTER), y);
    context.lineTo(Math.min(to, this.#width), y);
    context.stroke();
  }

  /** Cells, as runs of the same kind; what separates iterations is drawn over them. */
  #drawCells(from, to) {
    const rects = [[], [], [], []]; // by kind: lane, place, places
    const kinds = new Uint8Array(this.#rows);
    const since = new Int32Array(this.#rows);
    let fresh = new Uint8Array(this.#rows);
    let before = null;
    const close = (lane, place) => {
      if (kinds[lane] !== NOTHING) rects[kinds[lane]].push(lane, since[lane], place - since[lane]);
    };
    for (let place = from; place <= to; place++) {
      const iteration = this.history.at(place);
      const same = before?.increments === iteration.increments && !before.pieces.length && !iteration.pieces.length;
      before = iteration;
      if (same) continue;
      fresh.fill(NOTHING);
      for (const id of iteration.increments) this.#mark(fresh, id, INCREMENT);
      for (const piece of iteration.pieces) this.#mark(fresh, piece.id, piece.toCome ? PIECE : INITIATION);
      for (let lane = 0; lane < this.#rows; lane++) {
        if (fresh[lane] !== kinds[lane]) {
          close(lane, place);
          since[lane] = place;
        }
      }
      kinds.set(fresh);
    }
    for (let lane = 0; lane < this.#rows; lane++) close(lane, to + 1);
    const tall = Math.max(this.#rowHeight - 2, 2);
    const low = Math.max(Math.round(this.#rowHeight * 0.42), 1);
    this.#fillCells(rects[INCREMENT], low, this.#colours.increment);
    this.#fillCells(rects[INITIATION], tall, this.#colours.initiation);
    this.#fillCells(rects[PIECE], tall, this.#colours.initiation);
    this.#fillCells(rects[PIECE], tall - 4, this.#colours.background);
    this.#fillCells(rects[PIECE], tall - 4, this.#colours.initiation, 2);
    if (tall >= 8) this.#fillCells(rects[INITIATION], tall, this.#stripes());
    this.#drawGaps(from, to);
  }

  #mark(kinds, id, kind) {
    const lane = this.history.lives.get(id)?.lane;
    if (lane !== undefined && lane < this.#rows) kinds[lane] = kind;
  }

  #fillCells(cells, height, colour, inset = 0) {
    const context = this.#context;
    context.fillStyle = colour;
    context.beginPath();
    for (let i = 0; i < cells.length; i += 3) {
      const [lane, place, places] = [cells[i], cells[i + 1], cells[i + 2]];
      const y = this.#top + (lane + 0.5) * this.#rowHeight - height / 2 + inset;
      if (height - 2 * inset > 0) {
        context.rect(this.#x(place) + inset, y, Math.max(places * this.px - 2 * inset, 0.5), height - 2 * inset);
      }
    }
    context.fill();
  }

  #drawGaps(from, to) {
    const context = this.#context;
    if (this.px >= 4) {
      context.fillStyle = this.#colours.background;
      context.beginPath();
      for (let place = from; place <= to; place++) {
        context.rect(this.#x(place + 1) - 1, this.#top, 1, this.#height - this.#top);
      }
      context.fill();
    }
    for (let place = to; place >= from && this.history.at(place).ended === null; place--) {
      context.fillStyle = this.#colours.background; // still under way: paler
      context.globalAlpha = 0.5;
      context.fillRect(this.#x(place), this.#top, this.px, this.#height - this.#top);
      context.globalAlpha = 1;
    }
    for (let place = Math.max(from, this.history.first + 1); place <= to; place++) {
      if (this.history.at(place).number !== this.history.at(place - 1).number + 1) {
        context.fillStyle = this.#colours.bad; // iterations in between were not seen
        context.fillRect(this.#x(place) - 1, this.#top, 2, this.#height - this.#top);
      }
    }
  }

  /** How requests ended: a bar, or a cross if it was not as they had wished. */
  #drawEnds(from, to) {
    const context = this.#context;
    const half = Math.max(this.#rowHeight / 2 - 2, 1);
    for (let place = from; place <= to; place++) {
      for (const end of this.history.at(place).ends) {
        const life = this.history.lives.get(end.id);
        if (life !== undefined && life.lane < this.#rows) this.#drawEnd(life, half, context);
      }
    }
    for (let lane = 0; lane < Math.min(this.#rows, this.history.lanes.length); lane++) {
      for (const life of this.history.livesIn(lane, from, to)) {
        if (life.why !== null && life.why !== "stop" && life.why !== "length") this.#drawEnd(life, half, context);
      }
    }
  }

  #drawEnd(life, half, context) {
    const x = this.#x(life.to + 1);
    const y = this.#top + (life.lane + 0.5) * this.#rowHeight;
    const fine = life.why === "stop" || life.why === "length";
    if (fine) {
      context.fillStyle = this.#colours.text;
      context.fillRect(x - 2, y - half, 2, 2 * half);
      return;
    }
    const size = Math.min(half, 4);
    context.strokeStyle = this.#colours.bad;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x + 1, y - size);
    context.lineTo(x + 1 + 2 * size, y + size);
    context.moveTo(x + 1 + 2 * size, y - size);
    context.lineTo(x + 1, y + size);
    context.stroke();
  }

  /** In the gutter: whose rows they are, where the pointer is or at the right edge. */
  #drawNames(to) {
    const context = this.#context;
    context.fillStyle = this.#colours.background;
    context.fillRect(0, this.#top, GUTTER, this.#height);
    if (this.#rowHeight < 10) {
      context.fillStyle = this.#colours.muted;
      context.fillText("requests", 4, this.#top + 8);
      return;
    }
    const place = this.hover?.place ?? this.focus?.place ?? to;
    context.textAlign = "right";
    for (let lane = 0; lane < Math.min(this.#rows, this.history.lanes.length); lane++) {
      const life = this.history.lifeAt(lane, place);
      if (life === undefined) continue;
      const chosen = life === this.selected;
      context.fillStyle = chosen ? this.#colours.accent : this.#colours.muted;
      context.fillText(`${life.id}`, GUTTER - 8, this.#top + (lane + 0.5) * this.#rowHeight);
    }
    context.textAlign = "left";
    const hidden = this.history.lanes.length - Math.floor(MOST_ROWS_HEIGHT / this.#rowHeight);
    if (hidden > 0) context.fillText(`+${hidden}`, 4, this.#height - 8);
  }

  #drawFocus() {
    if (this.focus === null || this.history.at(this.focus.place) === undefined) return;
    const context = this.#context;
    const { lane, place } = this.focus;
    const width = Math.max(this.px, 4);
    const x = this.#x(place) + (this.px - width) / 2;
    const [y, height] = lane < 0 ? [AXIS, this.#top - AXIS] : [this.#top + lane * this.#rowHeight, this.#rowHeight];
    context.strokeStyle = this.#colours.accent;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, width + 2, height + 2);
  }
}

/** The next number above of the kind 1, 2, 5, 10. */
function niceAbove(value) {
  if (!(value > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 5, 10].find((each) => each * power >= value - 1e-9);
  return Number((factor * power).toPrecision(6));
}
