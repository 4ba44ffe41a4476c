// The kiosk's page: the conversation of one visitor, which is forgotten when nobody has touched the page for a while.

import { AnswerView } from "./answer.js";
import { Conversation, Turn, userItem } from "./conversation.js";
import { button, h, plain, replace } from "./dom.js";
import { forgetTexts } from "./markdown.js";
import { ask, enter } from "./session.js";
import { Socket } from "./socket.js";

const PATH = "/edgeagent/kiosk";
const MAX_SENT = 49; // messages; the daemon takes 64. An odd number begins with a question.
const MAX_CHARS = 1000; // of a question
const MAX_SENT_CHARS = 32_000; // of an answer before the question; the daemon takes 32,768
const TYPING_MS = 150; // between two prompts that are computed while one types
const ASKED_AGAIN_S = 15; // so long before the end the page asks whether anybody is there
const byId = (id) => document.getElementById(id);

class Kiosk {
  constructor() {
    this.settings = null;
    this.usedMs = 0; // the last touch, key or piece of an answer
    this.growth = new ResizeObserver(() => this.isFollowing && this.transcript.scrollTo(0, this.transcript.scrollHeight));
    this.socket = new Socket((state) => this.show(state), { path: PATH, probe: PATH, longestWaitMs: 1000 });
    byId("again").addEventListener("click", () => this.reset());
    // A touch that scrolls ends with pointercancel.
    for (const type of ["pointerup", "pointercancel", "wheel", "keydown", "input"]) {
      addEventListener(type, () => this.renew(), { capture: true, passive: true });
    }
    setInterval(() => this.look(), 1000);
    this.socket.connect();
  }

  show(state) {
    const said = {
      offline: "One moment, please. This kiosk is starting again.",
      locked: "This browser has no access to the kiosk. Start it with `edgeagent kiosk`.",
    };
    byId("offline").textContent = said[state] ?? "";
    byId("offline").hidden = !said[state];
    if (state === "open") this.connected();
  }

  // The connection is open: at the start, for each visitor, and after the daemon was gone.
  async connected() {
    const isFirst = this.settings === null;
    this.settings = await ask(PATH).catch(() => this.settings);
    if (this.settings === null) return this.socket.restart();
    if (isFirst) this.draw();
    if (this.running?.isLost) this.send(this.running);
    else this.prefill();
    return undefined;
  }

  // ---- forgetting

  renew() {
    this.usedMs = performance.now();
    byId("idle").close();
  }

  look() {
    if (!this.isUsed) return;
    const idleS = (performance.now() - this.usedMs) / 1000;
    const limitS = this.settings.idle_reset_s;
    if (idleS >= limitS) this.reset();
    else if (idleS >= limitS - Math.min(ASKED_AGAIN_S, limitS / 2) && !byId("idle").open) byId("idle").showModal();
  }

  // Forgets the visitor. The daemon does so when the connection ends.
  reset() {
    byId("idle").close();
    byId("said").textContent = "";
    forgetTexts();
    clearTimeout(this.typing);
    this.draw();
    this.socket.restart();
  }

  // ---- what is seen

  // Begins with nothing: no element of the last visitor stays, nor the history of what was typed.
  draw() {
    const { title, attract, questions, keyboard } = this.settings;
    this.isUsed = false;
    this.isFollowing = true; // the end of the transcript stays in view
    this.running = null; // {turn, article, view, id, isStopped, isLost, isAgain} of the answer that is being made
    this.conversation = new Conversation();
    document.title = title;
    byId("title").textContent = title;
    byId("again").hidden = true;
    this.transcript = h(
      "div",
      {
        ...{ id: "transcript", role: "log", "aria-label": "Conversation", tabindex: 0 },
        onscroll: ({ target }) => (this.isFollowing = target.scrollHeight - target.scrollTop - target.clientHeight < 60),
      },
      h(
        "div",
        { class: "attract" },
        h("p", {}, attract),
        h("div", { class: "questions" }, ...questions.map((text) => button(text, () => this.submit(text)))),
      ),
    );
    this.sendButton = h("button", { type: "submit", id: "send" }, "Send");
    this.stopButton = button("Stop", () => this.stop(), { id: "stop", hidden: true });
    this.field = this.newField(keyboard.length > 0);
    this.keys = keyboard.length > 0 ? keysFor(this.field, keyboard) : null;
    const form = h("form", { id: "composer", onsubmit: (event) => this.submitField(event) });
    form.append(this.field, this.sendButton, this.stopButton);
    replace(byId("stage"), this.transcript, form, this.keys);
    if (!this.keys) this.field.focus();
  }

  newField(hasKeys) {
    return h("textarea", {
      ...{ id: "message", rows: 1, maxlength: MAX_CHARS, placeholder: "Your question", "aria-label": "Your question" },
      ...{ autocomplete: "off", autocapitalize: "off", spellcheck: "false", enterkeyhint: "send" },
      inputmode: hasKeys ? "none" : null,
      onfocus: () => this.keys && (this.keys.hidden = false),
      onkeydown: (event) => event.key === "Enter" && !event.isComposing && this.submitField(event),
      oninput: () => this.typed(),
    });
  }

  use() {
    this.isUsed = true;
    byId("again").hidden = false;
  }

  // ---- asking

