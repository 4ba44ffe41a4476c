"""Runs half an hour of mixed load with faults, and checks that the daemon has not grown: `python -m tests.peer.soak`.

Clients stream over the WebSocket and HTTP, and continue conversations. In 5 % of their requests they misbehave: cancel,
disconnect without a close, stop reading, or send invalid frames. In the first half, the worker is killed at intervals.

Every second the script records a look: the resources that the daemon holds, and how late its event loop is. It prints a
table and a verdict, which soak_verdict computes. It exits with 1 if something grew or failed. `--json FILE` stores
every look.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.leaks import Holdings, holdings, settled, status_of
from tests.peer.soak_verdict import Line, Look, judge

NUM_CLIENTS = 4
FAULT_SHARE = 0.05
# After three kills within a minute, the daemon would quarantine the model. So kills are less frequent.
KILL_EVERY_S = 90.0
KILL_SHADOW_S = 30.0
LOOK_EVERY_S = 1.0
ANSWER_TOKENS = 48
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
# After this time every KV cell was used once, and every cache is full.
MIN_WARM_UP_S = 60.0
WARM_UP_SHARE = 0.1
SETTLE_S = 5.0
WORDS = ["weather", "lights", "kitchen", "timer", "shopping", "morning", "garden", "music", "bedroom", "coffee"]
# Small caches that fill soon, so that later growth does not come from them.
BOUNDS = {"cache-memory-bytes": 4 << 20, "cache-disk-bytes": 16 << 20, "max-stored-bytes": 4 << 20}
FLAGS = (
    *(part for name, bound in BOUNDS.items() for part in (f"--{name}", str(bound))),
    "--log-level",
    "warning",
    "--threads",
    "0",
)


@dataclass(slots=True)
class Soak:
    """The state of one run of the soak."""

    daemon: Daemon
    seconds: float
    random: random.Random
    began_s: float = field(default_factory=time.monotonic)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    killed_at_s: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began_s >= self.seconds

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.daemon.port}/v1/responses"

    def may_fail(self) -> bool:
        """Return whether requests may fail now, because a worker was killed a short time ago.

        A request that was interrupted twice may report a failure.
        """
        return bool(self.killed_at_s) and time.monotonic() - self.killed_at_s[-1] < KILL_SHADOW_S

    def prompt(self) -> str:
        return "Tell me about " + " ".join(self.random.choices(WORDS, k=self.random.randint(2, 60)))


def create(prompt: str, **fields: object) -> str:
    """Return the WebSocket frame that creates a response."""
    return json.dumps({"type": "response.create", "input": prompt, "max_output_tokens": ANSWER_TOKENS, **fields})


async def converse(soak: Soak, prompt: str) -> None:
    """Create a response over a WebSocket, then another that continues it."""
    async with connect(soak.socket_url) as socket:
        previous: dict[str, object] = {}
        for _ in range(2):
            await socket.send(create(prompt, **previous))
            end = await until_end(soak, socket)
            soak.outcomes[end["type"]] += 1
            if end["type"] not in ("response.completed", "response.incomplete"):
                if not soak.may_fail():
                    soak.wrong.append(f"converse: {json.dumps(end)[:300]}")
                return
            previous = {"previous_response_id": end["response"]["id"]}


async def until_end(soak: Soak, socket: Any) -> dict[str, Any]:
    sent_s, has_begun = time.monotonic(), False
    while True:
        event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
        if event["type"] == "response.output_text.delta" and not has_begun:
            has_begun = True
            soak.first_token_s.append(time.monotonic() - sent_s)
        if event["type"] in ENDS:
            return event


async def chat(soak: Soak, prompt: str) -> None:
    """Send a chat completion over HTTP, plain or streamed."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": ANSWER_TOKENS}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        url = f"{soak.daemon.url}/v1/chat/completions"
        response = await http.post(url, json={**body, "stream": soak.random.random() < 0.5})
    soak.outcomes[f"chat {response.status_code}"] += 1
    if response.status_code != 200 and not soak.may_fail():
        soak.wrong.append(f"chat: {response.status_code} {response.text[:200]}")


async def cancel(soak: Soak, prompt: str) -> None:
    """Create a response, cancel it midway, and read its end."""
    async with connect(soak.socket_url) as socket:
        await socket.send(create(prompt))
        await asyncio.wait_for(socket.recv(), 60)
        await socket.send('{"type": "response.cancel"}')
        soak.outcomes["cancelled: " + (await until_end(soak, socket))["type"]] += 1


async def drop(soak: Soak, prompt: str) -> None:
    """Create a response and abort the connection midway."""
    async with connect(soak.socket_url) as socket:
        await socket.send(create(prompt))
        await asyncio.wait_for(socket.recv(), 60)
        socket.transport.abort()
    soak.outcomes["dropped"] += 1


async def stop_reading(soak: Soak, prompt: str) -> None:
    """Create a response, read nothing for a while, and disconnect."""
    async with connect(soak.socket_url, max_queue=1) as socket:
        await socket.send(create(prompt))
        await asyncio.sleep(2.0)
        socket.transport.abort()
    soak.outcomes["stopped reading"] += 1


