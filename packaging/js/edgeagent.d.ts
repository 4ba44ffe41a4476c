/**
 * The client of edgeagent: conversations with the models of this machine, over one WebSocket.
 *
 *     const client = connect();
 *     for await (const sentence of client.respond("What can you do?").sentences()) console.log(sentence);
 */

/** Fields of `response.create` as they are on the wire: model, instructions, temperature, max_output_tokens, ... */
export interface Fields {
  model?: string;
  instructions?: string;
  previous_response_id?: string | null;
  temperature?: number;
  max_output_tokens?: number;
  store?: boolean;
  service_tier?: string;
  tool_choice?: string | object;
  /**
   * The daemon goes on without a connection, and the iterator gets what it missed as soon as the daemon can be reached
   * again, for example after sleep.
   */
  background?: boolean;
  /**
   * Tools with `run` are called when the model asks for it, and a further response answers their output. If a response
   * calls another tool, it is the last one, and the caller answers its calls.
   */
  tools?: Tool[];
  /** At most so many responses, 8 by default; the last of several may call nothing. */
  maxRounds?: number;
  [field: string]: unknown;
}

export interface Tool {
  name: string;
  description?: string;
  /** The JSON schema of the arguments. */
  parameters?: object;
  /**
   * What it returns goes to the model: a text, any value as JSON, or the bytes of an image or a sound (Uint8Array, Blob).
   * If it throws, the model gets the error.
   */
  run?(args: any): unknown;
  [field: string]: unknown;
}

export type Input = string | object[];

/** One event as it came over the wire. */
export interface Event {
  type: string;
  [field: string]: any;
}

/** `code` never changes for an error; the daemon's reference lists all. */
export declare class EdgeagentError extends Error {
  constructor(message: string, code?: string, more?: { param?: string | null; isTransient?: boolean });
  code: string;
  param: string | null;
  isTransient: boolean;
}

/** The result of one response so far; `usage`, `timings` and `edgeagent` once it has finished. */
export declare class Answer {
  responseId: string | null;
  model: string;
  status: "in_progress" | "completed" | "incomplete" | "cancelled" | "failed";
  text: string;
  reasoning: string;
  toolCalls: { id: string; name: string; arguments: string }[];
  usage: Record<string, any>;
  timings: Record<string, any>;
  edgeagent: Record<string, any>;
  error: EdgeagentError | null;
  get isFinished(): boolean;
  add(event: Event): void;
}

/** Return the input item that answers a tool call: a text, or parts with images and sounds. */
export declare function functionOutput(callId: string, output: string | object[]): object;

/**
 * Return a user's message as an input item: the files, then the text. A file is an image (PNG, JPEG, GIF ...) or a sound
 * (WAV, MP3, FLAC): a `File` or `Blob`, its bytes, or, not in browsers, its path.
 */
export declare function userMessage(text: string, ...files: (string | Blob | ArrayBuffer | Uint8Array)[]): Promise<object>;

export interface Place {
  /** Start the daemon if none runs: the user's service, else `edgeagent serve`, which outlives this program. */
  start?: boolean;
  /** The daemon's state folder. With `start`, that daemon is this program's own, on a free port. */
  stateDir?: string;
  /** The program to ask; "edgeagent" by default. */
  command?: string;
}

/** Return the daemon's address, which `edgeagent address` says. Not in browsers. */
export declare function locate(place?: Place): Promise<{ url: string; token: string | null; certificate: string | null }>;

export interface Options extends Place {
  /** The daemon's URL. Without it, and without the fields of Place: http://127.0.0.1:8127. */
  url?: string;
  token?: string | null;
  /** The constructor to use where JavaScript has none of its own, as in Node.js 20: that of the package "ws". */
  WebSocket?: any;
}

/** Return a client. It connects when needed, and again after a lost connection. */
export declare function connect(options?: Options): Client;

/** A connection to a daemon. One response runs at a time, and a new one cancels it. */
export declare class Client {
  private constructor();
  /** Connect, unless already connected. */
  open(): Promise<void>;
  /**
   * Disconnect. The daemon cancels what still runs, unless it runs in the background. Calls that still wait end with an
   * error. The next call connects again.
   */
  close(): Promise<void>;
  /** Return a response. Nothing is sent before it is read. */
  respond(input: Input, fields?: Fields): Reply;
  /** Return a whole answer. */
  ask(input: Input, fields?: Fields): Promise<Answer>;
  /** Let the daemon compute a prompt; with `ahead`, also begin the answer. While a reply runs, do nothing. */
  prefill(input?: Input, fields?: Fields & { ahead?: boolean }): Promise<void>;
  /**
   * Return which of the choices is the likeliest answer, and how likely each is. Nothing is generated. A choice is a text
   * that the model could write as its whole answer. `fields` are those of the daemon's `/edgeagent/choose`.
   */
  classify(input: Input, choices: (string | { id: string; text: string })[], fields?: Fields): Promise<Choice>;
  /** Return a new conversation, or the one that the response `previous_response_id` belongs to. */
  conversation(fields?: Fields): Conversation;
}

/** The id of the likeliest choice, all choices with the likeliest first, and the daemon's whole answer. */
export interface Choice {
  id: string;
  chances: { id: string; text: string; probability: number; logprob: number; empty_logprob?: number }[];
  body: Record<string, any>;
}

/**
 * One response as it arrives, with those that answer its calls. It is read once, in one of these ways. A function that it
 * calls cannot read it, which throws. In browsers, nobody can begin to read it while its functions run.
 */
export declare class Reply implements AsyncIterable<Event> {
  private constructor();
  request: Record<string, any>;
  answer: Answer;
  /** The answers whose calls are answered. */
  rounds: Answer[];
  [Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined>;
  /** The text as it arrives. */
  texts(): AsyncGenerator<string, void, undefined>;
  /** The sentences of the text, each as soon as it is whole. */
  sentences(): AsyncGenerator<string, void, undefined>;
  /** Read the rest, and return the answer. */
  finish(): Promise<Answer>;
  /** Cancel the response, also while it is read elsewhere: that iteration ends, and waits for no function. */
  cancel(): Promise<Answer>;
}

/** A conversation: the message that is being written or spoken, and the answers. */
export declare class Conversation {
  private constructor();
  /** The message so far. */
  get words(): string;
  /** The id of the last answer, with which the conversation can be continued later. */
  get responseId(): string | null;
  /** Add words that stay to the message, in place of its tail. Then `prefill`. */
  append(words: string): Promise<void>;
  /** Replace the words behind those of `append`, which speech recognition may still revise. Then `prefill`. */
  replaceTail(words: string): Promise<void>;
  /** Let the daemon compute the prompt up to here. Without words: that of the instructions and tools. */
  prefill(): Promise<void>;
  /** As `prefill`; also begin the answer. `commit` gets it if no word changes. */
  ahead(): Promise<void>;
  /** Return the reply to a message, by default to the words so far. A reply that still runs is cancelled. */
  commit(message?: Input | null, fields?: Fields): Promise<Reply>;
  /** Stop the reply that runs. */
  cancel(): Promise<Answer | null>;
}

/** Cuts a text that arrives in parts into sentences, each as soon as it is whole. */
export declare class Sentences {
  add(part: string): string[];
  /** Return what is left, as the text has ended. */
  end(): string[];
}
