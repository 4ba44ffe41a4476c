"""F13: the wall clock may jump, so deadlines, watchdogs and durations use the monotonic clock."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from tests.robust.faults import faulty

PACKAGE = Path(__file__).resolve().parents[2] / "edgeagent"
# Modules that show dates to people, or compare them with the dates of other processes and files. They time nothing by
# the wall clock.
MAY_TELL_THE_DATE = (
    "answers/answers.py",  # kept answers have an age, which outlives the daemon
    "answers/recent.py",
    "answers/redis_store.py",
    "answers/store.py",
    "api/",
    "backends/remote/run.py",  # Retry-After may be a date, and pseudonyms change each day
    "backends/remote/transport.py",  # used where no clock reveals that the machine slept
    "bench/saved.py",
    "cache_folder.py",
    "cache_retention.py",
    "cli/egress.py",
    "cli/tune.py",
    "conversation/store.py",
    "credentials/keys.py",
    "daemon/listeners.py",  # a certificate has dates
    "daemon/logs.py",
    "daemon/traces.py",
    "egress/",
    "engine/cache/disk/",
    "metrics/slo.py",  # its windows outlive the daemon
    "runtime_file.py",
    "store/",
    "text/template/chat_template.py",
)
CLOCKS = ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today")


def dates(path: Path) -> list[int]:
    """Return the numbers of the lines that read the wall clock."""
    source = path.read_text(encoding="utf-8")
    if not any(call in source for call in CLOCKS):  # to parse all modules takes a second
        return []
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS]


def test_only_who_shows_dates_asks_for_them() -> None:
    timed = {path.relative_to(PACKAGE).as_posix(): lines for path in PACKAGE.rglob("*.py") if (lines := dates(path))}
    strangers = {name for name in timed if not name.startswith(MAY_TELL_THE_DATE)}
    assert not strangers


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 365 * 86400.0, -365 * 86400.0])
async def test_a_jump_in_mid_stream_moves_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    wall = time.time
    async with faulty(tmp_path) as victim, victim.socket() as socket:
        stream = await (await victim.say(socket, "stream")).until(3)
        monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
        await stream.until(30)
        assert victim.num_lives == 1
        monkeypatch.undo()
