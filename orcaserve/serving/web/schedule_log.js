// The lines of a schedule log, as orcaserve/schedule_log/format.py describes them, to events. No page, no network.

export const KIND = "orcaserve-schedule";
const VERSION = 1;
const MOST_IN_A_RUN = 1_000_000; // a damaged line must not fill the memory

/** A line that is wrong: `line` counts from 1. */
export class LogError extends Error {
  constructor(line, what) {
    super(`line ${line}: ${what}`);
    this.line = line;
  }
}

/** "3-5 9" -> [3, 4, 5, 9]. */
export function fromRuns(text) {
  const ids = [];
  for (const part of text.split(" ")) {
    if (part === "") continue;
    const found = /^(\d+)(?:-(\d+))?$/.exec(part);
    if (found === null) throw new Error(`${part} is no run of ids`);
    const low = Number(found[1]);
    const high = Number(found[2] ?? found[1]);
    if (high < low || high - low > MOST_IN_A_RUN) throw new Error(`${part} is no run of ids`);
    for (let id = low; id <= high; id++) ids.push(id);
  }
  return ids;
}

/**
 * Makes an event of every line. Times are seconds since the run's start. What the line leaves out because another line
 * has said it ("=", a header that goes on) is kept here.
 *
 *   {kind: "header", run, part, start, settings, live: [{id, input, asked, carried, mayStop, output, terms}], inFlight}
 *   {kind: "arrived", time, id, input, asked, carried, mayStop, terms}    terms: {client, priority, background, ...}
 *   {kind: "refused", time, id, why}             {kind: "cancelled", time, id, ends}
 *   {kind: "batch", time, number, increments, pieces: [{id, tokens, toCome, cached}], reserved, used, stop, lacking,
 *    preempted}
 *   {kind: "returned", time, number, took, ends: [{id, why, output}], failing}
 *   {kind: "expired", time, ends}                {kind: "over", time, ends}
 *
 * increments is the same array as before while the same requests go on: whoever keeps events shares it too.
 */
export class LogParser {
  #line = 0;
  #header = false;
  #last = [];
  #inFlight = new Map();
  unknown = 0; // lines of a kind that this page does not know, which are passed over

