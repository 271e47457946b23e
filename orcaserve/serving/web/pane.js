// A pane of the playground: one conversation with settings of its own.

import { ApiError } from "./api.js";
import { ask, inFigures } from "./answer.js";
import { show } from "./text.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Pane {
  #controller = null;
  #settings;
  #list;
  #plain = false; // the model has no chat template
  #messages = []; // {role, content, element}

  /** host: {model(): name, announce(text), changed(), close(pane)} */
  constructor(template, host) {
    this.host = host;
    this.element = template.content.firstElementChild.cloneNode(true);
    this.#settings = this.element.querySelector(".settings");
    this.#list = this.element.querySelector(".messages");
    this.#button("stop").addEventListener("click", () => this.stop());
    this.#button("clear").addEventListener("click", () => this.clear());
    this.#button("close").addEventListener("click", () => host.close(this));
    this.#settings.addEventListener("input", () => this.#showChosen());
  }

  get busy() {
    return this.#controller !== null;
  }

  get empty() {
    return this.#messages.length === 0;
  }

  rename(name, alone) {
    this.name = name;
    this.element.querySelector("h2").textContent = name;
    this.element.setAttribute("aria-label", name);
    this.#list.setAttribute("aria-label", `${name}: conversation`);
    this.#button("close").hidden = alone;
  }

  send(text) {
    this.#add("user", text);
    return this.#answer();
  }

  stop() {
    this.#controller?.abort();
  }

  clear() {
    this.stop();
    this.#messages = [];
    this.#list.replaceChildren();
    this.host.changed();
  }

  #button(name) {
    return this.element.querySelector(`button.${name}`);
  }

  #field(name) {
    return this.#settings.querySelector(`[name=${name}]`);
  }

  #chosen() {
    const chosen = {};
    for (const name of NUMBERS) {
      const { valueAsNumber } = this.#field(name);
      if (Number.isFinite(valueAsNumber)) chosen[name] = valueAsNumber;
    }
    const stop = this.#field("stop").value.split("\n").filter((line) => line !== "");
    if (stop.length) chosen.stop = stop.map(unescaped);
    return chosen;
  }

  #showChosen() {
    const said = Object.entries(this.#chosen()).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
    if (this.#field("system").value.trim() !== "") said.unshift("system prompt");
    this.#settings.querySelector(".chosen").textContent = said.length ? `(${said.join(", ")})` : "";
  }

  #add(role, content) {
    const element = document.getElementById("message-template").content.firstElementChild.cloneNode(true);
    element.classList.add(role);
    element.querySelector("h3").textContent = role === "user" ? "You" : this.host.model();
    const message = { role, content, element };
    this.#messages.push(message);
    this.#list.append(element);
    show(element.querySelector(".text"), content);
    this.#offer();
    this.#list.scrollTop = this.#list.scrollHeight;
    return message;
  }

  /** What can be done with each message now. */
  #offer() {
    const lastAsked = this.#messages.findLast((message) => message.role === "user");
    this.#messages.forEach((message, i) => {
      const actions = message.element.querySelector(".actions");
      const offered = [];
      if (message.content !== "") offered.push(["Copy", () => this.#copy(message)]);
      if (message === lastAsked && !this.busy) offered.push(["Edit", () => this.#edit(message)]);
      if (i === this.#messages.length - 1 && message.role === "assistant" && !this.busy) {
        offered.push(["Retry", () => this.#retry()]);
      }
      const labels = offered.map(([label]) => label).join();
      if (actions.dataset.labels === labels) return;
      actions.dataset.labels = labels;
      actions.replaceChildren(...offered.map(([label, act]) => plainButton(label, act)));
    });
  }

  async #copy(message) {
    try {
      await navigator.clipboard.writeText(message.content);
      this.host.announce("Copied.");
    } catch {
      const range = document.createRange(); // no clipboard here (plain http, another host): select it
      range.selectNodeContents(message.element.querySelector(".text"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      this.host.announce("Selected: copy it with the keyboard.");
    }
  }

  #edit(message) {
    const text = message.element.querySelector(".text");
    const area = document.createElement("textarea");
    area.value = message.content;
    area.rows = Math.min(message.content.split("\n").length + 1, 12);
    area.setAttribute("aria-label", "Edit the message");
    const leave = () => {
      text.replaceChildren();
      show(text, message.content);
      delete message.element.querySelector(".actions").dataset.labels;
      this.#offer();
    };
    const save = () => {
      if (this.busy || area.value.trim() === "") return;
      message.content = area.value;
      leave();
      this.#cutAfter(message);
      this.#answer();
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    text.replaceChildren(area);
    message.element.querySelector(".actions").replaceChildren(plainButton("Send", save), plainButton("Cancel", leave));
    area.focus();
  }

  #retry() {
    this.#cutAfter(this.#messages.findLast((message) => message.role === "user"));
    return this.#answer();
  }

  #cutAfter(message) {
    for (const gone of this.#messages.splice(this.#messages.indexOf(message) + 1)) gone.element.remove();
  }

  async #answer() {
    if (this.busy) return;
    const controller = (this.#controller = new AbortController());
    const system = this.#field("system").value;
    const sent = this.#messages.filter((message) => message.content !== "").map(({ role, content }) => ({ role, content }));
    if (system.trim() !== "") sent.unshift({ role: "system", content: system });
    const message = this.#add("assistant", "");
    message.element.classList.add("writing");
    this.#button("stop").disabled = false;
    this.host.changed();
    const paint = this.#painter(message);
    try {
      const answer = await this.#ask(sent, controller.signal, paint);
      paint.now(answer);
      this.host.announce(`${this.name}: the answer is complete. ${inFigures(answer)}`);
    } catch (error) {
      paint.now();
      if (error.name === "AbortError") this.#stopped(message);
      else this.#failed(message, error);
    } finally {
      this.#controller = null;
      message.element.classList.remove("writing");
      this.#button("stop").disabled = true;
      this.#offer();
      this.host.changed();
    }
  }

  async #ask(sent, signal, paint) {
    const model = this.host.model();
    try {
      return await ask(model, sent, this.#chosen(), this.#plain, signal, paint);
    } catch (error) {
      if (error.code !== "no_chat_template" || this.#plain) throw error;
      this.#plain = true;
      this.host.announce("This model has no chat template: it continues your text.");
      return await ask(model, sent, this.#chosen(), true, signal, paint);
    }
  }

  /** Shows an answer as it grows, once a frame at most. */
  #painter(message) {
    let answer = null;
    let frame = 0;
    const list = this.#list;
    const show_ = () => {
      frame = 0;
      if (answer === null) return;
      const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
      message.content = answer.text;
      show(message.element.querySelector(".text"), answer.text);
      const line = message.element.querySelector(".figures-line");
      const plain = answer.plain ? "no chat template: plain continuation · " : "";
      line.textContent = plain + inFigures(answer);
      line.hidden = false;
      if (atEnd) list.scrollTop = list.scrollHeight;
    };
    const paint = (grown) => {
      answer = grown;
      frame ||= requestAnimationFrame(show_);
    };
    paint.now = (grown = answer) => {
      answer = grown;
      cancelAnimationFrame(frame);
      show_();
    };
    return paint;
  }

  #stopped(message) {
    const line = message.element.querySelector(".figures-line");
    line.textContent = [line.textContent, "stopped"].filter(Boolean).join(" · ");
    line.hidden = false;
    this.host.announce(`${this.name}: stopped.`);
  }

  #failed(message, error) {
    const problem = message.element.querySelector(".problem");
    problem.hidden = false;
    const text = document.createElement("span");
    text.textContent = error instanceof ApiError ? error.message : `The page failed: ${error.message}`;
    problem.replaceChildren(text);
    if (error.retryAfter !== null && error.retryAfter !== undefined) this.#countDown(message, problem, error.retryAfter);
  }

  /** The server has said when it is worth coming back. */
  #countDown(message, problem, seconds) {
    const due = performance.now() + seconds * 1e3;
    const again = plainButton("", () => {
      if (!this.busy && this.#messages.at(-1) === message) this.#retry();
    });
    again.classList.add("again");
    problem.append(" ", again);
    const tick = () => {
      const left = Math.ceil((due - performance.now()) / 1e3);
      again.disabled = left > 0;
      again.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
      if (left > 0 && again.isConnected) setTimeout(tick, 250);
    };
    tick();
  }
}

function plainButton(label, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain";
  button.textContent = label;
  button.addEventListener("click", act);
  return button;
}

/** "\n" and "\t" as somebody writes them on one line. */
function unescaped(text) {
  return text.replace(/\\(n|t|\\)/g, (_, what) => ({ n: "\n", t: "\t", "\\": "\\" })[what]);
}
