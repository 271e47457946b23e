// Numbers and reasons in words, and a request's life: what `orcaserve explain` tells, for the page.

import { nRequests, nTokens } from "./history.js";
import { quantile } from "./figures.js";

export const STOPS = {
  none: "nobody else waits",
  full: "the batch was full (max_bs)",
  slots: "slots were lacking",
  cell: "others needed another computation",
  fixed: "a whole batch had to end first",
  tokens: "the iteration had all the input tokens that it may have",
};
const WAITED = { ...STOPS, none: "all workers had a batch, or it had only just come" };
const ENDS = {
  stop: "with a stop token",
  length: "with all the tokens it asked for",
  cancelled: "because its client left",
  error: "with an error",
  late: "because it could not have been in time",
  lost: "while the schedule was not watched",
};
const LONG = 1.5; // times the usual, after which an iteration is a delay worth telling
const MOST_DELAYS = 3;

export function stopInWords(iteration) {
  const text = STOPS[iteration.stop] ?? `another reason (${iteration.stop})`;
  return iteration.lacking ? `${text} (${count(iteration.lacking)} for the next one)` : text;
}

export function endInWords(why) {
  return ENDS[why] ?? `for another reason (${why})`;
}

export function count(n, what) {
  const number = n.toLocaleString("en");
  return what === undefined ? number : `${number} ${what}${n === 1 ? "" : "s"}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (Math.abs(seconds) < 0.00995) return `${(seconds * 1e3).toFixed(2)} ms`;
  if (Math.abs(seconds) < 0.0995) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (Math.abs(seconds) < 0.9995) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (Math.abs(seconds) < 99.5) return `${seconds.toFixed(2)} s`;
  return seconds < 5400 ? `${count(Math.round(seconds))} s` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Several of them with one unit. */
export function spans(seconds) {
  if (seconds.some((each) => each === null)) return "–";
  const most = Math.max(...seconds);
  const [factor, unit] = most < 0.9995 ? [1e3, "ms"] : [1, "s"];
  const digits = most * factor < 9.95 ? 2 : most * factor < 99.5 ? 1 : 0;
  return `${seconds.map((each) => (each * factor).toFixed(digits)).join(" / ")} ${unit}`;
}

export function clock(history, time) {
  return new Date((history.header.start + time) * 1e3).toLocaleTimeString("en-GB", { hour12: false });
}

/** An iteration as [name, text] pairs. */
export function tellIteration(history, iteration) {
  const { settings } = history;
  const parts = [count(iteration.increments.length, "increment")];
  if (iteration.pieces.length) parts.push(count(iteration.pieces.length, "initiation"));
  const rows = [
    ["batch", `${count(nRequests(iteration), "request")} of at most ${settings.max_bs}: ${parts.join(", ")}`],
    ["tokens", count(nTokens(iteration), "token")],
    ["device time", iteration.ended === null ? "still under way" : span(iteration.took)],
    ["slots", `${count(iteration.reserved)} reserved, ${count(iteration.used)} used, of ${count(settings.n_slots)}`],
    ["waiting", count(iteration.waiting, "request")],
    ["nobody else", `is in it, because ${stopInWords(iteration)}`],
  ];
  for (const piece of iteration.pieces.slice(0, MOST_DELAYS)) rows.push(["initiation", pieceInWords(piece)]);
  if (iteration.pieces.length > MOST_DELAYS) {
    rows.push(["", `and ${iteration.pieces.length - MOST_DELAYS} more initiations`]);
  }
  for (const end of iteration.ends.slice(0, 4)) rows.push(["ended", `request ${end.id}, ${endInWords(end.why)}`]);
  if (iteration.preempted.length) rows.push(["preempted", `request ${iteration.preempted.join(", ")}`]);
  return rows;
}

function pieceInWords(piece) {
  const cached = piece.cached ? `, ${count(piece.cached)} more were there already` : "";
  const more = piece.toCome ? `; ${count(piece.toCome)} more to come` : "";
  return `request ${piece.id}, ${count(piece.tokens, "input token")}${cached}${more}`;
}

/** One cell in one sentence, for the pointer and for screen readers. */
export function tellCell(history, life, iteration) {
  const phase = history.phase(life, iteration.place);
  const piece = iteration.pieces.find((each) => each.id === life.id);
  const what = {
    initiation: () => `initiation, ${count(piece.tokens, "input token")}`,
    piece: () => `a piece of its initiation, ${count(piece.tokens)} tokens, ${count(piece.toCome)} to come`,
    increment: () => "increment, 1 token",
    waiting: () => "waits",
    idle: () => "not in this batch",
    unknown: () => "not known any more",
  }[phase]();
  const end = iteration.ends.find((each) => each.id === life.id);
  return `request ${life.id}: ${what}${end === undefined ? "" : `; ended ${endInWords(end.why)}`}`;
}

/** A request's life as [name, text] pairs. */
export function tellLife(history, life) {
  const visits = visitsOf(history, life);
  return [
    arrivedIn(history, life),
    ...waited(history, life, visits),
    ...begun(visits),
    ...tokens(history, life, visits),
    ...ending(life, visits),
  ];
}

/** Its iterations, as far as they are kept. */
function visitsOf(history, life) {
  const visits = [];
  const to = Math.min(life.to ?? history.next - 1, history.next - 1);
  for (let place = Math.max(life.from, history.first); place <= to; place++) {
    const iteration = history.at(place);
    const own = iteration.pieces.find((piece) => piece.id === life.id) ?? null;
    if (own !== null || iteration.increments.includes(life.id)) visits.push({ iteration, own });
  }
  return visits;
}

function arrivedIn(history, life) {
  const wanted = life.asked ? `for at most ${count(life.asked, "output token")}` : "which are only to be read";
  const carried = life.carried ? `, ${count(life.carried)} of which an earlier engine has put out` : "";
  const sizes = `with ${count(life.input, "input token")}, ${wanted}${carried}${termsInWords(life.terms)}`;
  if (life.arrived === null) return ["arrived", `before what is known here begins, ${sizes}`];
  const there = life.nBefore
    ? `${count(life.nBefore, "request")} ${life.nBefore === 1 ? "was" : "were"} there, ${count(life.nRunning)} of them had begun`
    : "nobody else was there";
  return ["arrived", `at ${clock(history, life.arrived)}, ${sizes}; ${there}`];
}

function termsInWords(terms) {
  const said = [];
  if (terms?.client) said.push(`of client ${terms.client}`);
  if (terms?.priority) said.push(`with priority ${terms.priority}`);
  if (terms?.background) said.push("in the background");
  return said.length ? `, ${said.join(", ")}` : "";
}

function waited(history, life, visits) {
  if (life.arrived === null || (life.begun !== null && life.begun < history.first)) return [];
  const until = life.begun === null ? (life.ended ?? history.time) : visits[0].iteration.time;
  if (life.begun === null && life.ended === null) {
    return [["waits", `for ${span(until - life.arrived)} now, without a first iteration`]];
  }
  const seconds = new Map();
  const through = new Map();
  let since = life.arrived;
  let why = "none";
  let lacking = 0;
  const last = life.begun === null ? Math.min(life.to, history.next - 1) : life.begun;
  for (let place = Math.max(life.from, history.first); place <= last; place++) {
    const iteration = history.at(place);
    seconds.set(why, (seconds.get(why) ?? 0) + Math.max(iteration.time - since, 0));
    through.set(why, (through.get(why) ?? 0) + 1);
    since = iteration.time;
    why = iteration.stop;
    if (place < last) lacking = Math.max(lacking, iteration.lacking);
  }
  const parts = [...seconds].filter(([, s]) => s > 0).map(([reason, s]) => {
    const times = reason === "none" ? "" : ` through ${count(through.get(reason), "iteration")}`;
    const most = reason === "slots" && lacking ? ` (up to ${count(lacking)} for the next one)` : "";
    return `${span(s)}${times} because ${WAITED[reason] ?? `of another reason (${reason})`}${most}`;
  });
  return [["waited", `${span(until - life.arrived)} for its first iteration${parts.length ? ": " : ""}${parts.join("; ")}`]];
}

function begun(visits) {
  const pieces = visits.filter((visit) => visit.own !== null);
  if (pieces.length === 0) return [];
  const rows = pieces.slice(0, 4).map(({ iteration, own }, i) => {
    const others = iteration.pieces.length - 1;
    const beside = [count(iteration.increments.length, "increment")];
    if (others) beside.push(count(others, "other initiation"));
    const more = own.toCome ? `; ${count(own.toCome)} more tokens come in later iterations` : "";
    const took = iteration.ended === null ? "" : `; it took ${span(iteration.ended - iteration.time)}`;
    const cached = own.cached ? ` (${count(own.cached)} more were there already)` : "";
    const text = `iteration ${count(iteration.number)}, ${count(own.tokens, "token")}${cached}, beside ${beside.join(" and ")}${more}${took}`;
    return [i === 0 ? "initiation" : "next piece", text];
  });
  if (pieces.length > 4) rows.push(["", `and ${count(pieces.length - 4, "more piece")}`]);
  return rows;
}

function tokens(history, life, visits) {
  if (!life.asked) return [];
  const giving = visits.filter((visit) => visit.iteration.ended !== null && !visit.own?.toCome);
  if (giving.length === 0) return [];
  const rows = [];
  if (giving[0].own !== null && life.arrived !== null) {
    rows.push(["first token", `${span(giving[0].iteration.ended - life.arrived)} after its arrival`]);
  }
  const increments = visits.filter((visit) => visit.own === null).length;
  const times = giving.map((visit) => visit.iteration.ended);
  const gaps = times.slice(1).map((time, i) => time - times[i]);
  if (gaps.length) {
    const sorted = [...gaps].sort((a, b) => a - b);
    const usually = `usually ${span(quantile(sorted, 0.5))} between two tokens, at most ${span(sorted.at(-1))}`;
    rows.push(["increments", `${count(increments)}; ${usually}`]);
  }
  return [...rows, ...delays(giving.slice(1))];
}

/** Iterations that took long because others began in them. */
function delays(visits) {
  const seconds = (visit) => visit.iteration.ended - visit.iteration.time;
  const plain = visits.filter((visit) => visit.iteration.pieces.length === 0).map(seconds);
  if (plain.length === 0) return [];
  const usual = quantile(plain.sort((a, b) => a - b), 0.5);
  const long = visits.filter((v) => v.own === null && v.iteration.pieces.length && seconds(v) > LONG * usual);
  if (long.length === 0) return [];
  const extra = long.reduce((sum, visit) => sum + seconds(visit) - usual, 0);
  const rows = [["delays", `${span(extra)} in ${count(long.length, "iteration")} that took longer because others began in them`]];
  long.sort((a, b) => seconds(b) - seconds(a));
  for (const visit of long.slice(0, MOST_DELAYS)) {
    const { number, pieces } = visit.iteration;
    const who = pieces.slice(0, MOST_DELAYS).map((piece) => `request ${piece.id} (${count(piece.tokens)} tokens)`);
    rows.push(["", `iteration ${count(number)}: ${span(seconds(visit))} instead of ${span(usual)}, with ${who.join(", ")}`]);
  }
  return rows;
}

function ending(life, visits) {
  const rows = [];
  if (life.cancelled !== null && life.arrived !== null) {
    rows.push(["cancelled", `${span(life.cancelled - life.arrived)} after its arrival`]);
  }
  if (life.ended === null) {
    rows.push(["ended", visits.length ? "not yet: it is still running" : "not yet"]);
    return rows;
  }
  const n = life.output === null ? null : life.output - life.carried;
  const after = life.arrived === null ? "" : `${span(life.ended - life.arrived)} after its arrival, `;
  const made = n === null ? "" : n ? `, having made ${count(n, "token")}` : ", without a token";
  rows.push(["ended", `${after}${endInWords(life.why)}${made}`]);
  return rows;
}
