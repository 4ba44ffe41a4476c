// The chat: the list of conversations, the transcript, and the field in which one writes.

import { AnswerView } from "./answer.js";
import { Attachments, drawnPart } from "./attach.js";
import { Conversation, mediaOf, textOf, Turn, userItem } from "./conversation.js";
import { ago, button, h, plain, replace, saveFile } from "./dom.js";
import { copyText } from "./markdown.js";
import { ask } from "./session.js";
import { Settings } from "./settings.js";
import { isLast } from "./socket.js";

const byId = (id) => document.getElementById(id);

export class Chat {
  constructor(socket) {
    this.socket = socket;
    this.settings = new Settings((text) => this.tell(text), () => (this.typed = ""));
    this.conversation = new Conversation(this.settings.initial);
    this.openId = null; // the id of the conversation in the list
    this.running = null; // {turn, view, id, isStopped, isDeleted} of the answer that is being made
    this.typed = ""; // the message whose prompt was computed last
    this.isPrefilling = false;
    this.attachments = new Attachments({
      tell: (text) => this.tell(text),
      announce: (text) => this.announce(text),
      changed: () => {
        this.typed = "";
        this.prefill();
      },
    });
    this.isFollowing = true; // the end of the transcript stays in view
    this.growth = new ResizeObserver(() => this.follow());
    this.compose();
  }

