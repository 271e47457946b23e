// The page: its tabs, colours, the key, and the served model's name.

import { key, onKeyNeeded, request, servedModel } from "./api.js";
import { Chat } from "./chat.js";
import { RequestsTable } from "./requests_table.js";
import { ScheduleView } from "./schedule_view.js";

const RECONNECT_MS = 2000;
const VIEWS = ["chat", "schedule", "requests"];
const element = (id) => document.getElementById(id);

let model = "";
const host = { model: () => model, announce, connect };
const chat = new Chat(host);
const schedule = new ScheduleView(host);
const table = new RequestsTable();

function announce(text) {
  element("announce").textContent = text;
}

/** Learn the model's name; again until the server answers. */
let connecting = null;
function connect() {
  connecting ??= learn().finally(() => (connecting = null));
  return connecting;
}

async function learn() {
  try {
    const served = await servedModel();
    model = served?.id ?? "";
    element("model").textContent = `${model} · context ${served?.max_model_len?.toLocaleString("en") ?? "?"}`;
    element("model").title = model;
    const health = await request("health").then((response) => response.json(), () => ({}));
    schedule.setReplicas(health.replicas?.length ?? 1);
    schedule.watch();
  } catch (error) {
    element("model").textContent = error.status === 401 ? "an API key is needed" : error.message;
    element("key-open").hidden = key.get() === null && error.status !== 401;
    if (error.status !== 401 && model === "") setTimeout(connect, RECONNECT_MS);
  }
}

// Tabs, as the address has them after #.

function open(view, focus = false) {
  const chosen = VIEWS.includes(view) ? view : "chat";
  for (const name of VIEWS) {
    const tab = element(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === chosen));
    tab.tabIndex = name === chosen ? 0 : -1;
    element(name).hidden = name !== chosen;
    if (name === chosen && focus) tab.focus();
  }
  schedule.show(chosen === "schedule");
  table.show(chosen === "requests");
}

for (const name of VIEWS) {
  element(`tab-${name}`).addEventListener("click", () => (location.hash = name));
  element(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    const next = VIEWS[(VIEWS.indexOf(name) + step + VIEWS.length) % VIEWS.length];
    history.replaceState(null, "", `#${next}`);
    open(next, true);
  });
}
const fromAddress = () => location.hash.slice(1);
addEventListener("hashchange", () => {
  if (fromAddress() === "main") element("main").focus();
  else open(fromAddress());
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  element("main").focus();
});

// Colours: the system's, or the user's choice, which this browser remembers (theme.js).

const theme = window.orcaTheme;
element("theme").value = theme.chosen();
if (element("theme").value === "") element("theme").value = "auto";
element("theme").addEventListener("change", (event) => theme.choose(event.target.value));
theme.changed = () => schedule.themeChanged();

// The key: asked for when the server does, kept for this tab alone.

const dialog = element("key-dialog");
let asking = null;

function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    element("key-why").textContent = wrong ? "The server does not know this key." : "This server asks for a key.";
    element("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use"), { once: true });
    dialog.showModal();
  }).finally(() => {
    asking = null;
    element("key-open").hidden = false;
  });
  return asking;
}

element("key-form").addEventListener("submit", (event) => {
  if (event.submitter?.value !== "use") return;
  const value = element("key").value.trim();
  const problem = value === "" ? "Enter a key." : key.problem(value);
  if (problem !== null) {
    event.preventDefault();
    element("key-why").textContent = problem;
    return;
  }
  key.set(value);
});
element("key-open").addEventListener("click", async () => {
  if (await askForKey(false)) connect();
});
onKeyNeeded(askForKey);

open(fromAddress());
connect();
