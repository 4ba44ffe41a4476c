"""A whole daemon with a scripted worker, in this process, and the invariants that hold whatever the worker does.

I1: it answers /health. I2: each request ends once, without a gap or a repeat. I3: nothing leaks. I7: the same question
has the same answer as before. I8: it continues to serve.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.router.router import Router
from edgeagent.types import ModelStatus, WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.api.event_grammar import EventGrammar
from tests.daemon.running import Running, running
from tests.patience import patient
from tests.robust.lag import waited_s
from tests.stub_worker import num_lives, stub_command
from tests.worker.support import QUICK, eventually, found_at

# The limits of I1, without the time that other programs took; among few looks the slowest is the p99.
MAX_HEALTH_S = 1.0
MAX_HEALTH_P99_S = 0.25
MANY_LOOKS = 100
# An event that takes longer will not come.
EVENT_TIMEOUT_S = patient(60.0)
# In the test's folder; it exists only if the test creates it.
MODEL_FILE = "model.gguf"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class Stream:
    """One response over a WebSocket, checked as it arrives: I2."""

    socket: ClientConnection
    events: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    _grammar: EventGrammar = field(default_factory=EventGrammar)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(EVENT_TIMEOUT_S):
            event: dict[str, Any] = json.loads(await self.socket.recv())
        assert not self.events or self.events[-1]["type"] not in TERMINAL, "an event after the end"
        assert event["type"] != "error", event
        self._grammar.feed(event)
        self.events.append(event)
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        return event

    async def until(self, num_tokens: int) -> Stream:
        """Return once the text of this many tokens has arrived."""
        while len(self.text.split()) < num_tokens:
            await self.next()
        return self

    async def end(self) -> Stream:
        """Return once the response has ended."""
        while not self.events or self.events[-1]["type"] not in TERMINAL:
            await self.next()
        assert {event["response"]["id"] for event in self.events if "response" in event} == {self.response["id"]}
        words = self.text.split()
        assert words == [str(index) for index in range(len(words))], "a gap or a repeat"
        return self

    @property
    def response(self) -> dict[str, Any]:
        response: dict[str, Any] = self.events[-1]["response"]
        return response

    @property
    def handovers(self) -> list[dict[str, Any]]:
        handovers: list[dict[str, Any]] = self.response["edgeagent"].get("handovers", [])
        return handovers


@dataclass
class Faulty:
    """The daemon, and the faults that a test causes."""

    daemon: Running
    lives: Path

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[ClientConnection]:
        url = f"ws://127.0.0.1:{self.daemon.port}/v1/responses"
        async with connect(url, close_timeout=1) as socket:
            yield socket

    async def say(self, socket: ClientConnection, text: str) -> Stream:
        """Create a response on an open socket."""
        await socket.send(json.dumps({"type": "response.create", "input": text, "store": False}))
        return Stream(socket)

    async def ask(self, text: str) -> Stream:
        """Create a response on a new socket and wait for its end."""
        async with self.socket() as socket:
            return await (await self.say(socket, text)).end()

    @property
    def model(self) -> ModelStatus:
        (status,) = self.daemon.service.models.statuses()
        return status

    @property
    def worker(self) -> psutil.Process:
        assert self.model.pid is not None
        return psutil.Process(self.model.pid)

    @property
    def num_lives(self) -> int:
        return num_lives(self.lives)

    async def is_serving(self) -> None:
        """Assert I7 and I8."""
        stream = await self.ask("answer 3")
        assert (stream.response["status"], stream.text) == ("completed", "0 1 2 ")


@asynccontextmanager
async def faulty(
    folder: Path, *starts: str, limits: SupervisionLimits = QUICK, serves_after: bool = True, **engine: Any
) -> AsyncIterator[Faulty]:
    """Run a daemon whose worker follows the text of each request; check the invariants around the test."""
    lives = folder / "lives"
    others = {child.pid for child in psutil.Process().children()}
    config = Config(state_dir=folder / "state", engine=EngineConfig(**engine))
    files = found_at(folder / MODEL_FILE, "stub")
    pool = Pool(
        config, ModelSource(lambda _: files, lambda _: None), command=stub_command(lives, *starts), limits=limits
    )
    router = Router([LocalBackend(pool)])
    await router.start()
    try:
        async with running(router, config) as daemon:
            victim = Faulty(daemon, lives)
            if serves_after:
                await eventually(lambda: victim.model.state is WorkerState.READY)
                await victim.is_serving()
            before = _held()
            async with watched_health(daemon.http, f"{daemon.url}/health"):
                yield victim
            # The test's own connections must not count as the daemon's.
            await daemon.http.aclose()
            if serves_after:
                await victim.is_serving()
                await _wait_for(before)
    finally:
        await router.stop()
    assert {child.pid for child in psutil.Process().children()} <= others


@asynccontextmanager
async def watched_health(http: httpx.AsyncClient, url: str) -> AsyncIterator[None]:
    """Request /health 20 times a second; fail if an answer is wrong or slower than I1 allows."""
    took_s: list[float] = []

    async def ask() -> None:
        while True:
            began_s, before_s = time.monotonic(), waited_s()
            answer = await http.get(url, timeout=EVENT_TIMEOUT_S)
            took_s.append(time.monotonic() - began_s - (waited_s() - before_s))
            assert _is_health(answer), f"/health says {answer.status_code}: {answer.text[:200]}"
            await asyncio.sleep(0.05)

    watch = asyncio.create_task(ask())
    try:
        yield
    finally:
        # One more look, so that there is at least one even if the fault was short.
        await asyncio.wait({watch}, timeout=0.06)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
    assert took_s and max(took_s) <= MAX_HEALTH_S, f"/health took {max(took_s, default=0):.2f} s"
    if len(took_s) >= MANY_LOOKS:
        p99_s = sorted(took_s)[len(took_s) * 99 // 100]
        assert p99_s <= MAX_HEALTH_P99_S, f"the p99 of /health was {p99_s:.2f} s"


def _is_health(answer: httpx.Response) -> bool:
    """Return whether an answer is a valid health report: ok, or no worker at the moment."""
    if answer.status_code == 200:
        return bool(answer.json() == {"status": "ok"})
    if answer.status_code != 503 or not answer.headers["content-type"].startswith("application/json"):
        return False
    error = answer.json().get("error", {})
    return error.get("code") == 503 and error.get("message") in ("Loading model", "No model is ready", "Stopping")


def _held() -> tuple[int, ...]:
    """Return the numbers of tasks, threads, child processes and descriptors (where the platform counts them).

    asyncio's pool keeps a few threads for later work, so they do not count.
    """
    gc.collect()
    process = psutil.Process()
    num_pooled = sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())
    num_descriptors = process.num_fds() if hasattr(process, "num_fds") else 0
    return len(asyncio.all_tasks()), process.num_threads() - num_pooled, len(process.children()), num_descriptors


async def _wait_for(before: tuple[int, ...]) -> None:
    """Wait until no more is held than before: I3."""
    await eventually(lambda: all(now <= then for now, then in zip(_held(), before, strict=True)))
