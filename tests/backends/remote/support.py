"""A remote's backend for tests, with a ledger in memory, a fixed key and short limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from edgeagent.backends.remote.backend import RemoteBackend
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import EdgeAgentError, RemoteUnavailable
from edgeagent.remotes import EndpointConfig, Key, Limits, Remote, Tls
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    Delta,
    Finished,
    GenerateRequest,
    Message,
    Permit,
    ProbePermit,
    RouteMode,
    Started,
    TextDelta,
    replace,
)
from tests.backends.reading import steps_of
from tests.patience import patient
from tests.present import present

KEY = "sk-canary-key"
LIMITS = Limits(max_concurrent=8, connect_s=2.0, first_token_s=5.0, idle_s=5.0, total_s=20.0)
REQUEST = GenerateRequest("resp_1", "tiny", ChatPrompt((Message("user", "canary prompt"),)))


@dataclass
class Rows(Ledger):
    """A ledger that keeps its rows: [host, model, bytes, outcome, prompt tokens, output tokens]; `probes` apart."""

    rows: list[list[Any]] = field(default_factory=list)
    probes: list[str] = field(default_factory=list)
    over_budget: str | None = None
    error: EdgeAgentError | None = None
    left: int | None = None

    def begin(
        self,
        permit: Permit | ProbePermit,
        host: str,
        model: str,
        num_bytes: int,
        num_prompt_tokens: int = 0,
        max_tokens: int = 0,
    ) -> int:
        """Begin a row. Those of probes have negative numbers."""
        if self.error is not None:
            raise self.error
        if isinstance(permit, ProbePermit):
            self.probes.append("open")
            return -len(self.probes)
        if self.over_budget is not None:
            raise RemoteUnavailable(self.over_budget, served_by="remote:gpu")
        self.rows.append([host, model, num_bytes, "open", 0, 0])
        return len(self.rows) - 1

    def end(
        self,
        row: int,
        outcome: str,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
        *,
        differs: bool = False,
    ) -> None:
        """End a row, once."""
        if row < 0:
            assert self.probes[-row - 1] == "open"
            self.probes[-row - 1] = outcome
            return
        assert self.rows[row][3] == "open"
        self.rows[row][3:] = [outcome, num_prompt_tokens, num_output_tokens]

    def why_blocked(self, remote: str, client: str, num_prompt_tokens: int = 0, max_tokens: int = 0) -> str | None:
        """Return the value that the test set."""
        return self.over_budget

    def tokens_left(self, remote: str, client: str, num_prompt_tokens: int) -> int | None:
        """Return the value that the test set."""
        return self.left

    @property
    def outcomes(self) -> list[str]:
        """How the rows of requests ended."""
        return [row[3] for row in self.rows]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def backend(
    *urls: str,
    ledger: Rows | None = None,
    keys: Callable[[Key], str] | None = None,
    probes: bool = False,
    clock: Clock | None = None,
    tls: Tls | None = None,
    regions: tuple[str, ...] = (),
    **fields: Any,
) -> AsyncIterator[RemoteBackend]:
    """Run the backend of a remote at these URLs."""
    regions = regions or ("",) * len(urls)
    endpoints = tuple(EndpointConfig(url, region) for url, region in zip(urls, regions, strict=True))
    given = {"key": Key("env", "KEY"), "limits": LIMITS, "tls": tls or Tls(), **fields}
    leave = ProbePermit("gpu", RouteMode.PREFER_LOCAL) if probes else None
    made = RemoteBackend(
        Remote("gpu", endpoints, **given),
        keys=keys or (lambda key: KEY),
        ledger=ledger if ledger is not None else Rows(),
        probes=lambda: leave,
        **({"clock": clock} if clock is not None else {}),
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def probe(remote: RemoteBackend) -> None:
    """Probe the remote's first endpoint."""
    await remote._check(remote._cluster.endpoints[0], present(remote._probes()))


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds that another task fulfils."""
    async with asyncio.timeout(patient(10)):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def permit(request: GenerateRequest = REQUEST, mode: RouteMode = RouteMode.PREFER_LOCAL) -> Permit:
    """Return a permit to send a request."""
    return Permit(request.id, "gpu", mode, "queue")


@dataclass
class Answer:
    """Everything that one request produced."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0
    is_estimated: bool = False
    error: EdgeAgentError | None = None

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def started(self) -> Started:
        """The first delta."""
        assert isinstance(self.deltas[0], Started)
        return self.deltas[0]

    @property
    def finished(self) -> Finished:
        """The last delta."""
        assert isinstance(self.deltas[-1], Finished)
        return self.deltas[-1]


async def ask(
    remote: RemoteBackend, request: GenerateRequest = REQUEST, so_far: AnswerSoFar | None = None, **changes: Any
) -> Answer:
    """Run a request to its end, and check that it ends exactly once."""
    request = replace(request, **changes)
    answer = Answer()
    try:
        async for step in steps_of(remote.generate, request, permit(request), so_far):
            answer.deltas += step.deltas
            answer.num_tokens += step.num_delivered
            answer.is_estimated |= step.is_estimated
    except EdgeAgentError as error:
        answer.error = error
    ends = [delta for delta in answer.deltas if isinstance(delta, Finished)]
    assert len(ends) + (answer.error is not None) == 1
    assert not ends or answer.deltas[-1] is ends[0]
    return answer
