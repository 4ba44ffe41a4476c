"""The script of `make demo`: start the daemon with the bundled model, hold a short conversation, and print the times.

Over the WebSocket it shows an answer, a follow-up that depends on the previous turn, and a tool call that is answered
and continued. Exits with 0 only if all of this happened.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from edgeagent.cli.conversation import stage_table
from edgeagent.cli.temporary import temporary_daemon
from edgeagent.client import Answer, Client, connect, function_output
from edgeagent.errors import EdgeAgentError

TURN_TIMEOUT_S = 60.0
TIMER = {
    "type": "function",
    "name": "set_timer",
    "description": "Set a timer.",
    "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]},
}


class DemoError(Exception):
    """An answer in the demo was missing, unfinished or not as expected."""


def main() -> int:
    """Run the demo; return the exit status."""
    began = time.perf_counter()
    try:
        with temporary_daemon(["builtin"], _Waiting()) as address:
            ready_s = time.perf_counter() - began
            print(f"The bundled model is ready at {address.websocket_url} after {ready_s:.1f} s.\n")
            answers = asyncio.run(hold_conversation(connect(address.url, address.token)))
        print(f"\nWhere the time went, by answer:\n\n{stage_table(answers)}\n")
    except (EdgeAgentError, DemoError, TimeoutError) as error:
        print(f"\ndemo failed: {error or 'no answer within a minute'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print("The daemon has stopped. Talk to it yourself: .venv/bin/edgeagent run")
    return 0


async def hold_conversation(client: Client) -> dict[str, Answer]:
    """Hold the conversation and return its answers by title.

    Raises DemoError if the model calls no tool, or if an answer is empty or unfinished.
    """
    async with client:
        first = await say(client, "Hello, my name is Robin.")
        follow_up = await say(client, "What is my name?", previous_response_id=first.response_id)
        call = await say(
            client, "Set a timer for 10 minutes", previous_response_id=follow_up.response_id, tools=[TIMER]
        )
        outputs = [function_output(made.id, run_tool(made.name, made.arguments)) for made in call.tool_calls]
        if not outputs:
            raise DemoError(f"the model called no tool; it said {call.text!r}")
        told = await say(client, outputs, previous_response_id=call.response_id, tools=[TIMER])
    return {"answer": first, "follow-up": follow_up, "tool call": call, "continued": told}


async def say(client: Client, message: str | list[dict[str, str]], **fields: Any) -> Answer:
    """Send one message, print the exchange as it happens, and return the answer."""
    if isinstance(message, str):
        print(f"you        {message}")
    reply = client.respond(message, temperature=0, **fields)
    print("edgeagent  ", end="", flush=True)
    async with asyncio.timeout(TURN_TIMEOUT_S):
        async for event in reply:
            if event["type"] == "response.output_text.delta":
                print(event["delta"], end="", flush=True)
    answer = reply.answer
    print(*(f"calls {call.name}({call.arguments})" for call in answer.tool_calls))
    if answer.status != "completed" or not (answer.text or answer.tool_calls):
        raise DemoError(f"the answer to {message!r} is empty or unfinished (status {answer.status})")
    return answer


def run_tool(name: str, arguments: str) -> str:
    """Execute the model's tool call, as an application would, and return the result as text."""
    if name != TIMER["name"]:
        raise DemoError(f"the model called {name!r}, which was not offered")
    try:
        wanted = json.loads(arguments)
    except ValueError:
        raise DemoError(f"the arguments of the tool call are no JSON: {arguments!r}") from None
    print(f"tool       a timer runs for {wanted.get('minutes')} minutes")
    return json.dumps({"ok": True})


class _Waiting:
    """Prints each stage that the demo waits for, once."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, text: str) -> None:
        stage = text.rstrip("0123456789% ")
        if stage != self._said:
            print(f"{stage} ...", flush=True)
            self._said = stage


if __name__ == "__main__":
    sys.exit(main())
