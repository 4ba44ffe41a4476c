// A conversation as a tree of turns. A turn is what the user sent and its answer; turns with one parent are branches.

export class Turn {
  constructor(parent, input) {
    this.parent = parent;
    this.input = input; // items of the Responses API
    this.response = null; // the response object, once there is one
    this.isRefused = false; // the daemon refused it: it would refuse what follows too, so it is not sent again
    this.children = [];
    this.shown = null; // the child whose branch is shown
  }

  add(turn) {
    this.children.push(turn);
    this.shown = turn;
    return turn;
  }

  // Whether the daemon can continue the answer by its id.
  get isContinuable() {
    return Boolean(this.response?.id) && this.response.status !== "failed";
  }

  get branches() {
    return this.parent.children;
  }

  get userText() {
    const last = this.input.at(-1);
    return last?.type === "message" && last.role === "user" ? textOf(last) : null;
  }
}

export function textOf(item) {
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).map((part) => part.text ?? "").join("");
}

// `media`: parts with images and sounds, which stand before the text.
export function userItem(text, media = []) {
  const content = media.length ? [...media, ...(text ? [{ type: "input_text", text }] : [])] : text;
  return { type: "message", role: "user", content };
}

export function mediaOf(item) {
  const parts = Array.isArray(item.content) ? item.content : [];
  return item.role === "user" ? parts.filter((part) => part.type === "input_image" || part.type === "input_audio") : [];
}

// An item without what only the daemon gives it. Reasoning is not sent back.
function bare(item) {
  if (item.type === "message") return { ...userItem(textOf(item), mediaOf(item)), role: item.role };
  const { id, status, ...rest } = item;
  return rest;
}

const NUMBERS = { temperature: [0, 2], top_p: [0, 1], max_output_tokens: [1, 2 ** 31 - 1] };

// Returns the settings that an object has: fields of a create, without those that are empty or wrong.
export function readSettings(source) {
  const settings = {};
  const text = source?.instructions;
  if (typeof text === "string" && text.trim()) settings.instructions = text.trim();
  for (const [name, [least, most]] of Object.entries(NUMBERS)) {
    const value = source?.[name];
    if (typeof value !== "number" || !(value >= least && value <= most)) continue;
    if (name !== "max_output_tokens" || Number.isInteger(value)) settings[name] = value;
  }
  return settings;
}

// A response says what it was made with, and not what was asked for. So the sampling settings are noted in its metadata.
function noteOf({ instructions, ...sampling }) {
  return Object.keys(sampling).length ? { metadata: { sampling: JSON.stringify(sampling) } } : {};
}

function storedSettings({ instructions, metadata }) {
  try {
    return readSettings({ ...JSON.parse(metadata?.sampling ?? "{}"), instructions });
  } catch {
    return readSettings({ instructions }); // another program's note
  }
}

export class Conversation {
  constructor(settings = {}) {
    this.root = new Turn(null, []);
    this.settings = settings; // fields of a create: instructions and sampling
  }

  static ofStored(id, turns) {
    const conversation = new Conversation();
    const known = new Map();
    for (const { input, response } of turns) {
      const turn = new Turn(known.get(response.previous_response_id) ?? conversation.root, input);
      turn.response = response;
      turn.parent.add(turn);
      known.set(response.id, turn);
      conversation.settings = storedSettings(response);
    }
    // The branch that was continued last is shown.
    for (let turn = [...known.values()].at(-1); turn?.parent; turn = turn.parent) turn.parent.shown = turn;
    return conversation;
  }

  // The turns of the branch that is shown, the first one first.
  get path() {
    const turns = [];
    for (let turn = this.root.shown; turn; turn = turn.shown) turns.push(turn);
    return turns;
  }

  get last() {
    return this.path.at(-1) ?? this.root;
  }

  get all() {
    const found = [];
    const rest = [...this.root.children];
    while (rest.length) {
      const turn = rest.pop();
      found.push(turn);
      rest.push(...turn.children);
    }
    return found;
  }

  get isEmpty() {
    return this.root.children.length === 0;
  }

  get title() {
    return this.root.shown?.userText || "Conversation";
  }

  // The fields of a create that answers `input` behind the turn `parent`. `isWhole`: with all earlier items, for a
  // daemon that does not have them any more. `isNew`: by a model, even if an answer is kept.
  fields(parent, input, { isWhole = false, isNew = false } = {}) {
    const items = [...input];
    let turn = parent;
    for (; turn !== this.root && (isWhole || !turn.isContinuable); turn = turn.parent) {
      if (turn.isRefused) continue;
      items.unshift(...turn.input, ...(turn.response?.output ?? []).filter((item) => item.type !== "reasoning"));
    }
    return {
      input: items.map(bare),
      ...(turn === this.root ? {} : { previous_response_id: turn.response.id }),
      ...this.settings,
      ...noteOf(this.settings),
      ...(isNew ? { edgeagent: { answers: "none" } } : {}),
    };
  }

  exported() {
    return {
      format: "edgeagent-conversation-1",
      title: this.title,
      settings: this.settings,
      turns: this.path.filter((turn) => !turn.isRefused).map((turn) => ({ input: turn.input.map(bare), output: (turn.response?.output ?? []).map(bare) })),
    };
  }

  // Returns the conversation of an exported file; throws an Error that says what is wrong.
  static imported(file) {
    if (file?.format !== "edgeagent-conversation-1" || !Array.isArray(file.turns)) {
      throw new Error("This file is not a conversation that this page exported.");
    }
    const conversation = new Conversation();
    // An older file has the instructions alone.
    conversation.settings = readSettings(file.settings ?? file);
    let parent = conversation.root;
    for (const { input, output } of file.turns) {
      if (!Array.isArray(input) || !Array.isArray(output)) throw new Error("A turn of this file has no items.");
      const turn = parent.add(new Turn(parent, input.filter(isItem)));
      turn.response = { id: null, status: "completed", output: output.filter(isItem) };
      parent = turn;
    }
    return conversation;
  }
}

// Whether an item of a file can be shown.
function isItem(item) {
  if (!isObject(item) || typeof item.type !== "string") return false;
  const { content } = item;
  if (typeof content === "string") return item.type === "message";
  return (content ?? null) === null || (Array.isArray(content) && content.every(isObject));
}

function isObject(value) {
  return typeof value === "object" && value !== null;
}
