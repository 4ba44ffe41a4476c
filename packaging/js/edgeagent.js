// The client of edgeagent for JavaScript: Node.js 20 and newer, Deno, Bun, browsers, Electron, Tauri. One file without
// dependencies, with the methods of Python's `edgeagent.client`; its types and their documentation are in edgeagent.d.ts.

const DEFAULT_URL = "http://127.0.0.1:8127";
const MAX_ROUNDS = 8;
const CANCEL_TIMEOUT_MS = 5000;
const RETRY_DELAYS_MS = [100, 500, 2000];
// In the background: how long to try to reach the daemon, at first and again, and how long it may send nothing (it pings
// every 5 s).
const FIRST_REACH_MS = 3000;
const REACH_MS = 60_000;
const RETRY_MS = 500;
const SILENCE_MS = 20_000;
// Close codes for errors that a retry would repeat (RFC 6455, 7.4.1).
const FINAL_CLOSE_CODES = new Set([1002, 1003, 1007, 1008, 1009, 1010]);
const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed", "error"]);
// What a failed response says of these errors, since strict clients accept no other codes.
const FAILURE_CODES = { rate_limit_exceeded: "queue_full", invalid_prompt: "invalid_value" };

// The replies that wait for the function that runs. Browsers have nothing that could tell.
const { AsyncLocalStorage } = globalThis.process?.getBuiltinModule?.("node:async_hooks") ?? {};
const waiting = AsyncLocalStorage ? new AsyncLocalStorage() : null;

const sleep = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));

export class EdgeagentError extends Error {
  constructor(message, code = "internal_error", { param = null, isTransient = false } = {}) {
    super(message);
    Object.assign(this, { name: "EdgeagentError", code, param, isTransient });
  }
}

const unavailable = (message, isTransient = true) => new EdgeagentError(message, "backend_unavailable", { isTransient });

function wireError(error) {
  const code = String(error?.code || "internal_error");
  return new EdgeagentError(String(error?.message || code), FAILURE_CODES[code] ?? code, { param: error?.param ?? null });
}

// The result of one response, collected from its events.
export class Answer {
  responseId = null;
  model = "";
  status = "in_progress";
  text = "";
  reasoning = "";
  toolCalls = [];
  usage = {};
  timings = {};
  edgeagent = {};
  error = null;

  get isFinished() {
    return this.status !== "in_progress";
  }

  add(event) {
    switch (event.type) {
      case "response.created":
        this.responseId = event.response.id;
        this.model = event.response.model ?? "";
        break;
      case "response.output_text.delta":
        this.text += event.delta;
        break;
      case "response.reasoning_text.delta":
        this.reasoning += event.delta;
        break;
      case "response.output_item.done":
        if (event.item.type === "function_call") {
          const { call_id: id, name, arguments: given } = event.item;
          this.toolCalls.push({ id, name, arguments: given });
        }
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.status = event.response.status;
        this.usage = event.response.usage ?? {};
        this.timings = event.response.timings ?? {};
        this.edgeagent = event.response.edgeagent ?? {};
        // Strict clients accept few codes in a failed response's error, so the code itself is in the reason.
        if (this.status === "failed") {
          const { error } = event.response;
          this.error = wireError({ ...error, code: this.edgeagent.reason ?? error?.code });
        }
        break;
      case "error":
        this.status = "failed";
        this.error = wireError(event.error);
    }
  }
}

export function functionOutput(callId, output) {
  return { type: "function_call_output", call_id: callId, output };
}

export async function userMessage(text, ...files) {
  const content = await Promise.all(files.map(partOf));
  if (text || !content.length) content.push({ type: "input_text", text });
  return { type: "message", role: "user", content };
}

async function partOf(file) {
  const content = typeof file === "string" ? await (await import("node:fs/promises")).readFile(file) : file;
  const bytes = new Uint8Array(content instanceof Blob ? await content.arrayBuffer() : content);
  const data = base64(bytes);
  const format = soundFormat(bytes);
  if (format) return { type: "input_audio", input_audio: { data, format } };
  // The daemon goes by the first bytes, too.
  return { type: "input_image", image_url: `data:image/png;base64,${data}`, detail: "auto" };
}

function base64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  }
  return btoa(text);
}

