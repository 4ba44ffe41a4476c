// openai-node: chat and responses, plain, streamed, with tools and with schemas.
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { ASK_TIMER, BASE_URL, KEY, MODEL, assert, main, test } from "./cases.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: "Hello!" }];
const asked = [{ role: "user", content: ASK_TIMER }];
const parameters = {
  type: "object",
  properties: { minutes: { type: "integer" } },
  required: ["minutes"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "set_timer", description: "Set a timer.", parameters } }];
const flatTools = [{ type: "function", name: "set_timer", description: "Set a timer.", parameters, strict: true }];
const Timer = z.object({ minutes: z.number().int() });

test("chat, plain", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages });
  assert(answer.choices[0].message.content, answer);
});

test("chat, streamed", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert(text && text === final.choices[0].message.content, final);
  assert((await stream.totalUsage()).completion_tokens > 0, "usage");
});

test("chat, tool call that is run and answered", async () => {
  let minutes;
  const runner = client.chat.completions.runTools({
    model: MODEL,
    messages: asked,
    tools: [
      {
        type: "function",
        function: {
          name: "set_timer",
          description: "Set a timer.",
          parameters,
          parse: JSON.parse,
          function: (call) => ((minutes = call.minutes), "done"),
        },
      },
    ],
  });
  assert(await runner.finalContent(), "an answer");
  assert(Number.isInteger(minutes), "a call");
});

test("chat, streamed tool call", async () => {
  const stream = client.chat.completions.stream({ model: MODEL, messages: asked, tools, tool_choice: "required" });
  const final = await stream.finalChatCompletion();
  const [call] = final.choices[0].message.tool_calls;
  assert(Number.isInteger(JSON.parse(call.function.arguments).minutes), call);
});

test("chat, parsed by zod", async () => {
  const answer = await client.chat.completions.parse({
    model: MODEL,
    messages: asked,
    response_format: zodResponseFormat(Timer, "timer"),
    max_tokens: 64,
  });
  assert(Number.isInteger(answer.choices[0].message.parsed.minutes), answer);
});

test("responses, plain and continued", async () => {
  const first = await client.responses.create({ model: MODEL, input: "Hello!" });
  assert(first.output_text, first);
  const second = await client.responses.create({ model: MODEL, input: "And what else?", previous_response_id: first.id });
  assert(second.output_text, second);
});

test("responses, streamed", async () => {
  const stream = client.responses.stream({ model: MODEL, input: "Hello!" });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert(text && text === final.output_text, final);
});

test("responses, tool call and its answer", async () => {
  const first = await client.responses.create({ model: MODEL, input: ASK_TIMER, tools: flatTools, tool_choice: "required" });
  const call = first.output.find((item) => item.type === "function_call");
  assert(Number.isInteger(JSON.parse(call.arguments).minutes), first);
  const input = [{ type: "function_call_output", call_id: call.call_id, output: "done" }];
  const second = await client.responses.create({ model: MODEL, input, previous_response_id: first.id, tools: flatTools });
  assert(second.output_text, second);
});

test("responses, parsed by zod", async () => {
  const answer = await client.responses.parse({
    model: MODEL,
    input: ASK_TIMER,
    text: { format: zodTextFormat(Timer, "timer") },
    max_output_tokens: 64,
  });
  assert(Number.isInteger(answer.output_parsed.minutes), answer);
});

test("responses, over the WebSocket", async () => {
  const socket = new ResponsesWS(client);
  const text = await new Promise((done, fail) => {
    let text = "";
    socket.on("error", fail);
    socket.on("response.output_text.delta", (event) => (text += event.delta));
    socket.on("response.completed", () => done(text));
    socket.socket.on?.("open", () => socket.send({ type: "response.create", model: MODEL, input: "Hello!" }));
  });
  socket.close();
  assert(text, "text");
});

await main();