  compose() {
    const message = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    message.addEventListener("input", () => {
      message.rows = Math.min(8, message.value.split("\n").length);
      this.prefill();
    });
    byId("transcript").addEventListener("scroll", ({ target }) => {
      this.isFollowing = target.scrollHeight - target.scrollTop - target.clientHeight < 40;
    });
    byId("stop").addEventListener("click", () => this.stop());
    // In a dialog, Escape closes the dialog only.
    addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && this.stop());
    byId("new").addEventListener("click", () => this.show(new Conversation(this.settings.initial)));
    byId("export").addEventListener("click", () => this.export());
    byId("import").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => this.import(event.target));
    byId("delete").addEventListener("click", () => this.delete());
    byId("list-toggle").addEventListener("click", () => this.toggleList());
  }

  // The connection is open: at the start, and again after the daemon was gone.
  connected() {
    this.typed = "";
    this.fillModels();
    this.list();
  }

  async fillModels() {
    const select = byId("model");
    const chosen = select.value || localStorage.getItem("edgeagent.model");
    const { data } = await ask("/v1/models").catch(() => ({ data: null }));
    if (data === null) return;
    const label = (model) => (model.edgeagent?.state === "ready" ? model.id : `${model.id} (${model.edgeagent?.state})`);
    // A list of the same models is kept, because it may be open.
    if (data.map((model) => model.id).join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
      replace(select, ...data.map((model) => h("option", { value: model.id, selected: model.id === chosen })));
    }
    data.forEach((model, index) => (select.options[index].textContent = label(model)));
    select.onchange = () => localStorage.setItem("edgeagent.model", select.value);
    select.onfocus = () => this.fillModels();
  }

  // ---- the list

  async list() {
    const { data } = await ask("/edgeagent/conversations").catch(() => ({ data: null }));
    if (data === null) return;
    const now = Date.now() / 1000;
    replace(
      byId("list"),
      ...data.map((entry) => {
        const isOpen = entry.id === this.openId ? "true" : null;
        const opener = button("", () => this.open(entry.id), { class: "entry", "aria-current": isOpen });
        opener.append(
          h("span", { class: "title" }, entry.title || "(no text)"),
          h("span", { class: "when" }, ago(Math.max(0, now - entry.last_at))),
        );
        return h("li", {}, opener);
      }),
    );
  }

  async open(id) {
    try {
      const { turns } = await ask(`/edgeagent/conversations/${encodeURIComponent(id)}`);
      this.show(Conversation.ofStored(id, turns), id);
    } catch (error) {
      this.tell(error.message);
    }
  }

  show(conversation, id = null) {
    this.stop();
    this.conversation = conversation;
    this.openId = id;
    this.typed = "";
    this.settings.show(conversation.settings);
    this.draw();
    this.toggleList(false);
    this.list();
    byId("message").focus();
  }

  toggleList(isOpen = !byId("side").classList.contains("open")) {
    byId("side").classList.toggle("open", isOpen);
    byId("list-toggle").setAttribute("aria-expanded", String(isOpen));
  }

  export() {
    this.conversation.settings = this.settings.values;
    saveFile("conversation.json", this.conversation.exported());
  }

  async import(input) {
    const file = input.files[0];
    input.value = "";
    if (!file) return;
    try {
      this.show(Conversation.imported(JSON.parse(await file.text())));
    } catch (error) {
      this.tell(`The file was not imported: ${error.message}`);
    }
  }

  async delete() {
    const stored = this.conversation.all.filter((turn) => turn.response?.id);
    if (!confirm("Delete this conversation, with all its branches?")) return;
    // An answer that is stopped is stored when it ends.
    if (this.running) this.running.isDeleted = true;
    this.stop();
    for (const turn of stored) await this.remove(turn.response);
    this.show(new Conversation(this.settings.initial));
  }

  async remove(response) {
    await ask(`/v1/responses/${response.id}`, { method: "DELETE" }).catch(() => undefined);
  }

  // ---- the transcript

  // Draws the turns of the shown branch behind the first `numKept` ones, which stay.
  draw(numKept = 0) {
    const transcript = byId("transcript");
    const turns = this.conversation.path;
    const hadFocus = transcript.contains(document.activeElement) && document.activeElement !== transcript;
    const kept = [...transcript.children].slice(0, numKept);
    const drawn = turns.slice(numKept).map((turn) => this.drawn(turn));
    replace(transcript, ...kept, ...drawn);
    if (turns.length === 0) replace(transcript, h("p", { class: "empty" }, "What would you like to know?"));
    // The control that had the focus may be gone.
    if (hadFocus && !transcript.contains(document.activeElement)) transcript.focus();
    this.growth.disconnect();
    this.growth.observe(transcript.lastElementChild);
    this.isFollowing = true;
    this.follow();
  }

  drawn(turn) {
    const view = new AnswerView();
    if (this.running?.turn === turn) this.running.view = view;
    else if (turn.response) view.showWhole(turn.response);
    return this.article(turn, view);
  }

  article(turn, view) {
    const sent = turn.input.map((item) => this.drawnInput(item)).filter(Boolean);
    const controls = h("div", { class: "controls" });
    const article = h("article", { class: "turn" }, ...sent, controls, view.element);
    const index = turn.branches.indexOf(turn);
    if (turn.branches.length > 1) {
      const go = (step) => () => this.switch(turn, turn.branches[index + step], step < 0 ? ".earlier" : ".later");
      controls.append(
        button("‹", go(-1), { class: "quiet earlier", "aria-label": "Earlier branch", disabled: index === 0 }),
        h("span", { class: "count" }, `${index + 1} of ${turn.branches.length}`),
        button("›", go(1), { class: "quiet later", "aria-label": "Later branch", disabled: index === turn.branches.length - 1 }),
      );
    }
    if (turn.userText !== null) controls.append(button("Edit", () => this.edit(turn, article), { class: "quiet" }));
    view.element.append(
      h(
        "div",
        { class: "controls" },
        button("Regenerate", () => this.regenerate(turn), { class: "quiet" }),
        button("Copy", (event) => copyText(event.currentTarget, answerText(turn)), { class: "quiet" }),
      ),
    );
    return article;
  }

  drawnInput(item) {
    if (item.type === "message") {
      const isUser = item.role === "user";
      const before = isUser ? mediaOf(item).map((part) => drawnPart(part)) : [h("b", {}, `${item.role}: `)];
      return h("div", { class: isUser ? "user" : "other" }, ...before, textOf(item));
    }
    if (!item.type.endsWith("_output")) return null;
    const output = typeof item.output === "string" ? item.output : JSON.stringify(item.output);
    return h("details", { class: "other" }, h("summary", {}, "Tool result"), h("div", { class: "folded" }, output));
  }

  // `pressed`: the selector of the button, which keeps the focus.
  switch(turn, other, pressed) {
    if (!other || this.running) return;
    const numKept = this.conversation.path.indexOf(turn);
    turn.parent.shown = other;
    this.draw(numKept);
    byId("transcript").children[numKept].querySelector(pressed).focus();
  }

  edit(turn, article) {
    if (this.running) return;
    const field = h("textarea", { rows: Math.min(8, turn.userText.split("\n").length + 1), "aria-label": "Edit the message" });
    field.value = turn.userText;
    const form = h(
      "form",
      {
        class: "edit",
        onsubmit: (event) => {
          event.preventDefault();
          if (!field.value.trim() || !this.canAnswer()) return;
          const item = userItem(field.value, mediaOf(turn.input.at(-1)));
          this.answer(turn.parent, [...turn.input.slice(0, -1), item]);
        },
      },
      field,
      h("div", { class: "row" }, h("button", { type: "submit" }, "Send"), button("Cancel", () => this.draw(), { class: "quiet" })),
    );
    [...article.querySelectorAll(".user")].at(-1).replaceWith(form);
    field.focus();
  }

  follow() {
    const transcript = byId("transcript");
    if (this.isFollowing) transcript.scrollTop = transcript.scrollHeight;
  }

  // For screen readers only.
  announce(text) {
    byId("said").className = "hidden-text";
    byId("said").textContent = plain(text);
  }

  // For everybody, until something else is said.
  tell(text) {
    byId("said").className = "notice";
    byId("said").textContent = plain(text);
  }

  // Whether an answer can be asked for now.
  canAnswer() {
    return !this.running && this.settings.check();
  }

  // ---- asking

  submit() {
    const message = byId("message");
    const text = message.value.trim();
    const media = this.attachments.parts;
    if (this.attachments.isReading) return this.tell("A file is still being read. Send the message again in a moment.");
    if ((!text && !media.length) || !this.canAnswer()) return;
    if (!this.socket.isOpen) return this.tell("The daemon does not answer. The message stays here.");
    message.value = "";
    message.rows = 1;
    this.attachments.clear();
    this.answer(this.conversation.last, [userItem(text, media)]);
  }

  regenerate(turn) {
    if (this.canAnswer()) this.answer(turn.parent, turn.input, { isNew: true });
  }

  // Computes the prompt of what is typed so far, so that its answer begins sooner. One is computed at a time, and then
  // what was typed meanwhile.
  prefill() {
    const text = byId("message").value.trim();
    const media = this.attachments.parts;
    // An image is sent once, when it is attached, and not with each letter.
    const typed = media.length ? "(media)" : text;
    if (!typed || typed === this.typed || this.running || this.isPrefilling || !this.socket.isOpen) return;
    this.typed = typed;
    this.isPrefilling = true;
    this.conversation.settings = this.settings.values;
    const fields = this.conversation.fields(this.conversation.last, [userItem(text, media)]);
    // It is not stored, so that the list does not show it.
    this.socket.create({ ...fields, ...this.chosenModel(), generate: false, store: false }, (event) => {
      if (!isLast(event)) return;
      this.isPrefilling = false;
      this.prefill();
    });
  }

  chosenModel() {
    const model = byId("model").value;
    return model ? { model } : {};
  }

  answer(parent, input, options) {
    this.conversation.settings = this.settings.values;
    const numKept = this.conversation.path.indexOf(parent) + 1;
    const turn = parent.add(new Turn(parent, input));
    const running = { turn, view: null, id: null, isStopped: false, isDeleted: false, sentMs: performance.now(), firstMs: undefined };
    this.running = running;
    this.typed = "";
    // It is sent before it is drawn: the daemon computes meanwhile.
    const fields = { ...this.conversation.fields(parent, input, options), ...this.chosenModel() };
    this.socket.create(fields, (event) => this.take(running, event, options));
    this.draw(numKept);
    this.showRunning();
  }

  take(running, event, options) {
    const { turn, view } = running;
    switch (event.type) {
      case "response.created":
        running.id = event.response.id;
        if (running.isStopped) this.socket.cancel(running.id);
        return;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        turn.response = event.response;
        view.end(event.response, running.firstMs);
        if (running.isDeleted) this.remove(event.response).then(() => this.list());
        this.ended(running, "The answer is complete.");
        return;
      case "error":
        return this.refused(running, event.error, options);
      case "lost":
        view.close();
        view.say("The connection was lost before the answer was complete. Regenerate it when the daemon is back.");
        turn.response = null;
        this.ended(running, "The connection was lost.");
        return;
    }
    if (event.type.endsWith(".delta")) running.firstMs ??= performance.now() - running.sentMs;
    view.take(event);
  }

  refused(running, error, options) {
    const { turn, view } = running;
    this.running = null;
    // The daemon has forgotten the earlier responses, so they are sent whole.
    if (error.code === "previous_response_not_found" && !options?.isWhole && !running.isStopped) {
      turn.parent.children.splice(turn.parent.children.indexOf(turn), 1);
      return this.answer(turn.parent, turn.input, { ...options, isWhole: true });
    }
    turn.isRefused = true;
    view.close();
    view.say(error.message);
    this.ended(running, error.message);
    return undefined;
  }

  ended(running, said) {
    if (this.running === running) this.running = null;
    this.showRunning();
    this.announce(said);
    this.openId ??= this.conversation.root.shown?.response?.id ?? null;
    this.list();
    this.fillModels(); // the answer may have loaded one
  }

  stop() {
    if (!this.running) return;
    this.running.isStopped = true;
    if (this.running.id) this.socket.cancel(this.running.id);
  }

  showRunning() {
    const isRunning = this.running !== null;
    const [shown, hidden] = isRunning ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
    const hadFocus = hidden === document.activeElement;
    shown.hidden = false;
    hidden.hidden = true;
    if (hadFocus) shown.focus();
    byId("transcript").setAttribute("aria-busy", String(isRunning));
  }
}

function answerText(turn) {
  return (turn.response?.output ?? []).filter((item) => item.type === "message").map(textOf).join("\n\n");
}
