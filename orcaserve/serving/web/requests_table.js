// The live requests as a table: what the schedule shows, for who would rather read it.

import { request } from "./api.js";
import { count, span } from "./words.js";

const EVERY_MS = 3000;
const COLUMNS = [
  ["request", (r) => r.number ?? "–"],
  ["state", (r) => r.state],
  ["why it waits", (r) => r.why_waiting || "–"],
  ["age", (r) => span(r.age_seconds)],
  ["prompt", (r) => count(r.prompt_tokens ?? 0)],
  ["output", (r) => count(r.output_tokens ?? 0)],
  ["slots reserved", (r) => count(r.slots_reserved ?? 0)],
  ["used", (r) => count(r.slots_used ?? 0)],
  ["priority", (r) => r.priority ?? 0],
  ["client", (r) => r.client || "–"],
  ["path", (r) => r.endpoint ?? "–"],
  ["replica", (r) => r.replica ?? 0],
  ["id", (r) => (r.choice ? `${r.id} (${r.choice})` : r.id)],
];
const MOST_ROWS = 500;

export class RequestsTable {
  #timer = 0;
  #shown = false;
  #asked = false;
  #table = document.getElementById("requests-table");
  #notice = document.getElementById("requests-notice");

  constructor() {
    const row = this.#table.tHead.insertRow();
    for (const [name] of COLUMNS) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      row.append(cell);
    }
    document.addEventListener("visibilitychange", () => this.#again(0));
  }

  show(shown) {
    this.#shown = shown;
    this.#asked = false;
    this.#again(0);
  }

  #again(wait) {
    clearTimeout(this.#timer);
    if (this.#shown && !document.hidden) this.#timer = setTimeout(() => this.#refresh(), wait);
  }

  async #refresh() {
    try {
      const { data } = await (await request("v1/requests", { quiet: this.#asked })).json();
      this.#fill(data);
    } catch (error) {
      this.#notice.textContent = error.status === 404 ? "This server tells nothing of its live requests." : error.message;
      this.#asked = true;
    }
    this.#again(EVERY_MS);
  }

  #fill(requests) {
    const [body] = this.#table.tBodies;
    const waiting = requests.filter((each) => each.state === "waiting").length;
    const hidden = requests.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : "";
    this.#notice.textContent = requests.length
      ? `${count(requests.length, "live request")}, ${count(waiting)} of them waiting${hidden}.`
      : "Nobody waits, and nobody runs.";
    const shown = requests.slice(0, MOST_ROWS);
    while (body.rows.length > shown.length) body.deleteRow(-1);
    shown.forEach((each, i) => {
      const row = body.rows[i] ?? body.insertRow();
      COLUMNS.forEach(([, tell], column) => {
        const cell = row.cells[column] ?? row.insertCell();
        const text = String(tell(each));
        if (cell.textContent !== text) cell.textContent = text;
      });
    });
  }
}