  typed() {
    this.use();
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      const text = this.field.value.trim();
      if (text && !this.running) this.prefill(userItem(text));
    }, TYPING_MS);
  }

  prefill(...items) {
    this.socket.create({ input: this.messages(...items), generate: false }, () => undefined);
  }

  submitField(event) {
    event.preventDefault();
    const text = this.field.value.trim();
    if (!text || this.running) return;
    this.field.value = "";
    if (this.keys) {
      this.keys.hidden = true;
      this.field.blur();
    }
    this.submit(text);
  }

  submit(text) {
    if (this.running) return;
    clearTimeout(this.typing);
    this.use();
    if (this.conversation.isEmpty) this.transcript.replaceChildren();
    const parent = this.conversation.last;
    const turn = parent.add(new Turn(parent, [userItem(text)]));
    const article = h("article", { class: "turn" }, h("div", { class: "user" }, text));
    this.transcript.append(article);
    this.running = { turn, article, view: null, id: null, isStopped: false, isLost: false, isAgain: false };
    this.send(this.running);
  }

  send(running) {
    running.isLost = false;
    running.id = null; // a cancel with the id of the lost answer would stop nothing
    running.view?.element.remove();
    running.view = new AnswerView();
    running.article.append(running.view.element);
    this.growth.disconnect();
    this.growth.observe(running.article);
    this.growth.observe(this.transcript); // it becomes smaller when the keys are shown
    this.showRunning();
    this.socket.create({ input: this.messages() }, (event) => this.running === running && this.take(running, event));
  }

  // The conversation, and an item that is not in it yet.
  messages(...items) {
    const { input } = this.conversation.fields(this.conversation.last, items, { isWhole: true });
    const messages = input.filter((item) => item.type === "message").slice(-MAX_SENT);
    return messages.map((item) => ({ ...item, content: item.content.slice(0, MAX_SENT_CHARS).toWellFormed() }));
  }

  take(running, event) {
    const { turn, view } = running;
    switch (event.type) {
      case "response.created":
        running.id = event.response.id;
        return;
      case "response.completed":
      case "response.incomplete":
        // The daemon stops; its next one answers.
        if (isCut(event.response) && !running.isStopped) return this.lost(running);
        turn.response = event.response;
        view.end(event.response);
        if (!event.response.output.some((item) => item.type === "message")) this.drop(turn);
        this.ended("The answer is complete.");
        return;
      case "response.failed":
      case "error":
        return this.failed(running);
      case "lost":
        return this.lost(running);
    }
    if (event.type.endsWith(".delta")) this.usedMs = performance.now();
    view.take(event);
  }

  // The page asks again by itself, once, when it is connected again.
  lost(running) {
    if (running.isAgain) return this.failed(running);
    running.isLost = running.isAgain = true;
    if (this.socket.isOpen) this.socket.restart();
    return undefined;
  }

  failed(running) {
    const { turn, view } = running;
    view.close();
    view.say("Sorry, that did not work. Please ask again.");
    this.drop(turn);
    this.ended("Sorry, that did not work.");
  }

  // Leaves a turn without an answer out of the conversation. Its elements stay.
  drop(turn) {
    turn.parent.children.pop();
    turn.parent.shown = null;
  }

  ended(said) {
    this.running = null;
    this.showRunning();
    byId("said").textContent = plain(said);
  }

  stop() {
    if (!this.running?.id) return;
    this.running.isStopped = true;
    this.socket.cancel(this.running.id);
  }

  showRunning() {
    this.sendButton.hidden = this.running !== null;
    this.stopButton.hidden = this.running === null;
    this.transcript.setAttribute("aria-busy", String(this.running !== null));
    this.usedMs = performance.now();
  }
}

function isCut(response) {
  return response.status !== "completed" && response.incomplete_details?.reason !== "max_output_tokens";
}

// Keys on the screen. `rows`: the characters of each row.
function keysFor(field, rows) {
  const change = (text, from) => {
    if (field.value.length + text.length > MAX_CHARS) return;
    field.setRangeText(text, from, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const write = (text) => () => change(text, field.selectionStart);
  const remove = () => change("", Math.max(0, Math.min(field.selectionStart, field.selectionEnd - 1)));
  // The field keeps the focus.
  const key = (label, onclick, attributes) =>
    button(label, onclick, { onpointerdown: (event) => event.preventDefault(), ...attributes });
  const row = (...keys) => h("div", { class: "keys" }, ...keys);
  return h(
    "div",
    { id: "keys", role: "group", "aria-label": "Keyboard", hidden: true },
    ...rows.map((characters) => row(...[...characters].map((each) => key(each, write(each))))),
    row(key("?", write("?")), key("Space", write(" "), { class: "wide" }), key("⌫", remove, { "aria-label": "Delete" })),
  );
}

// No way out: no menu, clipboard, dropped file, or command of the browser.
for (const type of ["contextmenu", "copy", "cut", "dragstart", "dragover", "drop"]) {
  addEventListener(type, (event) => event.preventDefault());
}
// A larger or smaller page would stay for the next visitor.
addEventListener("wheel", (event) => event.ctrlKey && event.preventDefault(), { passive: false });
addEventListener("keydown", (event) => {
  const isCommand = (event.ctrlKey || event.altKey || event.metaKey) && !event.getModifierState("AltGraph");
  if (isCommand || /^F\d+$/.test(event.key)) event.preventDefault();
});
// Without the token of a link that works, the page says so.
await enter().catch(() => undefined);
new Kiosk();
