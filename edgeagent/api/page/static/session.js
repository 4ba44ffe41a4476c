// This browser's token, and requests to the daemon.

const KEY = "edgeagent.token";

// The page for visitors: it has no links and no clipboard, and its token ends with its tab.
export const isKiosk = location.pathname === "/kiosk";

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }

  // Whether a new one-time link is needed.
  get isEntryNeeded() {
    return this.status === 401 || this.status === 403;
  }
}

// It is read each time: another tab may have got a newer one.
export function token() {
  return (isKiosk && sessionStorage.getItem(KEY)) || localStorage.getItem(KEY);
}

// Whether an event of the storage may have changed the token. Its key is null if all was cleared.
export function isTokenKey(key) {
  return key === KEY || key === null;
}

// Exchanges the secret of a one-time link in the address for a token; returns whether there was one.
export async function enter() {
  const link = location.hash.match(/^#link=([\w-]+)$/);
  if (!link) return false;
  history.replaceState(null, "", location.pathname);
  const answer = await ask("/edgeagent/page/token", { body: { secret: link[1] } });
  (isKiosk ? sessionStorage : localStorage).setItem(KEY, answer.token);
  return true;
}

function headers(hasBody) {
  const held = token();
  return {
    ...(held ? { Authorization: `Bearer ${held}` } : {}),
    ...(hasBody ? { "Content-Type": "application/json" } : {}),
  };
}

export async function request(path, { method, body, signal } = {}) {
  const init = { method: method ?? (body ? "POST" : "GET"), headers: headers(body), signal, cache: "no-store" };
  if (body) init.body = JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The daemon does not answer.");
  }
  if (answer.ok) return answer;
  const refusal = await answer.json().catch(() => null);
  const error = refusal?.error;
  throw new ApiError(answer.status, error?.message ?? error ?? `The daemon answers with ${answer.status}.`, error?.code);
}

export async function ask(path, options) {
  return (await request(path, options)).json();
}

// Yields the objects of a stream of server-sent events.
export async function* stream(path, options) {
  const answer = await request(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