  /** The event of a line, or null where there is none. Throws LogError, with `line` if it is given. */
  parse(text, line = this.#line + 1) {
    this.#line = line;
    if (text.trim() === "") return null;
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      throw this.#error(this.#header ? "is not JSON" : "is no header: this is no schedule log");
    }
    if (!Array.isArray(value)) return this.#readHeader(value);
    if (!this.#header) throw this.#error("is no header: a schedule log begins with one");
    const time = this.#number(value[1], "time") / 1e6;
    switch (value[0]) {
      case "a":
        return this.#arrived(time, value);
      case "x":
        return { kind: "refused", time, id: this.#number(value[2], "id"), why: String(value[3] ?? "") };
      case "c":
        return { kind: "cancelled", time, id: this.#number(value[2], "id"), ends: this.#ends(value[3]) };
      case "b":
        return this.#batch(time, value);
      case "r":
        return this.#returned(time, value);
      case "d":
        return { kind: "expired", time, ends: this.#ends(value[2]) };
      case "z":
        return { kind: "over", time, ends: this.#ends(value[2]) };
      default:
        this.unknown += 1;
        return null;
    }
  }

  #readHeader(value) {
    if (value === null || typeof value !== "object" || value.kind !== KIND) {
      throw this.#error("is no header of a schedule log");
    }
    if (value.version !== VERSION) {
      throw this.#error(`has version ${JSON.stringify(value.version)}, and this page reads ${VERSION}`);
    }
    const settings = value.settings ?? {};
    for (const name of ["max_bs", "n_slots"]) this.#number(settings[name], `settings.${name}`);
    this.#header = true;
    this.#last = this.#list(value.last, "last");
    this.#inFlight = new Map();
    const inFlight = this.#list(value.in_flight, "in_flight").map((row) => {
      const [number, ids] = this.#list(row, "in_flight");
      this.#inFlight.set(this.#number(number, "in_flight"), this.#list(ids, "in_flight"));
      return { number, ids };
    });
    const live = this.#list(value.live, "live").map((row) => {
      const sizes = this.#list(row, "live").slice(0, 6).map((n) => this.#number(n, "live"));
      const [id, input, asked, carried, mayStop, output] = sizes;
      return { id, input, asked, carried: carried ?? 0, mayStop: Boolean(mayStop), output: output ?? 0, terms: row[6] ?? null };
    });
    const start = this.#number(value.start, "start");
    const part = this.#number(value.part ?? 1, "part");
    return { kind: "header", run: String(value.run), part, start, settings, live, inFlight };
  }

  #arrived(time, value) {
    const [id, input, asked] = [value[2], value[3], value[4]].map((n) => this.#number(n, "id or size"));
    const carried = this.#number(value[5] ?? 0, "carried");
    return { kind: "arrived", time, id, input, asked, carried, mayStop: Boolean(value[6]), terms: value[7] ?? null };
  }

  #batch(time, value) {
    const last = value.at(-1);
    const more = last !== null && typeof last === "object" && !Array.isArray(last) && value.length > 7 ? value.pop() : {};
    const cached = new Map(this.#list(more.cached, "cached").map(([id, tokens]) => [id, this.#number(tokens, "cached")]));
    const number = this.#number(value[2], "iteration");
    let increments = this.#last;
    if (value[3] !== "=") {
      try {
        increments = fromRuns(value[3]);
      } catch {
        throw this.#error("increments must be a list of ids such as '3-9 12'");
      }
    }
    const pieces = this.#list(value[4], "initiations").map((piece) => {
      const [id, tokens, toCome] = this.#list(piece, "initiations").map((n) => this.#number(n, "initiations"));
      return { id, tokens, toCome: toCome ?? 0, cached: cached.get(id) ?? 0 };
    });
    this.#inFlight.set(number, pieces.length ? increments.concat(pieces.map((piece) => piece.id)) : increments);
    return {
      kind: "batch",
      time,
      number,
      increments,
      pieces,
      reserved: this.#number(value[5], "reserved"),
      used: this.#number(value[6], "used"),
      stop: String(value[7] ?? "none"),
      lacking: this.#number(value[8] ?? 0, "lacking"),
      preempted: this.#list(value[9], "preempted"),
    };
  }

  #returned(time, value) {
    const number = this.#number(value[2], "iteration");
    const took = this.#number(value[3], "took") / 1e6;
    const ends = this.#ends(value[4]);
    const ids = this.#inFlight.get(number);
    if (ids === undefined) throw this.#error(`iteration ${number} is not in flight`);
    this.#inFlight.delete(number);
    const ended = this.#ended;
    this.#last = ended.size ? ids.filter((id) => !ended.has(id)) : ids;
    for (const id of ended) {
      if (![...this.#inFlight.values()].some((others) => others.includes(id))) ended.delete(id);
    }
    return { kind: "returned", time, number, took, ends, failing: this.#list(value[5], "failing") };
  }

  // Who ended while batches with them may still be in flight: they are not in "=" when those return.
  #ended = new Set();

  #ends(value) {
    return this.#list(value, "ends").map((row) => {
      const [id, why, output] = this.#list(row, "ends");
      if (this.#inFlight.size) this.#ended.add(this.#number(id, "ends"));
      return { id, why: String(why), output: this.#number(output, "ends") };
    });
  }

  #number(value, name) {
    if (typeof value !== "number" || !(value >= 0)) throw this.#error(`${name} must be a number, 0 or more`);
    return value;
  }

  #list(value, name) {
    if (value === undefined || value === null) return [];
    if (!Array.isArray(value)) throw this.#error(`${name} must be a list`);
    return value;
  }

  #error(what) {
    return new LogError(this.#line, what);
  }
}

/** Cuts text that comes in pieces into lines; what has no end yet is kept. */
export class Lines {
  rest = "";

  *push(text) {
    let from = 0;
    const whole = this.rest + text;
    for (let to = whole.indexOf("\n"); to >= 0; to = whole.indexOf("\n", from)) {
      yield whole.slice(from, to);
      from = to + 1;
    }
    this.rest = whole.slice(from);
  }
}
