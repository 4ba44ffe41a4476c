// What the JavaScript clients share; as cases.py.
export const URL_ = process.env.EDGEAGENT_URL ?? "http://127.0.0.1:8127";
export const BASE_URL = `${URL_}/v1`;
export const MODEL = "builtin";
export const KEY = "unused";
export const ASK_TIMER = "Set a timer for 7 minutes.";
const LIMIT_MS = 120_000;

const cases = [];
export const test = (name, run) => cases.push([name, run]);

export function assert(holds, what) {
  if (!holds) throw new Error(`not so: ${typeof what === "string" ? what : JSON.stringify(what)}`);
}

export async function main() {
  for (const [name, run] of cases) {
    const began = performance.now();
    let fault = "";
    let timer;
    try {
      const late = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error("took too long")), LIMIT_MS)));
      await Promise.race([run(), late]);
    } catch (error) {
      console.error(error);
      fault = `${error?.name}: ${error?.message}`.slice(0, 400) || "unknown";
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ case: name, fault, seconds: (performance.now() - began) / 1000 }));
  }
  process.exit(0);
}
