// The element of one answer: reasoning and calls folded, text as Markdown, and how it was made.

import { textOf } from "./conversation.js";
import { GrowingText, ago, button, h, inFrame, milliseconds, number, replace } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { ask } from "./session.js";

const ORIGINS = {
  exact: "kept answer",
  similar: "kept answer to a similar question",
  joined: "answer shared with an equal question",
};

export class AnswerView {
  constructor() {
    this.parts = h("div", { class: "parts" });
    this.notice = h("p", { class: "notice", hidden: true });
    this.facts = h("p", { class: "facts" });
    this.element = h("div", { class: "answer" }, this.parts, this.notice, this.facts);
    this.open = null; // the part that grows: {kind, add, finish}
    this.waiting = "";
    this.events = [];
  }

  // Shows the output of a response that has ended.
  showWhole(response) {
    for (const item of response.output) {
      if (item.type === "message") this.grow("text", textOf(item));
      else if (item.type === "reasoning") this.grow("reasoning", (item.content ?? []).map((part) => part.text).join(""));
      else if (item.type.endsWith("_call")) this.grow(`call ${item.name}`, item.arguments ?? item.input ?? "");
      this.finishPart();
    }
    this.end(response);
  }

  // Shows an event of a response that is being made, with the others of its frame.
  take(event) {
    if (this.events.push(event) === 1) inFrame(() => this.showEvents());
  }

  showEvents() {
    for (const event of this.events.splice(0)) this.show(event);
    this.flush();
  }

  show(event) {
    switch (event.type) {
      case "response.output_text.delta":
        return this.grow("text", event.delta);
      case "response.reasoning_text.delta":
        return this.grow("reasoning", event.delta);
      case "response.output_item.added":
        if (event.item.type.endsWith("_call")) this.grow(`call ${event.item.name}`, "");
        return undefined;
      case "response.function_call_arguments.delta":
      case "response.custom_tool_call_input.delta":
        return this.grow(this.open?.kind ?? "call", event.delta);
      case "response.output_item.done":
        return this.finishPart();
      case "response.compaction.compacting":
        return this.say("The earlier part of the conversation is being summarized.");
      case "response.queued":
        return this.say("Waiting.");
    }
    return undefined;
  }

  // Adds text to the part of this kind. `flush` shows it.
  grow(kind, text) {
    if (this.open?.kind !== kind) {
      this.finishPart();
      this.open = this.begin(kind);
      this.say("");
    }
    this.waiting += text;
  }

  flush() {
    if (this.waiting) this.open?.add(this.waiting);
    this.waiting = "";
  }

  begin(kind) {
    if (kind === "text") {
      const body = h("div", { class: "markdown" });
      this.parts.append(body);
      const view = new MarkdownView(body);
      return { kind, add: (text) => view.add(text), finish: () => view.finish() };
    }
    const label = kind === "reasoning" ? "Reasoning" : `Tool call: ${kind.slice(5)}`;
    const body = h("div", { class: "folded" });
    this.parts.append(h("details", {}, h("summary", {}, label), body));
    const text = new GrowingText(body);
    return { kind, add: (more) => text.append(more), finish: () => undefined };
  }

  finishPart() {
    this.flush();
    this.open?.finish();
    this.open = null;
  }

  // Shows what has come. No more will come.
  close() {
    this.showEvents();
    this.finishPart();
  }

  say(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  // `ttftMs` was measured here; without it, what the daemon measured is shown.
  end(response, ttftMs) {
    this.close();
    this.say(this.reasonOf(response));
    replace(this.facts, ...factsOf(response, ttftMs), ...this.originOf(response.edgeagent?.cache?.answer));
  }

  // Shows where an answer comes from that no model made for this question alone. A kept one can be forgotten.
  originOf(origin) {
    if (!origin) return [];
    const likeness = origin.similarity === undefined ? null : `similarity ${number(origin.similarity, 2)}`;
    const age = origin.id ? ` ${ago(origin.age_s)} old` : "";
    const facts = [h("span", { title: likeness }, h("b", {}, ORIGINS[origin.kind] ?? origin.kind), age)];
    if (origin.id) {
      const label = "This answer is wrong: forget it";
      const press = (event) => this.forget(origin.id, event.currentTarget);
      facts.push(button("👎", press, { class: "quiet forget", title: label, "aria-label": label }));
    }
    return facts;
  }

  async forget(id, pressed) {
    try {
      await ask(`/edgeagent/answers/${id}`, { method: "DELETE" });
    } catch (error) {
      if (error.status !== 404) return this.say(error.message); // with 404 it was forgotten before
    }
    pressed.textContent = "Forgotten";
    pressed.setAttribute("aria-label", "Forgotten");
    return this.say("This answer is forgotten.");
  }

  reasonOf(response) {
    if (response.status === "failed") return response.error?.message ?? "The answer failed.";
    if (response.status !== "incomplete" && response.status !== "cancelled") return "";
    const reason = response.incomplete_details?.reason;
    return reason === "max_output_tokens" ? "Cut at the length limit." : "Stopped.";
  }
}

function factsOf(response, ttftMs) {
  const facts = [];
  const add = (label, value, title) => facts.push(h("span", { title }, h("b", {}, value), ` ${label}`));
  const first = ttftMs ?? response.edgeagent?.stages_ms?.first_token;
  if (first !== undefined) add("to the first token", milliseconds(first));
  const speed = response.timings?.predicted_per_second;
  if (speed) add("tokens/s", number(speed, speed < 20 ? 1 : 0), `${response.timings.predicted_n} tokens`);
  const usage = response.usage;
  if (usage) add("tokens cached", `${usage.input_tokens_details.cached_tokens} of ${usage.input_tokens}`);
  const run = response.edgeagent;
  if (run?.route) {
    const place = run.served_by && run.served_by !== run.route ? `${run.route} (${run.served_by})` : run.route;
    add(run.reason ? `· ${run.reason}` : "", place, stagesOf(run));
  }
  if (response.model) facts.push(h("span", {}, response.model));
  return facts;
}

function stagesOf(run) {
  return Object.entries(run.stages_ms ?? {}).map(([name, ms]) => `${name} ${milliseconds(ms)}`).join(", ");
}
