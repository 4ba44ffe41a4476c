"""A process that uses too much memory while preparing a prompt or answering a query ends, and nothing else does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.errors import WorkerCrashed
from edgeagent.types import MemoryKind, Tokenize
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.conftest import TinyModel
from tests.integration.test_slow_machine import ask, running, tokens_of
from tests.worker.support import eventually

LIMITS = SupervisionLimits(ping_interval_s=0.02, first_backoff_s=0.01)
HOARDING = (sys.executable, "-P", "-m", "tests.hoarding_worker")


def prompt(backend: LocalBackend) -> Coroutine[Any, Any, object]:
    return tokens_of(backend, ask("hoards", 7, 3))


def question(backend: LocalBackend) -> Coroutine[Any, Any, object]:
    return backend.models.ask("", Tokenize("hoard"))


@pytest.mark.daily(1, seconds=3)
@pytest.mark.parametrize(("make", "num_restarts"), [(prompt, 2), (question, 1)])
async def test_a_hoarder_is_ended_and_a_stream_beside_it_goes_on(
    tiny_model: TinyModel, make: Any, num_restarts: int
) -> None:
    async with running(tiny_model(MemoryKind.FULL_ATTENTION), HOARDING, LIMITS) as backend:
        expected = await tokens_of(backend, ask("alone", 40, 400))
        beside = asyncio.create_task(tokens_of(backend, ask("beside", 40, 400)))
        with pytest.raises(WorkerCrashed, match=r"took \d+ MiB of memory more than planned"):
            await make(backend)
        assert await beside == expected
        # If the stream had ended before, the worker is still being replaced.
        await eventually(lambda: backend.models.statuses()[0].num_restarts >= num_restarts)
