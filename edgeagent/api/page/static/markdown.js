// Shows a model's Markdown. The daemon parses each whole block; this file builds its elements.

import { button, GrowingText, h, inFrame, plain } from "./dom.js";
import { ask, isKiosk } from "./session.js";

const MAX_CHARS = 8000; // of one request; the daemon refuses more than 8192
const MAX_KEPT = 500;
const ELEMENTS = new Set(
  "p h1 h2 h3 h4 h5 h6 blockquote ul ol li em strong s table thead tbody tr th td a code pre hr br".split(" "),
);
const PATH = isKiosk ? "/edgeagent/kiosk/markdown" : "/edgeagent/page/markdown";
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
let kept = new Map();

function build(node) {
  if (typeof node === "string") return document.createTextNode(plain(node));
  const [tag, attributes, ...children] = node;
  const inside = children.map(build);
  if (!ELEMENTS.has(tag)) return h("span", {}, ...inside);
  switch (tag) {
    case "a":
      return link(attributes.href, inside);
    case "pre":
      return code(attributes.language, inside);
    case "table":
      return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, h("table", {}, ...inside));
    case "ol":
      return h("ol", { start: Number.isInteger(attributes.start) ? attributes.start : null }, ...inside);
    case "th":
    case "td":
      return h(tag, { class: attributes.align }, ...inside);
    default:
      // Headings of an answer are below those of the page.
      return h(/^h[1-4]$/.test(tag) ? `h${Number(tag[1]) + 2}` : tag, {}, ...inside);
  }
}

function link(href, inside) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return h("span", {}, ...inside);
  }
  if (isKiosk || !SCHEMES.has(url.protocol)) return h("span", {}, ...inside);
  return h("a", { href: url.href, title: plain(url.href), target: "_blank", rel: "noopener noreferrer" }, ...inside);
}

function code(language, inside) {
  const text = h("code", {}, ...inside);
  const copy = isKiosk ? null : button("Copy", () => copyText(copy, text.textContent), { class: "quiet copy" });
  const head = h("div", { class: "code-head" }, h("span", {}, language ?? ""), copy);
  return h("div", { class: "code" }, head, h("pre", { tabindex: 0, "aria-label": "Code", role: "region" }, text));
}

export async function copyText(pressed, text) {
  const label = pressed.textContent;
  try {
    await navigator.clipboard.writeText(text);
    pressed.textContent = "Copied";
  } catch {
    pressed.textContent = "Not copied";
  }
  setTimeout(() => (pressed.textContent = label), 1500);
}

// Returns the nodes of a text, or null if it must be shown as it is.
async function parsed(text) {
  if (text.length > MAX_CHARS) return null;
  const known = kept; // another one after forgetTexts
  if (known.has(text)) return known.get(text);
  const { nodes } = await ask(PATH, { body: { text } });
  known.set(text, nodes);
  if (known.size > MAX_KEPT) known.delete(known.keys().next().value);
  return nodes;
}

// Forgets the texts that were shown.
export function forgetTexts() {
  kept = new Map();
}

const LIST_ITEM = /^(?:[-*+]|\d{1,9}[.)])\s/;

// Cuts growing Markdown into whole blocks. A block ends at a blank line, if what follows does not continue it.
export class Blocks {
  constructor() {
    this.lines = [];
    this.unfinished = "";
    this.fence = null;
    this.isAfterBlank = false;
  }

  // Returns the blocks that became whole. `this.rest` is what is not whole yet.
  add(text) {
    const lines = (this.unfinished + text).split("\n");
    this.unfinished = lines.pop();
    const whole = [];
    for (const line of lines) this.take(line, whole);
    return whole;
  }

  finish() {
    const text = this.rest;
    this.lines = [];
    this.unfinished = "";
    this.fence = null;
    return text;
  }

  get rest() {
    return [...this.lines, this.unfinished].join("\n");
  }

  take(line, whole) {
    const fence = line.match(/^\s*(`{3,}(?=[^`]*$)|~{3,})/)?.[1];
    if (this.fence) {
      this.lines.push(line);
      if (fence?.startsWith(this.fence) && line.trim() === fence) {
        const isOuter = !/^\s/.test(line);
        this.fence = null;
        if (isOuter) this.end(whole);
      }
      return;
    }
    if (this.endsBefore(line, fence)) this.end(whole);
    this.isAfterBlank = !line.trim();
    this.lines.push(line);
    this.fence = fence ?? null;
  }

  endsBefore(line, fence) {
    if (this.lines.length === 0 || /^\s/.test(line) || !line) return false;
    if (fence) return true;
    const isOfList = LIST_ITEM.test(line) && this.lines.some((earlier) => LIST_ITEM.test(earlier));
    return this.isAfterBlank && !isOfList;
  }

  end(whole) {
    whole.push(this.lines.join("\n"));
    this.lines = [];
    this.isAfterBlank = false;
  }
}

// Markdown that is shown while it grows: whole blocks with their elements, the rest as it is. Its methods are called
// within a frame.
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.blocks = new Blocks();
    this.tail = h("div", { class: "raw" });
    this.text = new GrowingText(this.tail);
    this.raw = []; // the whole blocks that are shown as they are, until they are built: {text, element}
    this.isBuilding = false;
    element.append(this.tail);
  }

  add(text) {
    const whole = this.blocks.add(text);
    if (whole.length === 0) {
      this.text.append(text);
      return;
    }
    for (const { text } of joined(whole)) this.show(text);
    this.text.clear();
    this.text.append(this.blocks.rest);
  }

  finish() {
    const rest = this.blocks.finish();
    this.text.clear();
    if (rest.trim()) this.show(rest);
  }

  show(text) {
    const element = h("div", { class: "block raw" });
    new GrowingText(element).append(text);
    this.tail.before(element);
    this.raw.push({ text, element });
    if (!this.isBuilding) this.build();
  }

  // Blocks that become whole while a request runs are asked for together in the next one.
  async build() {
    this.isBuilding = true;
    while (this.raw.length > 0) {
      const { text, num } = joined(this.raw.map((block) => block.text)).next().value;
      const nodes = await parsed(text).catch(() => null); // then the text stays as it is
      await new Promise((built) => inFrame(() => built(this.replace(num, nodes))));
    }
    this.isBuilding = false;
  }

  // Replaces the first raw blocks by one with these nodes.
  replace(num, nodes) {
    const [first, ...others] = this.raw.splice(0, num).map(({ element }) => element);
    if (nodes === null) return;
    for (const other of others) other.remove();
    first.replaceChildren(...nodes.map(build));
    first.classList.remove("raw");
  }
}

// Joins neighbouring texts up to the size of a request. Yields {text, num}: how many it has.
function* joined(texts) {
  let text = null;
  let num = 0;
  for (const each of texts) {
    if (text !== null && text.length + each.length >= MAX_CHARS) {
      yield { text, num };
      text = null;
      num = 0;
    }
    text = text === null ? each : `${text}\n\n${each}`;
    num += 1;
  }
  if (text !== null) yield { text, num };
}
