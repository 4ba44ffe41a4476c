// Writes what JavaScript clients send for ten ordinary types: one file for each client, into the current folder.
// Run it where the packages are installed; README.md names their versions. No server is needed: the requests are
// caught before they leave.
import { writeFileSync } from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, tool } from "ai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { z as z3 } from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

function types(z, { date, datetime, code }) {
  const address = z.object({ street: z.string(), city: z.string() });
  const item = z.object({ name: z.string(), quantity: z.number().int() });
  const recursive = z.lazy(() => z.object({ value: z.number().int(), children: z.array(recursive) }));
  return {
    flat: z.object({ name: z.string(), age: z.number().int(), height: z.number(), member: z.boolean() }),
    nested: z.object({ name: z.string(), home: address, work: address.describe("Where they work") }),
    optional: z.object({
      title: z.string(),
      subtitle: z.string().nullable(),
      pages: z.number().int().nullish(),
      publisher: address.nullish(),
    }),
    union: z.object({
      pet: z.discriminatedUnion("kind", [
        z.object({ kind: z.literal("cat"), lives: z.number().int() }),
        z.object({ kind: z.literal("dog"), tricks: z.number().int() }),
      ]),
      number: z.union([z.number().int(), z.string()]),
    }),
    enum: z.object({
      colour: z.enum(["red", "green", "blue"]),
      size: z.union([z.literal("small"), z.literal("large")]),
      stars: z.union([z.literal(1), z.literal(2), z.literal(3)]),
    }),
    list: z.object({ items: z.array(item), tags: z.array(z.string()) }),
    dict: z.object({ prices: z.record(z.string(), z.number()), stock: z.record(z.string(), z.number().int()) }),
    date: z.object({ title: z.string(), day: date, created: datetime }),
    recursive: z.object({ value: z.number().int(), children: z.array(recursive) }),
    bounded: z.object({
      name: z.string().min(1).max(20),
      age: z.number().int().min(0).max(150),
      ratio: z.number().gt(0).lt(1),
      code: z.string().regex(code),
      scores: z.array(z.number()).min(1).max(3),
    }),
  };
}

const code = /^[A-Z]{3}-[0-9]{4}$/;
const TYPES = types(z, { date: z.iso.date(), datetime: z.iso.datetime(), code });
const TYPES_3 = types(z3, { date: z3.string().date(), datetime: z3.string().datetime(), code });
const KEPT = ["response_format", "tools", "tool_choice"];

async function caught(send) {
  let body;
  const fetch = async (_url, init) => {
    body = JSON.parse(init.body);
    return new Response(JSON.stringify({ error: { message: "caught" } }), { status: 400 });
  };
  const provider = createOpenAICompatible({
    name: "x",
    baseURL: "http://x/v1",
    fetch,
    supportsStructuredOutputs: true,
  });
  await send(provider("m")).catch(() => {});
  return Object.fromEntries(KEPT.filter((key) => key in body).map((key) => [key, body[key]]));
}

const format = (name, schema) => ({ response_format: { type: "json_schema", json_schema: { name, schema } } });
const prompt = "Give me an example.";
const CLIENTS = {
  zod: [TYPES, (name, type) => format(name, z.toJSONSchema(type))],
  "zod-3": [TYPES_3, (name, type) => format(name, zodToJsonSchema(type))],
  "openai-node": [TYPES, (name, type) => ({ response_format: zodResponseFormat(type, name) })],
  "ai-sdk-json": [
    TYPES,
    (name, type) =>
      caught((model) => generateText({ model, prompt, output: Output.object({ schema: type, name }), maxRetries: 0 })),
  ],
  "ai-sdk-tools": [
    TYPES,
    (name, type) =>
      caught((model) =>
        generateText({
          model,
          prompt,
          tools: { [name]: tool({ description: name, inputSchema: type }) },
          toolChoice: "required",
          maxRetries: 0,
        }),
      ),
  ],
};

for (const [client, [all, make]] of Object.entries(CLIENTS)) {
  const fragments = {};
  for (const [name, type] of Object.entries(all)) {
    try {
      fragments[name] = await make(name, type);
    } catch (error) {
      console.error(`${client} cannot express ${name}: ${error.message.split("\n")[0]}`);
    }
  }
  writeFileSync(`${client}.json`, JSON.stringify(fragments, null, 1) + "\n");
}
