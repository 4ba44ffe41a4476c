// Builds elements from text. Nothing here, or elsewhere on the page, makes HTML from a string.

// Characters that reorder the text around them. A hostile text could use them to show a link as another one.
const REORDERING = /[\u202A-\u202E\u2066-\u2069]/g;

export function plain(text) {
  return String(text).replace(REORDERING, "");
}

// Returns an element. An attribute that begins with "on" is a listener; null and false leave an attribute out.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : plain(child));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, label);
}

// Lets the user save an object as a JSON file.
export function saveFile(name, content) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Text that grows. It is cut into pieces, so that a very long line is not laid out again for each word.
const PIECE_CHARS = 4096;

export class GrowingText {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren();
    this.last = null;
  }

  append(text) {
    let rest = plain(text);
    while (rest) {
      if (this.last === null || this.last.data.length >= PIECE_CHARS) {
        const piece = h("div", { class: "piece" });
        this.last = document.createTextNode("");
        piece.append(this.last);
        this.element.append(piece);
      }
      const room = PIECE_CHARS - this.last.data.length;
      this.last.appendData(rest.slice(0, room));
      rest = rest.slice(room);
    }
  }
}

// Changes of what grows are made together, in one frame, and at most 30 times a second: each draws the whole window, on
// the machine that also computes the answer.
const LEAST_MS = 30;
let changes = [];
let changedMs = 0;

export function inFrame(change) {
  if (changes.push(change) === 1) requestAnimationFrame(makeChanges);
}

function makeChanges(frameMs) {
  if (frameMs - changedMs < LEAST_MS) {
    requestAnimationFrame(makeChanges);
    return;
  }
  changedMs = frameMs;
  const all = changes;
  changes = [];
  for (const change of all) change();
}

// Not by toLocaleString: its first call takes 25 ms, which is a late frame at the end of the first answer.
export function number(value, digits = 0) {
  const [whole, fraction] = value.toFixed(digits).split(".");
  const rest = fraction?.replace(/0+$/, "");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? `.${rest}` : "");
}

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${number(value, unit === "B" ? 0 : 1)} ${unit}`;
    value /= 1024;
  }
}

export function milliseconds(value) {
  return value >= 1000 ? `${number(value / 1000, 2)} s` : `${number(value, value < 10 ? 1 : 0)} ms`;
}

export function ago(seconds) {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}
