"""Shared by the tests of the supervisor, the pool and the backends: short timeouts, a recording sink, a stub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.errors import EdgeAgentError
from edgeagent.store.library import Found
from edgeagent.types import Finished, GenerateRequest, Step, TextDelta, TextPrompt
from edgeagent.worker.parent.supervision.supervisor import Supervisor
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.protocol import Load
from tests.patience import patient
from tests.stub_worker import stub_command

Make = Callable[..., Supervisor]
"""What the fixture `make` gives: it makes supervisors of stub workers."""

WITHIN_S = patient(30.0)
QUICK = SupervisionLimits(
    ping_interval_s=0.01,
    pong_timeout_s=5.0,
    hang_timeout_s=5.0,
    load_timeout_s=30.0,
    stop_grace_s=1.0,
    first_backoff_s=0.01,
    max_backoff_s=0.02,
    look_interval_s=0.02,
)


def found_at(path: Path, name: str = "tiny") -> Found:
    """Return what a resolver finds: a model with this name in this file."""
    return Found(name, (path,))


def request(text: str, request_id: str = "r1", model: str = "", **fields: object) -> GenerateRequest:
    """Return a request that makes the stub execute `text`."""
    return GenerateRequest(id=request_id, model=model, prompt=TextPrompt(text), **fields)  # type: ignore[arg-type]


def make_supervisor(
    lives: Path, *starts: str, limits: SupervisionLimits = QUICK, ignore_sigterm: bool = False, **options: object
) -> Supervisor:
    """Return a supervisor of stub workers."""

    async def prepare() -> Load:
        return Load("stub", "/stub.gguf", None, EngineConfig())

    command = stub_command(lives, *starts, ignore_sigterm=ignore_sigterm)
    return Supervisor("stub", prepare, command=command, limits=limits, **options)  # type: ignore[arg-type]


class Record:
    """A sink that keeps everything; tests can wait on it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.error: EdgeAgentError | None = None
        self.num_ends = 0
        self._changed = asyncio.Event()

    def put(self, step: Step) -> None:
        assert self.num_ends == 0, "a step after the end"
        self.steps.append(step)
        self.num_ends += any(isinstance(delta, Finished) for delta in step.deltas)
        self._notify()

    def fail(self, error: Exception) -> None:
        assert self.num_ends == 0, "a failure after the end"
        assert isinstance(error, EdgeAgentError)
        self.error = error
        self.num_ends += 1
        self._notify()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def deltas(self) -> list[object]:
        return [delta for step in self.steps for delta in step.deltas]

    @property
    def tokens(self) -> list[int]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def num_delivered(self) -> int:
        """How many tokens have come with their text. The last ones may still wait for the rest of a character."""
        return sum(step.num_delivered for step in self.steps)

    @property
    def finished(self) -> Finished:
        last = self.deltas[-1]
        assert isinstance(last, Finished), self.error
        return last

    async def until(self, condition: Callable[[Record], bool]) -> None:
        """Return once the condition holds."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    async def end(self) -> Record:
        """Wait for its end."""
        await self.until(lambda record: record.num_ends > 0)
        return self

    def _notify(self) -> None:
        self._changed.set()


async def eventually(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Return once the condition holds; fail after `within_s` seconds.

    For a row's limit, tests pass a multiple of it, since the machine may be busy; without a limit, the default applies.
    """
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not so within {within_s:g} s"
        await asyncio.sleep(0.002)
