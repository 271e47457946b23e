// What a schedule log has told so far: the last iterations, and the requests that had to do with them. No drawing.

export const LIVE_ITERATIONS = 20_000;
export const FILE_ITERATIONS = 300_000;
const FEWEST_LIVES = 100_000; // that may be kept, however few iterations are

/** A request. Places are positions of iterations in the history, which count up from 0 and never come back. */
class Life {
  constructor(request, time, place, lane) {
    const { id, input, asked, carried, mayStop, terms } = request;
    Object.assign(this, { id, input, asked, carried, mayStop, terms });
    this.arrived = time; // seconds since the run's start; null: before what is known begins
    this.from = place; // the first iteration that it could have been in
    this.lane = lane;
    this.begun = null; // place of its first iteration, or -1 if that came before what is known
    this.to = null; // place of the last iteration it was there in
    this.ended = null; // seconds
    this.why = null; // stop, length, cancelled, error, late, lost
    this.output = null; // tokens, once it has ended
    this.cancelled = null; // seconds: when its client left
    this.nBefore = this.nRunning = 0;
  }
}

export class History {
  constructor(capacity = LIVE_ITERATIONS) {
    this.capacity = capacity;
    this.clear();
  }

  clear() {
    this.header = null;
    this.first = 0; // place of the oldest iteration that is kept
    this.next = 0; // place of the next one
    this.lives = new Map(); // those there now, and those kept, by id
    this.live = new Set(); // ids of those there now
    this.lanes = []; // of each lane its lives, oldest first
    this.nWaiting = 0;
    this.nRefused = 0;
    this.over = false;
    this.time = 0; // of the last event
    this.#ring = [];
    this.#byNumber = new Map();
    this.#taken = [];
    this.#oldest = [];
  }

