"""Measures the choice among 20 intents behind a cached prefix: `python -m tests.peer.choose [MODEL]`.

In turns it asks for a choice, for a choice with calibration, and for a prompt with as many new tokens behind the same
prefix, whose first token ends one prefill step. It prints the medians of the engine's time (the stage `prefill`) and of
the whole request, and how much longer the choice takes. The bar is 5 ms of the engine's time. It also prints what 20
separate completions take that echo their prompts with log probabilities, which no cache can serve.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.peer.servers import Child, edgeagent_command, free_port

INTENTS = [
    *("turn on the lights", "turn off the lights", "dim the lights", "start a timer", "stop the timer", "play music"),
    *("pause the music", "next song", "raise the volume", "lower the volume", "set the heating", "tell the weather"),
    *("add to the shopping list", "read the shopping list", "open the blinds", "close the blinds", "lock the door"),
    *("call somebody", "tell the time", "none of these"),
]
INSTRUCTIONS = (
    "You are the voice of a house. You name what the user wants, in exactly one of these forms, and nothing else: "
    + "; ".join(INTENTS)
    + ". "
    + " ".join(f"The lamp in room {number} is called lamp {number} and can be dimmed." for number in range(1, 31))
)
INPUTS = ("it is too dark in here", "i cannot hear the song", "we are out of milk", "wake me in ten minutes")


class Figures:
    """The measured milliseconds of one kind of request."""

    def __init__(self) -> None:
        self.step_ms: list[float] = []
        self.wall_ms: list[float] = []

    async def take(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        began_s = time.perf_counter()
        answer = await ask()
        self.wall_ms.append(1000 * (time.perf_counter() - began_s))
        if "edgeagent" in answer:
            self.step_ms.append(answer["edgeagent"]["stages_ms"]["prefill"])

    def text(self) -> str:
        step = f"{median(self.step_ms):7.1f}" if self.step_ms else "      -"
        return f"{step} ms in the engine, {median(self.wall_ms):7.1f} ms in all"


class Client:
    """The requests that are compared."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        reply = await self._http.post(path, json=body)
        return dict(reply.raise_for_status().json())

    async def choose(self, text: str, **fields: Any) -> dict[str, Any]:
        return await self.post("/edgeagent/choose", instructions=INSTRUCTIONS, input=text, choices=INTENTS, **fields)

    async def prompt(self, text: str) -> list[int]:
        messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": text}]
        rendered = await self.post("/apply-template", messages=messages)
        return list((await self.post("/tokenize", content=rendered["prompt"], parse_special=True))["tokens"])

    async def prefill(self, tokens: list[int]) -> dict[str, Any]:
        return await self.post("/v1/completions", prompt=tokens, max_tokens=1)

    async def separately(self, prompt: list[int], choices: list[list[int]]) -> dict[str, Any]:
        asked = (
            self.post("/v1/completions", prompt=[*prompt, *choice], max_tokens=0, echo=True, logprobs=0)
            for choice in choices
        )
        await asyncio.gather(*asked)
        return {}


async def measure(url: str, num_runs: int) -> None:
    kinds = {name: Figures() for name in ("one prefill step", "choose", "choose, calibrated")}
    apart = Figures()
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        client = Client(http)
        choices = [(await client.post("/tokenize", content=text))["tokens"] for text in INTENTS]
        for text in INPUTS:
            await client.choose(text, calibrate=True)
        for run in range(num_runs):
            text = f"{INPUTS[run % len(INPUTS)]}, number {run}"
            chosen = await client.choose(text)
            usage = chosen["usage"]
            num_cached = usage["input_tokens_details"]["cached_tokens"]
            num_new = usage["input_tokens"] - num_cached + usage["choice_tokens"]
            prompt = await client.prompt(text)
            fresh = [(7 * index + run) % 1000 + 300 for index in range(num_new)]
            await kinds["one prefill step"].take(lambda: client.prefill([*prompt[:num_cached], *fresh]))  # noqa: B023
            await kinds["choose"].take(lambda: client.choose(f"{text} again"))  # noqa: B023
            await kinds["choose, calibrated"].take(lambda: client.choose(f"{text} once more", calibrate=True))  # noqa: B023
            if run < 2:
                await apart.take(lambda: client.separately(prompt, choices))  # noqa: B023
        print(f"{num_cached} cached tokens, {num_new} new ones, of which {usage['choice_tokens']} are of the choices")
    for name, figures in kinds.items():
        print(f"{name:20} {figures.text()}")
    print(f"{'20 completions':20} {apart.text()}")
    more_ms = median(kinds["choose"].step_ms) - median(kinds["one prefill step"].step_ms)
    print(f"choose takes {more_ms:.1f} ms more than one prefill step of as many tokens; the bar is 5 ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--threads", default="2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = edgeagent_command(given.model, Path(folder) / "state", port, "--threads", given.threads)
        daemon = Child(command, Path(folder) / "log", f"http://127.0.0.1:{port}/ready")
        try:
            asyncio.run(measure(f"http://127.0.0.1:{port}", given.runs))
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
