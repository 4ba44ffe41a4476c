"""Supervisors of stub workers, which are stopped when a test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgeagent.worker.parent.supervision.supervisor import Supervisor
from tests.worker.support import Make, make_supervisor


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    return tmp_path / "lives"


@pytest.fixture
async def make(lives: Path) -> AsyncIterator[Make]:
    made: list[Supervisor] = []

    def make_one(*starts: str, **options: object) -> Supervisor:
        made.append(make_supervisor(lives, *starts, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_one
    for supervisor in made:
        await supervisor.stop()