function soundFormat(bytes) {
  const begins = (text, at = 0) => String.fromCharCode(...bytes.subarray(at, at + text.length)) === text;
  if (begins("RIFF") && begins("WAVE", 8)) return "wav";
  if (begins("fLaC")) return "flac";
  return begins("ID3") || (bytes[0] === 0xff && (bytes[1] & 0xe0) === 0xe0) ? "mp3" : null;
}

// Asks the program `edgeagent` for the daemon's address and token, and lets it start one. Not in browsers.
export async function locate({ start = false, stateDir, command = "edgeagent" } = {}) {
  const { execFile } = await import("node:child_process");
  const words = ["address", ...(start ? ["--start"] : []), ...(stateDir ? ["--state-dir", stateDir] : [])];
  const output = await new Promise((done, fail) =>
    execFile(command, words, (error, out, said) => (error ? fail(unavailable(said.trim() || String(error))) : done(out))),
  );
  return JSON.parse(output);
}

export function connect({ url, token = null, WebSocket = globalThis.WebSocket, ...options } = {}) {
  if (!WebSocket) {
    throw new EdgeagentError(
      "this JavaScript has no WebSocket: use Node.js 22, start Node.js 20 with --experimental-websocket, or pass one " +
        'to connect({ WebSocket }), for example that of the package "ws"',
      "invalid_value",
    );
  }
  const isFixed = url !== undefined || !(options.start || options.stateDir || options.command);
  const find = async () => {
    const found = isFixed ? { url: url ?? DEFAULT_URL, token } : await locate(options);
    const base = found.url.replace(/\/+$/, "").replace(/\/responses$/, "").replace(/\/v1$/, "");
    return { base: base.replace(/^ws/, "http"), token: token ?? found.token };
  };
  return new Client(find, WebSocket);
}

// The events of one create, as they arrive. Whoever waits for `changed` looks again.
class Turn {
  #events = [];
  #error = null;
  #wake;
  changed;

  constructor() {
    this.#renew();
  }

