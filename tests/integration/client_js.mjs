// The cases of test_client_js.py: each is a line with its name, when it has passed.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import * as edgeagent from "../../packaging/js/edgeagent.js";

const { EdgeagentError, Sentences, connect } = edgeagent;

const { URL_, CUTTING_URL, LOCKED_URL, TOKEN, STATE_DIR, COMMAND } = process.env;
const GREEDY = { temperature: 0, max_output_tokens: 40 };
const CAPABILITIES = "What can you do?";
const sleep = (milliseconds) => new Promise((wake) => setTimeout(wake, milliseconds));

async function collected(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

const cases = {
  sentences() {
    const table = JSON.parse(readFileSync(new URL("../client/sentences.json", import.meta.url), "utf8"));
    for (const [name, text, expected] of table) {
      for (const parts of [[text], [...text]]) {
        const splitter = new Sentences();
        assert.deepEqual([...parts.flatMap((part) => splitter.add(part)), ...splitter.end()], expected, name);
      }
    }
  },

  async files() {
    const wav = new TextEncoder().encode("RIFF....WAVEfmt ");
    const png = Uint8Array.from({ length: 100_000 }, (_, index) => index * 7);
    const message = await edgeagent.userMessage("What is this?", new Blob([png]), wav.buffer, process.env.PHOTO);
    const [image, sound, photo, text] = message.content;
    assert.deepEqual(image, { type: "input_image", image_url: `data:image/png;base64,${Buffer.from(png).toString("base64")}`, detail: "auto" });
    assert.deepEqual(sound, { type: "input_audio", input_audio: { data: btoa("RIFF....WAVEfmt "), format: "wav" } });
    assert.equal(photo.image_url, `data:image/png;base64,${readFileSync(process.env.PHOTO).toString("base64")}`);
    assert.deepEqual(text, { type: "input_text", text: "What is this?" });
    assert.deepEqual((await edgeagent.userMessage("")).content, [{ type: "input_text", text: "" }]);
    const client = connect({ url: URL_ });
    const shown = [await edgeagent.userMessage("What is this?", process.env.PHOTO)];
    await assert.rejects(client.ask(shown), (error) => error.code === "not_supported" && /reads only text/.test(error.message));
    await client.close();
  },

  types() {
    const declared = readFileSync(new URL("../../packaging/js/edgeagent.d.ts", import.meta.url), "utf8");
    const names = [...declared.matchAll(/^export declare (?:class|function) (\w+)/gm)].map(([, name]) => name);
    assert.deepEqual(names.sort(), Object.keys(edgeagent).sort());
    for (const [, name, body] of declared.matchAll(/^export declare class (\w+)[^{]*\{\n(.*?)^\}/gms)) {
      const methods = [...body.matchAll(/^  (?:get )?(\w+)\(/gm)].map(([, method]) => method);
      const real = Object.getOwnPropertyNames(edgeagent[name].prototype).filter((method) => method[0] !== "_");
      assert.deepEqual([...new Set(["constructor", ...methods])].sort(), real.sort(), name);
    }
  },

  async ahead() {
    const client = connect({ url: URL_ });
    const expected = (await client.ask(CAPABILITIES, GREEDY)).text;
    let numAhead = 0;
    for (let attempt = 0; attempt < 10 && !numAhead; attempt++) {
      const talk = client.conversation(GREEDY);
      await talk.prefill();
      await talk.append("What ");
      await talk.replaceTail("can I do");
      await talk.replaceTail("can you do?");
      assert.equal(talk.words, CAPABILITIES);
      await talk.ahead();
      await sleep(200 * attempt);
      const reply = await talk.commit();
      assert.deepEqual(await collected(reply.sentences()), [expected]);
      assert.equal(talk.responseId, reply.answer.responseId);
      numAhead = reply.answer.edgeagent.ahead_tokens ?? 0;
    }
    assert(numAhead > 0);
    await client.close();
  },

  async classified() {
    const client = connect({ url: URL_ });
    const choices = ["lights", "timer", { id: "none", text: "nothing" }];
    const choice = await client.classify("Set a timer for five minutes", choices, { calibrate: true });
    assert.deepEqual(choice.chances.map(({ id }) => id).sort(), ["lights", "none", "timer"]);
    assert.equal(choice.id, choice.chances[0].id);
    assert(Math.abs(choice.chances.reduce((sum, { probability }) => sum + probability, 0) - 1) < 1e-6);
    await assert.rejects(client.classify("hi", ["one"]), (error) => error instanceof EdgeagentError && error.param === "choices");
    await client.close();
  },

  async interrupted() {
    const client = connect({ url: `${URL_}/v1` });
    const talk = client.conversation({ temperature: 0 });
    const reply = await talk.commit(CAPABILITIES, { max_output_tokens: 1000 });
    let text = "";
    let begin;
    const begun = new Promise((done) => (begin = done));
    const reading = (async () => {
      for await (const part of reply.texts()) {
        text += part;
        begin();
      }
    })();
    await begun;
    await talk.append("never ");
    assert.equal(await talk.cancel(), reply.answer);
    await reading;
    assert(["cancelled", "completed"].includes(reply.answer.status) && reply.answer.text.startsWith(text));
    await talk.append("mind. Hello!");
    const again = await talk.commit();
    assert.equal(again.request.previous_response_id, reply.answer.responseId);
    assert((await again.finish()).text);
    await client.close();
  },

  async tools() {
    const called = [];
    const set_timer = {
      name: "set_timer",
      description: "Set a timer.",
      parameters: { type: "object", properties: { minutes: { type: "integer" } }, required: ["minutes"] },
      run: ({ minutes }) => (called.push(minutes), { ok: true }),
    };
    const client = connect({ url: URL_ });
    for (const background of [false, true]) {
      const reply = client.respond("Set a timer for 7 minutes.", { tools: [set_timer], background, ...GREEDY });
      const answer = await reply.finish();
      assert.equal(reply.rounds[0].toolCalls[0].name, "set_timer");
      assert(answer.text && answer.status === "completed");
    }
    // A function may return an image, for which this model sees a note.
    const photo = { ...set_timer, run: () => new Uint8Array(readFileSync(process.env.PHOTO)) };
    const shown = client.respond("Set a timer for 7 minutes.", { tools: [photo], ...GREEDY });
    assert((await shown.finish()).text);
    assert.equal(shown.request.input[0].output[0].type, "input_image");
    // Two readers share a reply: its functions run once.
    const shared = client.respond("Set a timer for 7 minutes.", { tools: [set_timer], ...GREEDY });
    await Promise.all([shared.finish(), shared.finish()]);
    assert.deepEqual(called, [7, 7, 7]);
    // One that reads its own reply would wait for itself.
    let refused = null;
    const selfish = { ...set_timer, run: () => own.finish().catch((error) => (refused = error.message)) };
    const own = client.respond("Set a timer for 7 minutes.", { tools: [selfish], ...GREEDY });
    await own.finish();
    assert.match(refused, /a function cannot read the reply that calls it/);
    // One that does not return holds up no cancel.
    let begin;
    const begun = new Promise((done) => (begin = done));
    const endless = { ...set_timer, run: () => (begin(), new Promise(() => undefined)) };
    const stopped = client.respond("Set a timer for 7 minutes.", { tools: [endless], ...GREEDY });
    const reading = stopped.finish();
    await begun;
    assert.equal(await stopped.cancel(), await reading);
    const { run: _, ...definition } = set_timer;
    const answer = await client.ask("Set a timer for 7 minutes.", { tools: [definition], ...GREEDY });
    assert.equal(answer.toolCalls[0].arguments, '{"minutes": 7}');
    await client.close();
  },

  async background() {
    const client = connect({ url: CUTTING_URL });
    const reply = client.respond(CAPABILITIES, { background: true, ...GREEDY });
    const numbers = (await collected(reply)).map((event) => event.sequence_number);
    assert.deepEqual(numbers, [...new Set(numbers)].sort((one, other) => one - other));
    const kept = await (await fetch(`${URL_}/v1/responses/${reply.answer.responseId}`)).json();
    assert.equal(reply.answer.text, kept.output[0].content[0].text);
    const cancelled = connect({ url: URL_ }).respond(CAPABILITIES, { background: true, temperature: 0 });
    const events = cancelled[Symbol.asyncIterator]();
    assert.equal((await events.next()).value.type, "response.created");
    assert(["cancelled", "completed"].includes((await cancelled.cancel()).status));
    assert((await events.next()).done);
  },

  async errors() {
    const failing = (code) => (error) => error instanceof EdgeagentError && error.code === code;
    const client = connect({ url: URL_ });
    await assert.rejects(client.ask("Hi", { model: "none" }), failing("model_not_found"));
    const unknown = { background: true, previous_response_id: "resp_none" };
    await assert.rejects(client.ask("Hi", unknown), failing("previous_response_not_found"));
    await client.close();
    assert.throws(() => connect({ WebSocket: null }), /experimental-websocket/);
    await assert.rejects(connect({ url: LOCKED_URL }).open(), failing("invalid_api_key"));
    await assert.rejects(connect({ url: "http://127.0.0.1:9" }).open(), /no daemon answers at [^ ,]+; start one with .edgeagent serve/);
    await assert.rejects(connect({ command: "no-such-program" }).open(), failing("backend_unavailable"));
  },

  async closed() {
    const client = connect({ url: URL_ });
    const wasClosed = /connection was closed/;
    const opening = client.open();
    await client.close();
    await assert.rejects(opening, wasClosed);
    for (const isOpen of [false, true]) {
      if (isOpen) await client.open();
      const waiting = client.ask(CAPABILITIES, GREEDY);
      await client.close();
      await assert.rejects(waiting, wasClosed);
    }
    assert((await client.ask("Hello!", GREEDY)).text);
    await client.close();
  },

  async located() {
    for (const options of [{ url: LOCKED_URL, token: TOKEN }, { stateDir: STATE_DIR, command: COMMAND }]) {
      const client = connect(options);
      assert((await client.ask("Hello!", GREEDY)).text);
      await client.close();
    }
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(name);
}
