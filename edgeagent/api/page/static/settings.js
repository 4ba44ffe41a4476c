// The settings of a conversation, and presets: settings under a name. The browser keeps presets for all its windows.

import { readSettings } from "./conversation.js";
import { h, replace, saveFile } from "./dom.js";

const KEY = "edgeagent.presets";
const CHOSEN = "edgeagent.preset"; // that of new conversations
const FORMAT = "edgeagent-presets-1";
const MAX_NAME_CHARS = 80;
const byId = (id) => document.getElementById(id);

function read(file) {
  if (file?.format !== FORMAT || !Array.isArray(file.presets)) throw new Error("It has no presets of this page.");
  const named = file.presets.filter((each) => typeof each?.name === "string" && each.name.trim());
  const found = named.map((each) => [each.name.trim().slice(0, MAX_NAME_CHARS), readSettings(each)]);
  return new Map(found.sort(([a], [b]) => a.localeCompare(b)));
}

// Returns the settings of each preset by its name, in the order of the names.
function presets() {
  try {
    return read(JSON.parse(localStorage.getItem(KEY)));
  } catch {
    return new Map();
  }
}

function inFile(named) {
  return { format: FORMAT, presets: [...named].map(([name, settings]) => ({ name, ...settings })) };
}

export class Settings {
  // `tell` shows a sentence. `change` is called when a preset is chosen or a field has changed.
  constructor(tell, change) {
    this.tell = tell;
    this.change = change;
    this.form = byId("fields");
    this.form.addEventListener("change", () => this.changed());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    byId("preset").addEventListener("change", ({ target }) => this.choose(target.value));
    byId("saving").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save(byId("preset-name").value.trim());
    });
    byId("preset-delete").addEventListener("click", () => this.remove(byId("preset").value));
    byId("presets-export").addEventListener("click", () => saveFile("presets.json", inFile(presets())));
    byId("presets-import").addEventListener("click", () => byId("presets-file").click());
    byId("presets-file").addEventListener("change", ({ target }) => this.import(target));
    addEventListener("storage", ({ key }) => (key === KEY || key === null) && this.showPresets());
    this.show(this.initial);
  }

  // The settings of a new conversation: those of the preset that was chosen last.
  get initial() {
    return presets().get(localStorage.getItem(CHOSEN)) ?? {};
  }

  get values() {
    const { instructions, ...numbers } = Object.fromEntries(new FormData(this.form));
    // An empty field is NaN, which is no setting.
    return readSettings({ instructions, ...Object.fromEntries(Object.entries(numbers).map(([name, text]) => [name, parseFloat(text)])) });
  }

  // Returns whether every field can be sent. The browser says what is wrong.
  check() {
    if (this.form.checkValidity()) return true;
    this.form.closest("details").open = true;
    return this.form.reportValidity();
  }

  show(settings) {
    for (const field of this.form.elements) field.value = settings[field.name] ?? "";
    this.showPresets();
  }

  // The preset that has the settings which are shown is the chosen one.
  showPresets() {
    const settings = JSON.stringify(this.values);
    const named = presets();
    const chosen = [...named].find(([, each]) => JSON.stringify(each) === settings)?.[0] ?? "";
    const option = (name, label) => h("option", { value: name, selected: name === chosen }, label);
    replace(byId("preset"), option("", "None"), ...[...named.keys()].map((name) => option(name, name)));
    byId("preset-delete").disabled = !chosen;
  }

  choose(name) {
    localStorage.setItem(CHOSEN, name);
    this.show(presets().get(name) ?? {});
    this.change();
  }

  changed() {
    this.showPresets();
    this.change();
  }

  save(name) {
    if (!name || !this.check()) return;
    if (!this.store(new Map([...presets(), [name, this.values]]), `The preset ${name} is saved.`)) return;
    localStorage.setItem(CHOSEN, name);
    byId("preset-name").value = "";
  }

  remove(name) {
    const named = presets();
    named.delete(name);
    this.store(named, `The preset ${name} is deleted.`);
    byId("preset").focus(); // the button is disabled now
  }

  async import(input) {
    const file = input.files[0];
    input.value = "";
    if (!file) return;
    try {
      const added = read(JSON.parse(await file.text()));
      this.store(new Map([...presets(), ...added]), added.size === 1 ? "1 preset is imported." : `${added.size} presets are imported.`);
    } catch (error) {
      this.tell(`The file was not imported: ${error.message}`);
    }
  }

  // Returns whether the browser had room.
  store(named, said) {
    try {
      localStorage.setItem(KEY, JSON.stringify(inFile(named)));
    } catch {
      this.tell("The browser has no room for this preset.");
      return false;
    }
    this.showPresets();
    this.tell(said);
    return true;
  }
}
