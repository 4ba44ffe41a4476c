"""Measures a turn of a voice assistant over one WebSocket: `python -m tests.peer.voice_turn [MODEL]`.

A user's 60 words come as 12 growing revisions, behind a context of 1,400 tokens. The turn ends in three ways: without
revisions, with prefill ahead, and with the answer ahead, 400 ms after the last word. It prints the time from the final
text to the first token and to the first twelve, and how many tokens were computed that the turn did not need. Then it
cancels responses that wait, read their prompt, build a grammar and generate, and prints the time from the cancel to the
end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.bench.stats import quantile
from edgeagent.client import Address
from edgeagent.runtime_file import find_daemon
from tests.peer.servers import Child, edgeagent_command, free_port
from tests.present import present
from tests.smollm2 import MODEL

CONTEXT = "You are the voice of a house. Answer in one or two short sentences. " + " ".join(
    f"The lamp in room {number} is called lamp {number} and can be dimmed." for number in range(1, 79)
)
SPOKEN = (
    "please tell me which lamps in this house are still on because we want to go to bed soon and i would like you to "
    "dim the one in the room of the children a little and to turn off all of the others but not the one in the hall "
    "since my brother comes home late tonight and he needs some light on his way up"
)
NUM_REVISIONS = 12
SPEECH_S = 0.35  # from one revision to the next: five words
SILENCE_S = 0.4  # what turn detection waits after the last word
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
TRIES = 3  # revisions that are answered ahead: the last ones; LiveKit's agents try three times a turn


def revisions(turn: int) -> list[str]:
    """Return the growing transcript of a turn. Every third revision ends in a word that the next one corrects."""
    words = [f"In turn {turn},", *SPOKEN.split()]
    texts = []
    for index in range(1, NUM_REVISIONS + 1):
        part = words[: len(words) * index // NUM_REVISIONS]
        is_misheard = index % 3 == 0 and index < NUM_REVISIONS
        texts.append(" ".join([*part[:-1], "uh"] if is_misheard else part))
    return texts


@dataclass(slots=True)
class Lane:
    """One WebSocket, read by a task that notes when each event comes."""

    socket: ClientConnection
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Read until the socket closes."""
        async for text in self.socket:
            self.events.append((time.perf_counter(), json.loads(text)))
            self.arrived.set()

    async def send(self, kind: str = "response.create", **fields: Any) -> float:
        """Send a frame, and return when it was sent."""
        at_s = time.perf_counter()
        await self.socket.send(json.dumps({"type": kind, **fields}))
        return at_s

    async def until(self, *kinds: str, after_s: float) -> tuple[float, dict[str, Any]]:
        """Return the first event of these kinds that came after a time, and when it came."""
        async with asyncio.timeout(120):
            while True:
                self.arrived.clear()
                for at_s, event in self.events:
                    if at_s > after_s and event["type"] in kinds:
                        return at_s, event
                await self.arrived.wait()


@asynccontextmanager
async def lane(address: Address) -> AsyncIterator[Lane]:
    """Open a WebSocket to the daemon."""
    async with connect(address.websocket_url, max_size=None) as socket:
        made = Lane(socket)
        reader = asyncio.create_task(made.read())
        try:
            yield made
        finally:
            reader.cancel()


@dataclass(slots=True)
class Times:
    """The samples of one way to end a turn, in milliseconds and tokens."""

    first_ms: list[float] = field(default_factory=list)
    twelfth_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    num_uncached: list[int] = field(default_factory=list)
    num_extra: list[int] = field(default_factory=list)
    num_ahead: list[int] = field(default_factory=list)


async def counts(address: Address) -> tuple[int, int]:
    """Return how many prompt tokens the worker has computed and how many it has generated."""
    await asyncio.sleep(1.5)  # it reports once a second
    async with httpx2.AsyncClient() as client:
        headers = {"Authorization": f"Bearer {address.token}"}
        status = (await client.get(f"{address.url}/edgeagent/status", headers=headers)).json()
    worker = status["models"][0]["worker"]
    return worker["num_prompt_tokens_total"] - worker["num_cached_tokens_total"], worker["num_output_tokens_total"]


