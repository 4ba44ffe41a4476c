// The AI SDK: its providers for OpenAI (responses, chat) and for servers like OpenAI's.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  embed,
  generateObject,
  generateText,
  stepCountIs,
  streamObject,
  streamText,
  tool,
  ToolLoopAgent as Agent,
} from "ai";
import { z } from "zod";
import { ASK_TIMER, BASE_URL, KEY, MODEL, assert, main, test } from "./cases.mjs";

const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "edgeagent",
  baseURL: BASE_URL,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = { responses: openai.responses(MODEL), chat: openai.chat(MODEL), compatible: compatible(MODEL) };
const schema = z.object({ minutes: z.number().int() });
const once = { maxRetries: 0, maxOutputTokens: 96 };

for (const [name, model] of Object.entries(models)) {
  test(`${name}, plain`, async () => {
    const answer = await generateText({ model, prompt: "Hello!", ...once });
    assert(answer.text && answer.usage.outputTokens > 0, answer.usage);
  });

  test(`${name}, streamed`, async () => {
    const faults = [];
    const answer = streamText({ model, prompt: "Hello!", onError: ({ error }) => faults.push(String(error)), ...once });
    let text = "";
    for await (const part of answer.textStream) text += part;
    assert(text && !faults.length, { text, faults });
    assert((await answer.usage).outputTokens > 0, "usage");
  });

  test(`${name}, tool call that is run and answered`, async () => {
    let minutes;
    const set_timer = tool({
      description: "Set a timer.",
      inputSchema: schema,
      execute: (input) => ((minutes = input.minutes), "done"),
    });
    const answer = await generateText({ model, prompt: ASK_TIMER, tools: { set_timer }, stopWhen: stepCountIs(3), ...once });
    assert(Number.isInteger(minutes), "a call");
    assert(answer.text, answer.steps.length);
  });

  test(`${name}, agent`, async () => {
    let minutes;
    const set_timer = tool({
      description: "Set a timer.",
      inputSchema: schema,
      execute: (input) => ((minutes = input.minutes), "done"),
    });
    const agent = new Agent({ model, tools: { set_timer }, stopWhen: stepCountIs(3), ...once });
    const answer = await agent.generate({ prompt: ASK_TIMER });
    assert(Number.isInteger(minutes) && answer.steps.length > 1, answer.steps.length);
  });

  test(`${name}, streamed tool call`, async () => {
    const faults = [];
    const set_timer = tool({ description: "Set a timer.", inputSchema: schema });
    const answer = streamText({
      model,
      prompt: ASK_TIMER,
      tools: { set_timer },
      toolChoice: "required",
      onError: ({ error }) => faults.push(String(error)),
      ...once,
    });
    const calls = await answer.toolCalls;
    assert(!faults.length && calls.length === 1 && Number.isInteger(calls[0].input.minutes), { calls, faults });
  });

  test(`${name}, object`, async () => {
    const answer = await generateObject({ model, prompt: ASK_TIMER, schema, ...once });
    assert(Number.isInteger(answer.object.minutes), answer.object);
  });

  test(`${name}, streamed object`, async () => {
    const answer = streamObject({ model, prompt: ASK_TIMER, schema, ...once });
    for await (const _ of answer.partialObjectStream);
    assert(Number.isInteger((await answer.object).minutes), "an object");
  });
}

test("compatible, embedding", async () => {
  const { embedding } = await embed({ model: compatible.embeddingModel(MODEL), value: "a lamp", maxRetries: 0 });
  assert(embedding.length > 8, embedding.length);
});

await main();
