// ollama-js: models, a chat, a stream, a call that is run and answered, a schema, a long history, embeddings.
import { Ollama } from "ollama";
import { ASK_TIMER, MODEL, URL_, assert, main, test } from "./cases.mjs";

const client = new Ollama({ host: URL_ });
const hello = [{ role: "user", content: "Hello!" }];
const options = { num_predict: 96, temperature: 0 };
const parameters = { type: "object", properties: { minutes: { type: "integer" } }, required: ["minutes"] };
const tools = [{ type: "function", function: { name: "set_timer", description: "Set a timer.", parameters } }];

test("models", async () => {
  const { models } = await client.list();
  const { capabilities } = await client.show({ model: MODEL });
  assert(models.some(({ name }) => name === `${MODEL}:latest`), models);
  assert(capabilities.includes("completion") && capabilities.includes("tools"), capabilities);
  assert((await client.ps()).models.length > 0, "a loaded model");
});

test("chat", async () => {
  const { message, done_reason } = await client.chat({ model: MODEL, messages: hello, options });
  assert(message.content && done_reason, message);
});

test("streamed chat", async () => {
  let text = "";
  let last;
  for await (const part of await client.chat({ model: MODEL, messages: hello, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert(text && last.done && last.eval_count > 0, last);
});

test("tool call that is answered", async () => {
  const messages = [{ role: "user", content: ASK_TIMER }];
  const { message } = await client.chat({ model: MODEL, messages, tools, options });
  assert(Number.isInteger(message.tool_calls?.[0].function.arguments.minutes), message);
  messages.push(message, { role: "tool", tool_name: "set_timer", content: "The timer is set." });
  assert((await client.chat({ model: MODEL, messages, tools, options })).message.content, "an answer");
});

test("schema", async () => {
  const messages = [{ role: "user", content: ASK_TIMER }];
  const { message } = await client.chat({ model: MODEL, messages, format: parameters, options });
  assert("minutes" in JSON.parse(message.content), message.content);
});

test("a history that is too long", async () => {
  const turn = [{ role: "user", content: "Tell me about lamps. ".repeat(20) }, { role: "assistant", content: "A lamp." }];
  const messages = [...Array(120).fill(turn).flat(), { role: "user", content: "Hello!" }];
  assert((await client.chat({ model: MODEL, messages, options })).message.content, "an answer");
});

test("embeddings", async () => {
  const { embeddings } = await client.embed({ model: MODEL, input: ["a lamp", "a door"] });
  assert(embeddings.length === 2 && embeddings[0].length > 8, embeddings.length);
});

await main();
