// anthropic-sdk-typescript: messages, whole and streamed, a call that is run and answered, a schema, a count, errors.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { ASK_TIMER, KEY, MODEL, URL_, assert, main, test } from "./cases.mjs";

const client = new Anthropic({ baseURL: URL_, apiKey: KEY, maxRetries: 0 });
const fields = { model: MODEL, max_tokens: 96 };
const messages = [{ role: "user", content: "Hello!" }];
const asked = [{ role: "user", content: ASK_TIMER }];
const input_schema = { type: "object", properties: { minutes: { type: "integer" } }, required: ["minutes"] };
const tools = [{ name: "set_timer", description: "Set a timer.", input_schema }];

test("message, whole", async () => {
  const message = await client.messages.create({ ...fields, messages });
  assert(message.content[0].text && message.usage.output_tokens > 0, message);
});

test("message, streamed", async () => {
  const stream = client.messages.stream({ ...fields, messages });
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert(text && text === final.content[0].text, final);
});

test("tool call, streamed, and its answer", async () => {
  const stream = client.messages.stream({ ...fields, messages: asked, tools, tool_choice: { type: "any" } });
  const answer = await stream.finalMessage();
  const call = answer.content.at(-1);
  assert(call.type === "tool_use" && Number.isInteger(call.input.minutes), answer);
  const content = [{ type: "tool_result", tool_use_id: call.id, content: "done" }];
  const more = [...asked, { role: "assistant", content: answer.content }, { role: "user", content }];
  assert((await client.messages.create({ ...fields, messages: more, tools })).content.length, "an answer");
});

test("tool call that the client runs", async () => {
  let minutes;
  const tool = betaZodTool({
    name: "set_timer",
    description: "Set a timer.",
    inputSchema: z.object({ minutes: z.number().int() }),
    run: (input) => ((minutes = input.minutes), "done"),
  });
  const final = await client.beta.messages.toolRunner({ ...fields, messages: asked, tools: [tool], max_iterations: 3 });
  assert(Number.isInteger(minutes) && final.content.length, final);
});

test("count of tokens", async () => {
  const alone = await client.messages.countTokens({ model: MODEL, messages });
  const withTool = await client.messages.countTokens({ model: MODEL, messages, tools });
  assert(0 < alone.input_tokens && alone.input_tokens < withTool.input_tokens, withTool);
});

test("a stream that is left", async () => {
  const stream = await client.messages.create({ ...fields, messages, stream: true });
  for await (const event of stream) if (event.type === "content_block_delta") break;
  assert(stream.controller.signal.aborted, "aborted");
});

test("a wrong field is named", async () => {
  const error = await client.messages.create({ ...fields, messages, temperature: 9 }).catch((error) => error);
  assert(error instanceof Anthropic.BadRequestError && error.message.includes("temperature"), String(error));
});

await main();