async def turn(address: Address, voice: Lane, number: int, way: str, times: Times) -> None:
    """Speak one turn, and add its samples."""
    texts = revisions(number)
    fields: dict[str, Any] = {"instructions": CONTEXT, "max_output_tokens": 40, "temperature": 0}
    before = await counts(address)
    for index, text in enumerate(texts if way != "plain" else []):
        is_tried = way == "answer" and index >= NUM_REVISIONS - TRIES
        marked: dict[str, Any] = {"edgeagent": {"ahead": True}} if is_tried else {}
        await voice.send(input=text, generate=False, **fields, **marked)
        await asyncio.sleep(SPEECH_S if index < NUM_REVISIONS - 1 else SILENCE_S)
    sent_s = await voice.send(input=texts[-1], **fields)
    first_s, _ = await voice.until("response.output_text.delta", after_s=sent_s)
    _, end = await voice.until("response.completed", "response.incomplete", after_s=first_s)
    deltas = [(at_s, event) for at_s, event in voice.events if at_s > sent_s and event["type"].endswith("text.delta")]
    response = end["response"]
    num_ahead = response["edgeagent"].get("ahead_tokens", 0)
    # The first delta has all tokens that were ready. An answer may have fewer than twelve.
    twelfth_s = deltas[min(max(0, 12 - max(1, num_ahead)), len(deltas) - 1)][0]
    after = await counts(address)
    usage = response["usage"]
    num_needed = usage["output_tokens"] + len(" ".join(texts[-1:]).split())
    num_computed = sum(after) - sum(before)
    gaps = [(late[0] - early[0]) * 1000 for early, late in itertools.pairwise(deltas[1:])]
    times.first_ms.append((first_s - sent_s) * 1000)
    times.twelfth_ms.append((twelfth_s - sent_s) * 1000)
    times.step_ms += gaps
    times.num_uncached.append(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])
    times.num_ahead.append(num_ahead)
    times.num_extra.append(num_computed - num_needed)


async def cancels(address: Address, state: str, num: int) -> list[float]:
    """Return the milliseconds from a cancel to the end, for responses in one state."""
    samples = []
    async with lane(address) as voice, lane(address) as other:
        for index in range(num):
            long = f"{index} {state}. {CONTEXT}"
            text = f"Tell me a long story, number {index}." if state in ("decode", "grammar") else long
            form: dict[str, Any] = {"text": {"format": _large_schema(index)}} if state == "grammar" else {}
            if state == "long prefill":
                text = f"{long} {CONTEXT} {CONTEXT} {CONTEXT}"
            if state == "queued":
                for stream in range(8):
                    await other.send(input=f"{stream} {long}", stream_id=str(stream), max_output_tokens=200)
            sent_s = await voice.send(input=text, max_output_tokens=400, **form)
            if state == "decode":
                await voice.until("response.output_text.delta", after_s=sent_s)
            await asyncio.sleep(0.03 + 0.37 * index / num)
            cancelled_s = await voice.send("response.cancel")
            end_s, _ = await voice.until(*TERMINAL, after_s=sent_s)
            samples.append(max(0.0, end_s - cancelled_s) * 1000)
            if state == "queued":
                for stream in range(8):
                    await other.send("response.cancel", stream_id=str(stream))
                await asyncio.sleep(0.2)
    return samples


def _large_schema(number: int) -> dict[str, Any]:
    """Return a format whose grammar takes long to build, and is not cached."""
    names = [f"{word}{number}{index}" for index in range(40) for word in ("name", "room", "lamp")]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": f"^[a-z]{{1,{1 + len(name)}}}$"} for name in names},
    }
    return {"type": "json_schema", "name": "large", "schema": {**schema, "required": names}}


async def measure(address: Address, num_turns: int, num_cancels: int) -> None:
    """Print the figures of a running daemon."""
    ways = {way: Times() for way in ("plain", "prefill", "answer")}
    async with lane(address) as voice:
        sent_s = await voice.send(instructions=CONTEXT, input=[], generate=False)
        await voice.until(*TERMINAL, after_s=sent_s)
        for number in range(num_turns):
            for index, (way, times) in enumerate(ways.items()):
                await turn(address, voice, 100 + 10 * number + index, way, times)
    step_ms = median(ways["plain"].step_ms)
    print(f"a decode step takes {step_ms:.1f} ms")
    print(
        f"{'':8} {'first ms':>9} {'worst':>7} {'twelve ms':>9} {'worst':>7} {'uncached':>9} {'extra':>6} {'ahead':>6}"
    )
    for way, times in ways.items():
        first, twelfth = times.first_ms, times.twelfth_ms
        counted = f"{median(times.num_uncached):9.0f} {median(times.num_extra):6.0f} {median(times.num_ahead):6.0f}"
        print(f"{way:8} {median(first):9.1f} {max(first):7.1f} {median(twelfth):9.1f} {max(twelfth):7.1f} {counted}")
    for state in ("queued", "prefill", "long prefill", "grammar", "decode"):
        samples = await cancels(address, state, num_cancels)
        print(f"cancel while {state}: median {median(samples):.1f} ms, p99 {quantile(samples, 0.99):.1f} ms")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the daemon, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(MODEL), help="a model file or name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=4, help="turns of each way")
    parser.add_argument("--cancels", type=int, default=20, help="cancels in each state")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        state, port = Path(folder, "state"), free_port()
        flags = ("--threads", str(args.threads), "--ctx", "8192", "--parallel", "2")
        command = edgeagent_command(args.model, state, port, *flags)
        child = Child(command, Path(folder, "log"), f"http://127.0.0.1:{port}/ready")
        try:
            runtime = present(find_daemon(state))
            asyncio.run(measure(Address(f"http://127.0.0.1:{port}", runtime.token), args.turns, args.cancels))
        finally:
            child.stop()


if __name__ == "__main__":
    main()
