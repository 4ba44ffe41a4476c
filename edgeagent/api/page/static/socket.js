// The WebSocket to /v1/responses: creates in one lane, answered in order, and reconnection.

import { ask, token } from "./session.js";

const FIRST_WAIT_MS = 300;
const CHAT = { path: "/v1/responses", probe: "/v1/models", longestWaitMs: 5000 };
const PROBE_MS = 3000; // systemd takes connections while the daemon starts
const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed", "error"]);

// Whether an event is the last one that a create gets.
export function isLast(event) {
  return event.type === "lost" || TERMINAL.has(event.type);
}

export class Socket {
  // `onState` is called with "open", "offline" or "locked" (the token opens nothing). `probe`: a path that the token
  // opens if it opens the socket at `path`.
  constructor(onState, { path, probe, longestWaitMs } = CHAT) {
    this.onState = onState;
    this.path = path;
    this.probe = probe;
    this.longestWaitMs = longestWaitMs;
    this.pending = [];
    this.state = "connecting";
    this.waitMs = FIRST_WAIT_MS;
    this.socket = null;
    this.timer = 0;
    addEventListener("online", () => this.connect());
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  connect() {
    clearTimeout(this.timer);
    if (this.socket) return;
    const held = token();
    if (!held) return this.setState("locked");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`, [
      "edgeagent",
      `openai-insecure-api-key.${held}`,
    ]);
    this.socket = socket;
    socket.onopen = () => {
      this.waitMs = FIRST_WAIT_MS;
      this.setState("open");
    };
    socket.onmessage = (message) => this.take(JSON.parse(message.data));
    socket.onclose = () => this.lost();
  }

  // Reconnects with the token that is valid now.
  restart() {
    if (this.socket) this.socket.close();
    else this.connect();
  }

  // Sends a create. `take` gets each event of its response; the last one is terminal, an error, or {type: "lost"}.
  // It is not called before this returns.
  create(fields, take) {
    if (!this.isOpen) {
      queueMicrotask(() => take({ type: "lost" }));
      return;
    }
    this.pending.push(take);
    this.socket.send(JSON.stringify({ type: "response.create", ...fields }));
  }

  cancel(responseId) {
    if (this.isOpen) this.socket.send(JSON.stringify({ type: "response.cancel", response_id: responseId }));
  }

  take(event) {
    const take = this.pending[0];
    if (TERMINAL.has(event.type)) this.pending.shift();
    take?.(event);
  }

  async lost() {
    this.socket = null;
    for (const take of this.pending.splice(0)) take({ type: "lost" });
    this.timer = setTimeout(() => this.connect(), this.waitMs);
    this.waitMs = Math.min(2 * this.waitMs, this.longestWaitMs);
    // A browser does not say why a handshake failed.
    try {
      await ask(this.probe, { signal: AbortSignal.timeout(PROBE_MS) });
    } catch (error) {
      if (this.isOpen) return; // it is back meanwhile
      this.setState(error.isEntryNeeded ? "locked" : "offline");
      if (error.isEntryNeeded) clearTimeout(this.timer);
    }
  }

  setState(state) {
    this.state = state;
    this.onState(state);
  }
}
