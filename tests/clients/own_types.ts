// What a TypeScript application writes: `tsc --strict` must take it (see own_types.py).
import { type Answer, EdgeagentError, Sentences, connect, functionOutput, locate } from "edgeagent-client";

export async function use(): Promise<string> {
  const { url, token } = await locate({ start: true });
  const client = connect({ url, token });
  await client.prefill("", { instructions: "Be kind.", ahead: false });
  const minutes: number[] = [];
  const run = (args: { minutes: number }) => minutes.push(args.minutes);
  const talk = client.conversation({ tools: [{ name: "set_timer", parameters: { type: "object" }, run }] });
  await talk.append("Set a ");
  await talk.replaceTail("timer");
  await talk.ahead();
  const reply = await talk.commit(null, { background: true, maxRounds: 2 });
  for await (const sentence of reply.sentences()) console.log(sentence.length, talk.responseId);
  for await (const event of client.respond([functionOutput("call_1", "ok")])) console.log(event.type);
  const answer: Answer | null = await talk.cancel();
  // @ts-expect-error: a message is a text or a list
  client.ask(5);
  if (answer?.error instanceof EdgeagentError) return answer.error.code;
  return new Sentences().add(reply.answer.text).join();
}