async def talk_nonsense(soak: Soak, prompt: str) -> None:
    """Send invalid frames, and bytes that are not HTTP."""
    async with connect(soak.socket_url) as socket:
        await socket.send("no JSON")
        await asyncio.wait_for(socket.recv(), 60)
        await socket.send(b"binary")
        await asyncio.wait_for(socket.wait_closed(), 60)
    reader, writer = await asyncio.open_connection("127.0.0.1", soak.daemon.port)
    writer.write(b"\x16\x03\x01 no HTTP\r\n\r\n")
    await asyncio.wait_for(reader.read(), 60)
    writer.close()
    soak.outcomes["nonsense"] += 1


FAULTS = (cancel, drop, stop_reading, talk_nonsense)


async def client(soak: Soak) -> None:
    """Send requests until the soak is over, some of them faulty."""
    while not soak.is_over:
        is_fault = soak.random.random() < FAULT_SHARE
        act = soak.random.choice(FAULTS if is_fault else (converse, converse, chat))
        try:
            await act(soak, soak.prompt())
        except (OSError, WebSocketException, ConnectionClosed, httpx.HTTPError, TimeoutError) as error:
            soak.outcomes[f"{act.__name__}: {type(error).__name__}"] += 1
            if not soak.may_fail():
                soak.wrong.append(f"{act.__name__}: {type(error).__name__} {error}")
        await asyncio.sleep(soak.random.random() * 0.1)


async def kill_workers(soak: Soak) -> None:
    """Kill the worker at intervals in the first half, early enough that the next one can fill its caches."""
    while soak.seconds / 2 - (time.monotonic() - soak.began_s) > KILL_EVERY_S + MIN_WARM_UP_S:
        await asyncio.sleep(KILL_EVERY_S)
        soak.killed_at_s.append(time.monotonic())
        os.kill(soak.daemon.worker_pid(), signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)


async def watch_loop(soak: Soak) -> None:
    """Request /health ten times a second and record the time of each answer. It shows the lag of the event loop."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        while not soak.is_over:
            began_s = time.monotonic()
            await http.get(f"{soak.daemon.url}/health")
            soak.lags_s.append(time.monotonic() - began_s)
            await asyncio.sleep(0.1)


async def look_often(soak: Soak) -> None:
    """Record a look every second: the memory, blocks and other resources that the daemon holds."""
    num_lags = num_first = 0
    while not soak.is_over:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            held = await asyncio.to_thread(holdings, soak.daemon)
            num_blocks = await asyncio.to_thread(blocks_held, soak.daemon)
        except Exception as error:  # after a kill, no worker can be measured until the next one has started
            soak.outcomes[f"look: {type(error).__name__}"] += 1
            continue
        lags, first = soak.lags_s[num_lags:], soak.first_token_s[num_first:]
        num_lags, num_first = len(soak.lags_s), len(soak.first_token_s)
        soak.looks.append(Look(time.monotonic() - soak.began_s, held, num_blocks, max(lags, default=0.0), first))


def blocks_held(daemon: Daemon) -> int:
    """Return the number of blocks in the caches beyond the KV cells."""
    worker = status_of(daemon.url)["models"][0]["worker"]
    return sum(worker[tier]["num_blocks"] for tier in ("memory_cache", "disk_cache") if worker[tier])


async def run(daemon: Daemon, minutes: float, seed: int) -> dict[str, Any]:
    """Soak a daemon; return the figures and the verdict."""
    warm_up = Soak(daemon, max(MIN_WARM_UP_S, minutes * 60 * WARM_UP_SHARE), random.Random(seed))
    await asyncio.gather(*(client(warm_up) for _ in range(NUM_CLIENTS)))
    before = await at_rest(daemon)
    soak = Soak(daemon, minutes * 60, random.Random(seed + 1))
    others = [kill_workers(soak), watch_loop(soak), look_often(soak)]
    await asyncio.gather(*(client(soak) for _ in range(NUM_CLIENTS)), *others)
    await at_rest(daemon)
    await asyncio.to_thread(daemon.run, "cache", "purge")
    return report(soak, before, await at_rest(daemon))


async def at_rest(daemon: Daemon) -> Holdings:
    """Return what the daemon holds once no client is left; raise TimeoutError after 120 s."""
    await asyncio.sleep(SETTLE_S)
    async with asyncio.timeout(120):
        return await settled(daemon)


def report(soak: Soak, before: Holdings, after: Holdings) -> dict[str, Any]:
    """Return the figures as JSON, and the verdict on them."""
    lines = [
        Line("minutes", soak.seconds / 60),
        Line("requests", sum(soak.outcomes.values())),
        Line("workers killed", len(soak.killed_at_s)),
        *judge(soak.looks, soak.lags_s, before, after),
    ]
    return {
        "lines": lines,
        "outcomes": dict(soak.outcomes.most_common()),
        "against": [*(str(line) for line in lines if not line.is_kept), *soak.wrong],
        "before": before,
        "after": after,
        "looks": soak.looks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        daemon = start_daemon(Path(folder) / "state", options.model, *FLAGS)
        try:
            came = asyncio.run(run(daemon, options.minutes, options.seed))
        finally:
            stop_daemon(daemon)
    if options.json:
        options.json.write_text(json.dumps(came, indent=1, default=asdict) + "\n", encoding="utf-8")
    print(*came["lines"], sep="\n")
    print(*(f"{name}: {count}" for name, count in came["outcomes"].items()), sep=", ")
    print(*came["against"] or ["flat"], sep="\n")
    sys.exit(1 if came["against"] else 0)


if __name__ == "__main__":
    main()
