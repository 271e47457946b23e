// Where a schedule comes from: the server as it runs, or files that it has written.

import { ApiError, events, request } from "./api.js";
import { Lines, LogError, LogParser } from "./schedule_log.js";

const RETRY = { first: 1_000, most: 20_000 }; // ms

/** The schedule as it runs. Closes itself while the tab is hidden, and comes back by itself. */
export class LiveSource {
  #controller = null;
  #timer = 0;
  #wait = RETRY.first;
  #wanted = false;
  #asked = false;
  replica = 0;

  /** onEvents(events); onState(state, text): "live", "connecting", "hidden" or "failed". */
  constructor(onEvents, onState) {
    this.onEvents = onEvents;
    this.onState = onState;
    document.addEventListener("visibilitychange", () => this.#reconsider());
  }

  /** Idempotent. */
  open() {
    if (this.#wanted) return;
    this.#wanted = true;
    this.#asked = false;
    this.#wait = RETRY.first;
    this.#reconsider();
  }

  close() {
    this.#wanted = false;
    this.#reconsider();
  }

  #reconsider() {
    clearTimeout(this.#timer);
    if (this.#wanted && !document.hidden) {
      if (this.#controller === null) this.#run();
      return;
    }
    this.#controller?.abort();
    this.#controller = null;
    if (this.#wanted) this.onState("hidden", "closed while this tab is hidden");
  }

  async #run() {
    const controller = (this.#controller = new AbortController());
    this.onState("connecting", "connecting …");
    try {
      const path = this.replica ? `v1/schedule?replica=${this.replica}` : "v1/schedule";
      const response = await request(path, { signal: controller.signal, quiet: this.#asked });
      const parser = new LogParser();
      this.onState("live", "live");
      for await (const data of events(response)) {
        const event = parser.parse(data);
        if (event !== null) this.onEvents([event]);
        this.#wait = RETRY.first;
      }
      throw new ApiError("The server has ended the stream.");
    } catch (error) {
      if (this.#controller !== controller) return; // it was closed, or opened anew
      this.#controller = null;
      this.#asked = true; // for a key: not over and over
      if (error.status === 404) {
        this.#wanted = false;
        this.onState("failed", "This server shows no live schedule.");
        return;
      }
      const again = Math.max(this.#wait, (error.retryAfter ?? 0) * 1e3);
      this.#wait = Math.min(this.#wait * 2, RETRY.most);
      this.onState("failed", `${error.message} Trying again in ${Math.round(again / 1e3)} s.`);
      this.#timer = setTimeout(() => this.#reconsider(), again);
    }
  }
}

/**
 * Read recorded logs, in pieces, so that the page stays usable and large files need no memory of their own.
 * Several files are parts of one run (run.log, run.log.1, ...), in any order. onEvents(events) gets what was read;
 * onProgress(share). Resolves to {nLines, unknown, cut}. Throws LogError; its message begins with the file's name.
 */
export async function readFiles(files, onEvents, onProgress, signal) {
  const parts = await Promise.all(files.map(async (file) => ({ file, part: await partOf(file) })));
  parts.sort((a, b) => a.part - b.part);
  const size = parts.reduce((sum, { file }) => sum + file.size, 0);
  const parser = new LogParser();
  let read = 0;
  let nLines = 0;
  let cut = false;
  for (const { file } of parts) {
    const lines = new Lines();
    const decoder = new TextDecoder();
    const reader = file.stream().getReader();
    let line = 0;
    try {
      for (;;) {
        signal?.throwIfAborted();
        const { done, value } = await reader.read();
        if (done) break;
        read += value.byteLength;
        const batch = [];
        try {
          for (const text of lines.push(decoder.decode(value, { stream: true }))) {
            line += 1;
            const event = parser.parse(text, line);
            if (event !== null) batch.push(event);
          }
        } finally {
          onEvents(batch); // also what stands before a line that is wrong
        }
        onProgress(size ? read / size : 1);
        await new Promise((resume) => setTimeout(resume)); // the page may draw, and be used
      }
    } catch (error) {
      if (error instanceof LogError) error.message = `${file.name}, ${error.message}`;
      throw error;
    } finally {
      reader.cancel().catch(() => {});
    }
    cut = lines.rest !== ""; // as a killed server leaves it
    nLines += line;
    if (line === 0) throw new LogError(1, `${file.name}: is empty or cut short: this is no schedule log`);
  }
  return { nLines, unknown: parser.unknown, cut };
}

/** The number of a part, by its header; 0 if it has none, which reading it will tell. */
async function partOf(file) {
  const head = await file.slice(0, 4096).text();
  const found = /"part":(\d+)/.exec(head);
  return found === null ? 0 : Number(found[1]);
}