  get #mostLives() {
    return Math.max(this.capacity, FEWEST_LIVES);
  }

  #ring; // place modulo capacity -> iteration
  #byNumber; // of iterations in flight -> place
  #taken; // lane -> whether somebody is there now
  #oldest; // lives in order of arrival, for forgetting

  /** {place, number, time, ended, took, increments, pieces, reserved, used, stop, lacking, preempted, ends, waiting} */
  at(place) {
    return place < this.first || place >= this.next ? undefined : this.#ring[place % this.capacity];
  }

  get settings() {
    return this.header?.settings ?? null;
  }

  /** Place of the iteration of this number, or null if it is not kept. */
  placeOf(number) {
    let [low, high] = [this.first, this.next - 1]; // numbers rise with places
    while (low <= high) {
      const middle = (low + high) >> 1;
      const found = this.at(middle).number;
      if (found === number) return middle;
      if (found < number) low = middle + 1;
      else high = middle - 1;
    }
    return null;
  }

  add(event) {
    if (event.time !== undefined) this.time = Math.max(this.time, event.time);
    switch (event.kind) {
      case "header":
        return this.#begin(event);
      case "arrived":
        return this.#arrive(event, event.time);
      case "refused":
        this.nRefused += 1;
        if (this.live.has(event.id)) this.#end({ id: event.id, why: "late", output: 0 }, event.time, this.next - 1);
        return undefined;
      case "cancelled": {
        const life = this.lives.get(event.id);
        if (life !== undefined) life.cancelled = event.time;
        return this.#endAll(event.ends, event.time, this.next - 1);
      }
      case "expired":
        return this.#endAll(event.ends.map((end) => ({ ...end, why: "late" })), event.time, this.next - 1);
      case "batch":
        return this.#batch(event);
      case "returned":
        return this.#returned(event);
      case "over":
        this.over = true;
        return this.#endAll(event.ends, event.time, this.next - 1);
    }
    return undefined;
  }

  #begin(header) {
    const goesOn = this.header !== null && this.header.run === header.run;
    if (!goesOn && this.header !== null) this.clear();
    this.header = header; // of a live schedule it comes again whenever somebody else begins to watch
    this.over = false;
    const there = new Set(header.live.map((request) => request.id));
    for (const id of [...this.live]) {
      if (!there.has(id)) this.#end({ id, why: "lost", output: null }, this.time, this.next - 1);
    }
    for (const request of header.live) {
      if (!this.live.has(request.id)) {
        this.#arrive(request, null);
        if (request.output > request.carried) this.#start(this.lives.get(request.id), -1);
      }
    }
    for (const { ids } of header.inFlight) {
      for (const id of ids) {
        const life = this.lives.get(id);
        if (life !== undefined && life.begun === null) this.#start(life, -1);
      }
    }
    for (const number of [...this.#byNumber.keys()]) {
      if (!header.inFlight.some((batch) => batch.number === number)) this.#byNumber.delete(number);
    }
  }

  #arrive(request, time) {
    const lane = this.#freeLane();
    const life = new Life(request, time, this.next, lane);
    life.nBefore = this.live.size;
    life.nRunning = this.live.size - this.nWaiting;
    this.lives.set(life.id, life);
    this.live.add(life.id);
    this.lanes[lane].push(life);
    this.#oldest.push(life);
    this.nWaiting += 1;
    if (this.#oldest.length > this.#mostLives) this.#forget();
  }

  #freeLane() {
    let lane = this.#taken.indexOf(false);
    if (lane < 0) {
      lane = this.#taken.length;
      this.lanes.push([]);
    }
    this.#taken[lane] = true;
    return lane;
  }

  #start(life, place) {
    if (life.begun === null) {
      life.begun = place;
      this.nWaiting -= 1;
    }
  }

  #endAll(ends, time, place) {
    for (const end of ends) this.#end(end, time, place);
  }

  #end({ id, why, output }, time, place) {
    const life = this.lives.get(id);
    if (life === undefined || !this.live.delete(id)) return;
    if (life.begun === null) this.nWaiting -= 1;
    this.#taken[life.lane] = false;
    Object.assign(life, { why, output, ended: time, to: Math.max(place, life.from - 1) });
  }

  #batch(event) {
    const place = this.next;
    const { number, time, increments, pieces, reserved, used, stop, lacking, preempted } = event;
    for (const id of event.increments) {
      const life = this.lives.get(id);
      if (life !== undefined && life.begun === null) this.#start(life, -1);
    }
    for (const piece of event.pieces) {
      const life = this.lives.get(piece.id);
      if (life !== undefined) this.#start(life, place);
    }
    this.#ring[place % this.capacity] = {
      place,
      number,
      time,
      increments,
      pieces: pieces.length ? pieces : NOBODY,
      reserved,
      used,
      stop,
      lacking,
      preempted: preempted.length ? preempted : NOBODY,
      waiting: this.nWaiting,
      ended: null,
      took: null,
      ends: NOBODY,
      failing: NOBODY,
    };
    this.#byNumber.set(event.number, place);
    this.next += 1;
    if (this.next - this.first > this.capacity) {
      this.first += 1;
      if (this.first % 1000 === 0) this.#forget();
    }
  }

  #returned(event) {
    const place = this.#byNumber.get(event.number);
    this.#byNumber.delete(event.number);
    const iteration = place === undefined ? undefined : this.at(place);
    if (iteration !== undefined) {
      iteration.ended = event.time;
      iteration.took = event.took;
      if (event.ends.length) iteration.ends = event.ends;
      if (event.failing.length) iteration.failing = event.failing;
    }
    this.#endAll(event.ends, event.time, place ?? this.next - 1);
  }

  /** Drop requests that ended before the oldest iteration; of very many, the oldest that have ended. */
  #forget() {
    let surplus = this.#oldest.length - this.#mostLives * 0.9;
    const lanes = new Set();
    this.#oldest = this.#oldest.filter((life) => {
      const gone = life.to !== null && (life.to < this.first || surplus > 0);
      surplus -= 1;
      if (gone) {
        life.forgotten = true;
        lanes.add(life.lane);
        if (this.lives.get(life.id) === life) this.lives.delete(life.id);
      }
      return !gone;
    });
    for (const lane of lanes) this.lanes[lane] = this.lanes[lane].filter((life) => !life.forgotten);
    while (this.lanes.length && this.lanes.at(-1).length === 0 && !this.#taken.at(-1)) {
      this.lanes.pop();
      this.#taken.pop();
    }
  }

  /** Lives of a lane that were there in any of the iterations from `from` up to `to`. */
  *livesIn(lane, from, to) {
    const lives = this.lanes[lane];
    let [low, high] = [0, lives.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((lives[middle].to ?? Infinity) < from) low = middle + 1;
      else high = middle;
    }
    for (let i = low; i < lives.length && lives[i].from <= to; i++) {
      if ((lives[i].to ?? Infinity) >= lives[i].from) yield lives[i];
    }
  }

  lifeAt(lane, place) {
    if (lane < 0 || lane >= this.lanes.length) return undefined;
    const [life] = this.livesIn(lane, place, place);
    return life;
  }

  /** What became of a life in an iteration: initiation, piece, increment, waiting or idle. */
  phase(life, place) {
    const iteration = this.at(place);
    if (iteration === undefined) return "unknown";
    const piece = iteration.pieces.find((each) => each.id === life.id);
    if (piece !== undefined) return piece.toCome ? "piece" : "initiation";
    if (iteration.increments.includes(life.id)) return "increment";
    return life.begun === null || life.begun > place ? "waiting" : "idle";
  }
}

const NOBODY = Object.freeze([]);

export function nRequests(iteration) {
  return iteration.increments.length + iteration.pieces.length;
}

export function nTokens(iteration) {
  return iteration.pieces.reduce((sum, piece) => sum + piece.tokens, iteration.increments.length);
}
