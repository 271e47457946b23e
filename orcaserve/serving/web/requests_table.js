// The live requests as a table: what the schedule shows, for who would rather read it.

import { request } from "./api.js";
import { count, span } from "./words.js";

const EVERY_MS = 3000;
const COLUMNS = [
  ["request", (r) => r.number ?? "–"],
  ["state", (r) => r.state],
  ["age", (r) => span(r.age_seconds)],
  ["prompt", (r) => count(r.prompt_tokens ?? 0)],
  ["output", (r) => count(r.output_tokens ?? 0)],
  ["slots reserved", (r) => count(r.slots_reserved ?? 0)],
  ["used", (r) => count(r.slots_used ?? 0)],
  ["why it waits", (r) => r.why_waiting || "–", "wordy"],
  ["priority", (r) => r.priority ?? 0],
  ["client", (r) => r.client || "–"],
  ["path", (r) => r.endpoint ?? "–"],
  ["replica", (r) => r.replica ?? 0],
  ["id", (r) => (r.choice ? `${r.id} (${r.choice})` : (r.id ?? "–"))],
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
      const { data, total } = await (await request("v1/requests", { quiet: this.#asked })).json();
      this.#fill(data, total ?? data.length);
    } catch (error) {
      this.#notice.textContent = error.status === 404 ? "This server tells nothing of its live requests." : error.message;
      this.#asked = true;
    }
    this.#again(EVERY_MS);
  }

  #fill(requests, total) {
    const [body] = this.#table.tBodies;
    const waiting = requests.filter((each) => each.state === "waiting").length;
    const shown = requests.slice(0, MOST_ROWS);
    const hidden = total > shown.length ? `; ${count(shown.length)} are shown` : `, ${count(waiting)} of them waiting`;
    this.#notice.textContent = requests.length
      ? `${count(total, "live request")}${hidden}.`
      : "Nobody waits, and nobody runs.";
    while (body.rows.length > shown.length) body.deleteRow(-1);
    shown.forEach((each, i) => {
      const row = body.rows[i] ?? body.insertRow();
      COLUMNS.forEach(([, tell, kind = ""], column) => {
        const cell = row.cells[column] ?? row.insertCell();
        cell.className = kind;
        const text = String(tell(each));
        if (cell.textContent !== text) cell.textContent = text;
      });
    });
  }
}