  #renew() {
    this.#wake?.();
    this.changed = new Promise((wake) => (this.#wake = wake));
  }

  push(event) {
    this.#events.push(event);
    this.#renew();
  }

  lose(error) {
    this.#error = error;
    this.#renew();
  }

  take() {
    if (this.#events.length === 0 && this.#error) throw this.#error;
    return this.#events.shift();
  }
}

export class Client {
  #find;
  #WebSocket;
  #socket = null;
  #opening = null;
  #reply = null;
  // The turns whose end has not arrived, in the order of their creates; null for a prefill, which nobody reads.
  #turns = [];
  // What began before a close ends with it, and does not connect again.
  _numCloses = 0;

  constructor(find, WebSocket) {
    this.#find = find;
    this.#WebSocket = WebSocket;
  }

  async open() {
    if (this.#socket) return;
    const opening = (this.#opening ??= this.#open());
    try {
      await opening;
    } finally {
      if (this.#opening === opening) this.#opening = null;
    }
  }

  async #open() {
    const numCloses = this._numCloses;
    const { base, token } = await this.#find();
    const url = `${base.replace(/^http/, "ws")}/v1/responses`;
    const socket = new this.#WebSocket(url, token ? ["edgeagent", `openai-insecure-api-key.${token}`] : []);
    const isOpen = await new Promise((done) => {
      socket.onopen = () => done(true);
      socket.onerror = socket.onclose = () => done(false);
    });
    if (!isOpen) throw await this.#refusal(url);
    if (numCloses !== this._numCloses) socket.close();
    this._checkStillOpen(numCloses);
    this.#socket = socket;
    socket.onerror = null;
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      const turn = TERMINAL.has(event.type) ? this.#turns.shift() : this.#turns[0];
      turn?.push(event);
    };
    socket.onclose = ({ code, reason }) => {
      if (this.#socket === socket) this.#lose(closed(code, reason));
    };
  }

  // A WebSocket does not say why it was refused; HTTP does.
  async #refusal(url) {
    try {
      const { error } = await (await this._fetch("v1/models", { signal: AbortSignal.timeout(CANCEL_TIMEOUT_MS) })).json();
      if (error) return wireError(error);
    } catch {}
    const orRefused = globalThis.location ? ", or it refuses this web page" : "";
    return unavailable(`no daemon answers at ${url}${orRefused}; start one with \`edgeagent serve\``);
  }

  #lose(error) {
    this.#socket = null;
    for (const turn of this.#turns.splice(0)) turn?.lose(error);
  }

  async close() {
    this._numCloses += 1;
    this.#opening = null;
    this._disconnect();
  }

  _disconnect() {
    const socket = this.#socket;
    this.#lose(closedUnderResponse());
    socket?.close();
  }

  _checkStillOpen(numCloses) {
    if (numCloses !== this._numCloses) throw closedUnderResponse();
  }

  respond(input, { tools, maxRounds = MAX_ROUNDS, ...fields } = {}) {
    const functions = new Map(tools?.filter((tool) => tool.run).map((tool) => [tool.name, tool.run]));
    const request = { input, ...fields };
    if (tools) request.tools = tools.map(({ run: _, ...definition }) => ({ type: "function", ...definition }));
    for (const name in request) if (request[name] === null || request[name] === undefined) delete request[name];
    return new Reply(this, request, functions, maxRounds);
  }

  async ask(input, fields) {
    return await this.respond(input, fields).finish();
  }

  async prefill(input = "", { ahead = false, ...fields } = {}) {
    const { request } = this.respond(input, fields);
    if (input.length === 0) delete request.input;
    if (ahead) request.edgeagent = { ...request.edgeagent, ahead: true };
    await this.open();
    if (this.#reply && !this.#reply.answer.isFinished) return;
    this.#send({ type: "response.create", ...request, generate: false });
    this.#turns.push(null);
  }

  conversation({ previous_response_id = null, ...fields } = {}) {
    return new Conversation(this, previous_response_id, fields);
  }

  async classify(input, choices, fields = {}) {
    let reply;
    try {
      reply = await this._fetch("edgeagent/choose", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ input, choices, ...fields }),
      });
    } catch (error) {
      throw error instanceof EdgeagentError ? error : unavailable(`the daemon cannot be reached: ${error.message}`);
    }
    const body = await reply.json().catch(() => null);
    if (!reply.ok) throw wireError(body?.error ?? { message: `HTTP ${reply.status}: is that an edgeagent?` });
    return { id: body.choice, chances: body.probabilities, body };
  }

  // The rest is for Reply.
  get _hasPrefills() {
    return this.#turns.includes(null);
  }

  async _begin(reply) {
    for (let running; (running = this.#reply) && running !== reply; ) {
      await running.cancel();
      // Meanwhile another reply may have begun.
      if (this.#reply === running) break;
    }
    this.#reply = reply;
    await this.open();
  }

  _create(request) {
    this.#send({ type: "response.create", ...request });
    const turn = new Turn();
    this.#turns.push(turn);
    return turn;
  }

  _cancel(fields) {
    this.#send({ type: "response.cancel", ...fields });
  }

  #send(frame) {
    if (!this.#socket) throw closedUnderResponse();
    this.#socket.send(JSON.stringify(frame));
  }

  async _fetch(path, { headers, ...options } = {}) {
    const { base, token } = await this.#find();
    const all = { ...headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
    return await fetch(`${base}/${path}`, { ...options, headers: all });
  }
}

function closedUnderResponse() {
  return unavailable("the connection was closed while a response was running on it");
}

function closed(code, reason) {
  const because = `${code}${reason ? `: ${reason}` : ""}`;
  if (code === 1009) return new EdgeagentError(`the message is larger than the daemon accepts (${because})`, "payload_too_large");
  return unavailable(`the daemon closed the connection (code ${because})`, !FINAL_CLOSE_CODES.has(code));
}

export class Reply {
  answer = new Answer();
  rounds = [];
  #client;
  #functions;
  #maxRounds;
  #turn = null;
  #background = null;
  #isCancelled = false;
  #stopWaiting = null; // while functions run: ends the wait for them
  #lastRead = Promise.resolve();
  #numCloses; // the client's, when the reply was read first

  constructor(client, request, functions, maxRounds) {
    this.request = request;
    this.#client = client;
    this.#functions = functions;
    this.#maxRounds = maxRounds;
  }

  // Readers at once share the events: each event goes to one of them.
  async *[Symbol.asyncIterator]() {
    this.#numCloses ??= this.#client._numCloses;
    // In a browser, whoever begins to read while functions run may be one of them.
    const isLate = !waiting && this.#stopWaiting !== null;
    for (;;) {
      if (isLate || waiting?.getStore()?.includes(this)) {
        const orOther = isLate ? "; in a browser, nobody else can begin to read meanwhile" : "";
        throw new Error(`a function cannot read the reply that calls it: it waits for the function's result${orOther}`);
      }
      // Otherwise two readers could both send the request, or both run the functions.
      const read = this.#lastRead.then(() => this.#read());
      this.#lastRead = read.catch(() => undefined);
      const event = await read;
      if (!event) return;
      yield event;
    }
  }

  // Returns the next event; nothing at the end.
  async #read() {
    for (;;) {
      if (this.answer.isFinished) {
        if (this.answer.error) throw this.answer.error;
        if (!(await this.#beginRound())) return;
      }
      const event = await this.#nextEvent();
      // What comes after a cancel is only added to the answer.
      if (event && !this.#isCancelled) return event;
    }
  }

  async *texts() {
    for await (const event of this) if (event.type === "response.output_text.delta") yield event.delta;
  }

  async *sentences() {
    const sentences = new Sentences();
    for await (const event of this) {
      if (event.type === "response.output_text.delta") yield* sentences.add(event.delta);
      else if (event.type === "response.output_text.done") yield* sentences.end();
    }
  }

  async finish() {
    for await (const _ of this);
    return this.answer;
  }

  async cancel() {
    this.#isCancelled = true;
    this.#stopWaiting?.();
    if (this.answer.isFinished) return this.answer;
    if (!this.#turn && !this.#background) {
      this.answer.status = "cancelled";
      return this.answer;
    }
    let timer;
    const late = new Promise((_, fail) => (timer = setTimeout(fail, CANCEL_TIMEOUT_MS)));
    try {
      await Promise.race([late, this.#cancel()]);
    } catch {
      // When the connection closes, the daemon cancels all that still runs on it.
      this.#client._disconnect();
      this.answer.status = "cancelled";
    }
    clearTimeout(timer);
    return this.answer;
  }

  async #cancel() {
    const answer = this.answer;
    // Without an id, a cancel is for what runs on the connection: that may still be a prefill.
    while (!answer.responseId && (this.#background || this.#client._hasPrefills)) await this.#nextEvent();
    const response_id = answer.responseId ?? undefined;
    if (this.#background) await this.#client._fetch(`v1/responses/${response_id}/cancel`, { method: "POST" });
    else this.#client._cancel({ response_id });
    while (!answer.isFinished) await this.#nextEvent();
  }

  // Runs the functions that the finished answer calls, and prepares the request with their output; false if none.
  async #beginRound() {
    const { toolCalls: calls, status, responseId } = this.answer;
    const areOurs = calls.length > 0 && calls.every((call) => this.#functions.has(call.name));
    if (this.#isCancelled || status !== "completed" || !areOurs) return false;
    if (this.rounds.length + 1 >= this.#maxRounds) return false;
    const runAll = () => Promise.all(calls.map((call) => run(this.#functions.get(call.name), call)));
    const stopped = new Promise((stop) => (this.#stopWaiting = stop));
    const running = waiting ? waiting.run([...(waiting.getStore() ?? []), this], runAll) : runAll();
    const outputs = await Promise.race([stopped, running]);
    this.#stopWaiting = null;
    if (this.#isCancelled) return false;
    this.rounds.push(this.answer);
    // A call that was asked for is made only once.
    const { tool_choice: _, ...request } = this.request;
    const input = calls.map((call, index) => functionOutput(call.id, outputs[index]));
    this.request = { ...request, input, previous_response_id: responseId };
    if (this.rounds.length + 1 === this.#maxRounds) this.request.tool_choice = "none";
    this.answer = new Answer();
    this.#turn = this.#background = null;
    return true;
  }

  // Adds the next event to the answer, and returns it; nothing if another reader has done that.
  async #nextEvent() {
    if (!this.request.background) return await this.#nextOnSocket();
    this.#background ??= this.#inBackground();
    try {
      const { value } = await this.#background.next();
      if (value) this.answer.add(value);
      if (this.answer.isFinished) await this.#background.return();
      return value;
    } catch (lost) {
      throw this.#fail(lost);
    }
  }

  #fail(error) {
    this.answer.status = "failed";
    return (this.answer.error = error);
  }

  async #nextOnSocket() {
    for (const delay of [...RETRY_DELAYS_MS, null]) {
      try {
        if (!this.#turn) {
          this.#client._checkStillOpen(this.#numCloses);
          await this.#client._begin(this);
          if (this.#isCancelled) return;
          this.#turn = this.#client._create(this.request);
        }
        while (!this.answer.isFinished) {
          const event = this.#turn.take();
          if (event) {
            this.answer.add(event);
            return event;
          }
          await this.#turn.changed;
        }
        return;
      } catch (lost) {
        const isClosed = this.#numCloses !== this.#client._numCloses;
        const isFinal = delay === null || !lost.isTransient || this.#isCancelled || isClosed;
        if (isFinal || this.answer.responseId) throw this.#fail(lost);
      }
      this.#turn = null;
      await sleep(delay);
      if (this.#isCancelled) return;
    }
  }

  async *#inBackground() {
    let id = null;
    let after = -1;
    // Since when the daemon cannot be reached. A sleep counts only if it begins after that.
    let lostAt = performance.now();
    for (;;) {
      const silence = new AbortController();
      let timer = setTimeout(() => silence.abort(), SILENCE_MS);
      try {
        const followed = `v1/responses/${id}?stream=true&starting_after=${after}`;
        const reply = await (id === null
          ? this.#client._fetch("v1/responses", {
              method: "POST",
              headers: { "content-type": "application/json" },
              body: JSON.stringify({ ...this.request, stream: true }),
              signal: silence.signal,
            })
          : this.#client._fetch(followed, { signal: silence.signal }));
        if (!reply.ok && (id === null || ![429, 503].includes(reply.status))) {
          const body = await reply.json().catch(() => null);
          yield { type: "error", error: body?.error ?? { message: `HTTP ${reply.status}: is that an edgeagent?` } };
          return;
        }
        let rest = "";
        const decoder = new TextDecoder();
        const reader = reply.body.getReader();
        for (let part; reply.ok && !(part = await reader.read()).done; ) {
          clearTimeout(timer);
          timer = setTimeout(() => silence.abort(), SILENCE_MS);
          lostAt = null;
          const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
          rest = lines.pop();
          for (const line of lines.filter((each) => each.startsWith("data: {"))) {
            const event = JSON.parse(line.slice(6));
            after = event.sequence_number ?? after;
            id ??= event.response?.id ?? null;
            yield event;
            if (TERMINAL.has(event.type)) return;
          }
        }
      } catch (lost) {
        const reachMs = id === null ? FIRST_REACH_MS : REACH_MS;
        lostAt ??= performance.now();
        if (performance.now() - lostAt > reachMs) throw unavailable(`the daemon cannot be reached: ${lost.message}`);
      } finally {
        clearTimeout(timer);
        silence.abort();
      }
      await sleep(RETRY_MS);
    }
  }
}

async function run(tool, call) {
  try {
    const result = await tool(JSON.parse(call.arguments || "{}"));
    if (result instanceof Uint8Array || result instanceof Blob) return [await partOf(result)];
    return typeof result === "string" ? result : (JSON.stringify(result) ?? "null");
  } catch (error) {
    console.warn(`the tool ${call.name} failed`, error);
    return `error: ${error?.name}: ${error?.message}`;
  }
}

export class Conversation {
  #client;
  #continuedId;
  #fields;
  #reply = null;
  #words = "";
  #tail = "";

  constructor(client, previousResponseId, fields) {
    this.#client = client;
    this.#continuedId = previousResponseId;
    this.#fields = fields;
  }

  get words() {
    return this.#words + this.#tail;
  }

  get responseId() {
    const answer = this.#reply?.answer;
    if (!answer?.responseId || ["in_progress", "failed"].includes(answer.status)) return this.#continuedId;
    return answer.responseId;
  }

  async append(words) {
    this.#words += words;
    this.#tail = "";
    await this.prefill();
  }

  async replaceTail(words) {
    this.#tail = words;
    await this.prefill();
  }

  async prefill() {
    await this.#client.prefill(this.words, this.#request());
  }

  async ahead() {
    await this.#client.prefill(this.words, { ahead: this.words !== "", ...this.#request() });
  }

  async commit(message = null, fields = {}) {
    await this.cancel();
    const request = { ...this.#request(), ...fields };
    const input = message ?? this.words;
    this.#continuedId = this.responseId;
    this.#words = this.#tail = "";
    return (this.#reply = this.#client.respond(input, request));
  }

  async cancel() {
    return this.#reply ? await this.#reply.cancel() : null;
  }

  #request() {
    return { ...this.#fields, previous_response_id: this.responseId };
  }
}

// The rules are those of edgeagent/client/sentences.py. Both are tested with tests/client/sentences.json.
const CLOSERS = "\"'”’»›)\\]}*_`」』”’）】》〉";
const END = new RegExp(
  `(?<line>\\n)|(?<whole>[。！？｡।॥۔؟።։။។]+)[${CLOSERS}]*|(?<mark>[.!?…]+)[${CLOSERS}“‘]*(?:[ \\u00a0\\u202f]»)?`,
  "g",
);
const TITLE =
  /^(?:dr|mr|mrs|ms|prof|st|mx|messrs|mme|mlle|hr|fr|frl|dipl|ing|sra|srta|dra|dott|sig|gen|col|lt|capt|sgt|rev|hon|gov|sen|rep|jun|vs|ca|bzw|sog|vgl|evtl|ggf|gest|geb|approx|св|проф|им|г|ул)$/;
const BEFORE_NUMBER =
  /^(?:no|nos|nr|núm|num|nº|p|pp|s|vol|figs?|art|ch|sec|ex|eq|kap|abb|bd|tel|ext|стр|рис|jan|feb|mar|apr|jul|aug|sept?|o[ck]t|nov|de[cz])$/;
const MONTH = /^(?:jan|jän|feb|mär|apr|mai|jun|jul|aug|sep|okt|nov|dez)/;
const NUM_LETTERS = 3;
const LONGEST_WORD = 40;

export class Sentences {
  #text = "";
  // There is no end of a sentence before this index.
  #seen = 0;

  add(part) {
    this.#text += part;
    return this.#cut(false);
  }

  end() {
    const sentences = this.#cut(true);
    const rest = this.#text.trim();
    this.#text = "";
    this.#seen = 0;
    return rest ? [...sentences, rest] : sentences;
  }

  #cut(isEnd) {
    const sentences = [];
    let start = 0;
    for (;;) {
      END.lastIndex = this.#seen;
      const found = END.exec(this.#text);
      if (!found) {
        this.#seen = this.#text.length;
        break;
      }
      const isWhole = this.#isEnd(start, found, isEnd);
      if (isWhole === null) {
        this.#seen = found.index;
        break;
      }
      this.#seen = found.index + found[0].length;
      if (isWhole) {
        const sentence = this.#text.slice(start, this.#seen).trim();
        start = this.#seen;
        if (sentence) sentences.push(sentence);
      }
    }
    this.#text = this.#text.slice(start);
    this.#seen -= start;
    return sentences;
  }

  // Whether a sentence that begins at `start` ends here; null if that depends on text that is yet to come.
  #isEnd(start, found, isEnd) {
    const { line, whole, mark } = found.groups;
    if (line) return true;
    const text = this.#text;
    const end = found.index + found[0].length;
    const next = text.slice(end).search(/\S/);
    if (next === -1) return isEnd ? false : null;
    if (whole) return !(text[end] === "と" && found[0].length > whole.length);
    if (next === 0) return false;
    const following = text.slice(end + next, end + next + NUM_LETTERS);
    if (text.slice(end, end + next).includes("\n")) return true;
    if (/^\p{Ll}/u.test(following)) return false;
    return mark !== "." || this.#endsAtDot(start, found.index, following, isEnd);
  }

  // Whether a single dot, with white space and no small letter behind it, ends the sentence.
  #endsAtDot(start, dot, following, isEnd) {
    const before = this.#text.slice(Math.max(start, dot - LONGEST_WORD), dot);
    const word = before.split(/[\s(["'“„«/-]/).at(-1).toLowerCase();
    if (TITLE.test(word) || /^(?:[\p{L}\p{N}_]\.)+[\p{L}\p{N}_]$/u.test(word)) return ["a.m", "p.m"].includes(word);
    if (word.length === 1 && word !== word.toUpperCase()) return ["i", "я"].includes(word);
    if (BEFORE_NUMBER.test(word)) return !/^\p{Decimal_Number}/u.test(following);
    if (/^\p{Decimal_Number}{1,2}$/u.test(word)) {
      if (before.trim() === word) return false;
      if (following.length < NUM_LETTERS && !isEnd) return null;
      return !MONTH.test(following.toLowerCase());
    }
    return true;
  }
}
