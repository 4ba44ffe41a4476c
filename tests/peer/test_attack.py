"""The attacks beside a stream: the list is whole, and the script runs. What it measures depends on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import test_bounded_work as bounded
from tests.integration.conftest import start_daemon, stop_daemon
from tests.peer import attack
from tests.robust import test_client_work as work

MEASURED = ("GAP", "MEMORY")


@pytest.mark.slow(seconds=3)
def test_every_kind_of_work_is_an_attack() -> None:
    names = [each.name for each in attack.attacks()]
    assert len(names) == len(set(names))
    assert {each.name for each in work.members()} <= set(names)
    assert {f"worker: {each.name}" for each in bounded.MEMBERS} <= set(names)


@pytest.mark.slow(seconds=5)
def test_attacks_run_beside_a_stream(tmp_path: Path) -> None:
    chosen = [each for each in attack.attacks() if each.name in ("tools", "worker: tools", "wrong tokens")]
    daemon = start_daemon(tmp_path / "state", "builtin")
    rows = attack.run(daemon, chosen)
    stop_daemon(daemon)
    assert [row["name"] for row in rows] == ["tools", "worker: tools", "wrong tokens"]
    assert [row["faults"] for row in rows if set(row["faults"]) - set(MEASURED)] == []
    assert all(0 < row["gap_s"] < attack.PATIENCE_S for row in rows)
