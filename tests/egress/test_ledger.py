"""The egress ledger: its rows, its budgets, and its behaviour when it cannot be written."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from edgeagent.egress import BENCH, OWN_REASONS
from edgeagent.egress.ledger import Ledger, own_requests
from edgeagent.egress.rows import day_of, days, file_of, folder_of, purge, read_rows
from edgeagent.errors import ConfigError, InvalidRequest, RemoteUnavailable
from edgeagent.metrics import REGISTRY
from edgeagent.remotes import Budget, EndpointConfig, Price, Remote
from edgeagent.types import Permit, RouteMode

DAY_S = 86_400.0
NOON_S = 1_800_014_400.0  # 2027-01-15T12:00:00Z
PERMIT = Permit("resp_1", "gpu", RouteMode.PREFER_LOCAL, "queue_full", "kiosk")
posix = pytest.mark.skipif(os.name != "posix", reason="modes and links are POSIX's")


class Clock:
    def __init__(self) -> None:
        self.now_s = NOON_S

    def __call__(self) -> float:
        return self.now_s


class Known:
    """Stands in for the file of remotes; it finds only the test's remote."""

    def __init__(self, **fields: Any) -> None:
        self.remote = Remote("gpu", (EndpointConfig("https://gpu.example/v1"),), **fields)

    def find(self, name: str) -> Remote | None:
        return self.remote if name == self.remote.name else None


def ledger(folder: Path, clock: Clock | None = None, **fields: Any) -> Ledger:
    return Ledger(folder, Known(**fields).find, clock or Clock())


def lines(folder: Path, day: str = "2027-01-15") -> list[dict[str, Any]]:
    return [json.loads(line) for line in file_of(folder_of(folder), day).read_text().splitlines()]


def test_a_row_is_written_before_and_after(tmp_path: Path) -> None:
    clock = Clock()
    book = ledger(tmp_path, clock, price=Price(prompt=2.0, output=10.0))
    row = book.begin(PERMIT, "gpu.example:8443", "meta/llama", 400, 90, 300)
    (begun,) = lines(tmp_path)
    assert begun == {
        "kind": "begun",
        "row": row,
        "at": "2027-01-15T12:00:00.000Z",
        "request": "resp_1",
        "client": "kiosk",
        "mode": "prefer_local",
        "reason": "queue_full",
        "remote": "gpu",
        "host": "gpu.example:8443",
        "model": "meta/llama",
        "num_bytes": 400,
        "num_reserved_prompt_tokens": 90,
        "num_reserved_output_tokens": 300,
    }
    assert [each.outcome for each in read_rows(folder_of(tmp_path))] == ["unfinished"]
    clock.now_s += 1.5
    book.end(row, "completed", 1000, 500)
    (whole,) = read_rows(folder_of(tmp_path))
    assert (whole.outcome, whole.at, whole.ended_at) == (
        "completed",
        "2027-01-15T12:00:00.000Z",
        "2027-01-15T12:00:01.500Z",
    )
    assert (whole.num_prompt_tokens, whole.num_output_tokens) == (1000, 500)
    assert whole.money == pytest.approx(0.007)
    book.end(row, "again", 1, 1)
    assert len(lines(tmp_path)) == 2, "a row ends once"


@posix
def test_its_files_are_private(tmp_path: Path) -> None:
    ledger(tmp_path).begin(PERMIT, "h", "m", 1)
    folder = folder_of(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


def test_an_outcome_is_one_word(tmp_path: Path) -> None:
    """The text of an error could quote what was sent or received."""
    book = ledger(tmp_path)
    book.end(book.begin(PERMIT, "h", "m", 1), "it said: hello")
    assert [row.outcome for row in read_rows(folder_of(tmp_path))] == ["unknown"]


def test_numbers_differ_though_the_clock_stands_or_goes_back(tmp_path: Path) -> None:
    clock = Clock()
    book = ledger(tmp_path, clock)
    rows = [book.begin(PERMIT, "h", "m", 1) for _ in range(3)]
    clock.now_s -= 3600
    rows.append(book.begin(PERMIT, "h", "m", 1))
    rows.append(ledger(tmp_path, clock).begin(PERMIT, "h", "m", 1))
    assert rows == sorted(set(rows))


def test_budgets_count_what_has_ended_and_what_runs(tmp_path: Path) -> None:
    book = ledger(tmp_path, budget=Budget(tokens=1000))
    assert book.why_blocked("gpu", "kiosk") is None
    row = book.begin(PERMIT, "h", "m", 1, 900, 99)
    assert book.why_blocked("gpu", "kiosk") is None
    other = book.begin(PERMIT, "h", "m", 1, 1)
    assert "1,000 of 1,000 tokens" in (book.why_blocked("gpu", "desk") or "")
    book.end(row, "completed", 100, 50)
    assert book.why_blocked("gpu", "desk") is None, "the estimate has given way to the count"
    book.end(other, "completed", 900, 0)
    assert "1,050 of 1,000 tokens; it starts again at 0:00 UTC" in (book.why_blocked("gpu", "desk") or "")
    assert book.spent("gpu").num_tokens == 1050
    assert book.why_blocked("other", "") == "there is no remote 'other'"


@pytest.mark.parametrize(
    ("budget", "word"),
    [
        (Budget(money=0.5), "of all clients at the remote 'gpu' is used up: 1 of 0.5 money"),
        (Budget(client_money=1.0), "of the client 'kiosk' at the remote 'gpu' is used up: 1 of 1 money"),
        (Budget(client_tokens=1), "of the client 'kiosk'"),
        (Budget(tokens=1), "of all clients"),
    ],
)
def test_each_budget_binds(budget: Budget, word: str, tmp_path: Path) -> None:
    book = ledger(tmp_path, budget=budget, price=Price(output=100.0))
    book.end(book.begin(PERMIT, "h", "m", 0), "completed", 0, 10_000)
    assert word in (book.why_blocked("gpu", "kiosk") or "")
    of_another = book.why_blocked("gpu", "")
    assert (of_another is None) == (budget.client_money is not None or budget.client_tokens is not None)


def test_a_ceiling_counts_all_remotes_and_outlives_a_purge(tmp_path: Path) -> None:
    clock, most = Clock(), [Budget(tokens=100, client_tokens=60)]
    book = Ledger(tmp_path, Known().find, clock, ceiling=lambda: most[0])
    for remote in ("gpu", "gone"):
        permit = Permit("r", remote, RouteMode.PREFER_LOCAL, "queue_full", "kiosk")
        assert book.why_blocked("gpu", "kiosk") is None
        book.end(book.begin(permit, "h", "m", 0), "completed", 40, 0)
    why = book.why_blocked("gpu", "kiosk") or ""
    assert "of the client 'kiosk' at all remotes, by the machine's policy, is used up: 80 of 60 tokens" in why
    assert book.why_blocked("gpu", "desk") is None
    purge(folder_of(tmp_path), clock.now_s)
    book.close()
    again = Ledger(tmp_path, Known().find, clock, ceiling=lambda: most[0])
    assert "80 of 60 tokens" in (again.why_blocked("gpu", "kiosk") or "")
    most[0] = Budget(tokens=80)
    assert "of all clients at all remotes" in (again.why_blocked("gpu", "desk") or "")
    most[0] = Budget(tokens=81)
    assert again.why_blocked("gpu", "desk") is None


def test_budgets_outlive_the_daemon(tmp_path: Path) -> None:
    book = ledger(tmp_path, budget=Budget(client_tokens=100))
    book.end(book.begin(PERMIT, "h", "m", 0), "completed", 60, 0)
    book.begin(PERMIT, "h", "m", 1, 10, 30)  # the daemon ends before this request does
    book.close()
    again = ledger(tmp_path, budget=Budget(client_tokens=100))
    assert again.why_blocked("gpu", "kiosk") is not None
    assert again.why_blocked("gpu", "desk") is None


def test_a_day_has_its_own_budget_and_file(tmp_path: Path) -> None:
    clock = Clock()
    book = ledger(tmp_path, clock, budget=Budget(tokens=100))
    before = book.begin(PERMIT, "h", "m", 1, 40, 60)
    assert book.why_blocked("gpu", "kiosk") is not None
    clock.now_s += DAY_S
    assert book.why_blocked("gpu", "kiosk") is None
    book.end(before, "completed", 100, 0)
    assert book.why_blocked("gpu", "kiosk") is not None, "it counts on the day on which it ended"
    assert days(folder_of(tmp_path)) == ["2027-01-15", "2027-01-16"]
    (row,) = read_rows(folder_of(tmp_path))
    assert row.outcome == "completed", "its end is found in the other day's file"
    book.close()
    assert ledger(tmp_path, clock, budget=Budget(tokens=100)).why_blocked("gpu", "kiosk") is not None


def test_rows_are_kept_for_thirty_days(tmp_path: Path) -> None:
    clock = Clock()
    book = ledger(tmp_path, clock)
    for _ in range(33):
        book.begin(PERMIT, "h", "m", 1)
        clock.now_s += DAY_S
    assert len(days(folder_of(tmp_path))) == 31
    assert len(list(read_rows(folder_of(tmp_path), clock.now_s - 2.5 * DAY_S))) == 2


def test_a_purge_leaves_sums_alone(tmp_path: Path) -> None:
    clock = Clock()
    book = ledger(tmp_path, clock, budget=Budget(tokens=100))
    book.begin(PERMIT, "h", "m", 1)
    clock.now_s += DAY_S
    book.end(book.begin(PERMIT, "h", "m", 1), "completed", 90, 0)
    running = book.begin(PERMIT, "h", "m", 1)
    assert purge(folder_of(tmp_path), clock.now_s) == 2
    assert list(read_rows(folder_of(tmp_path))) == []
    assert lines(tmp_path, day_of(clock.now_s)) == [
        {"kind": "carried", "remote": "gpu", "client": "kiosk", "num_tokens": 90, "money": 0.0}
    ]
    # The daemon continues in the new file, and its sums still include the old rows.
    second = book.begin(PERMIT, "h", "second", 1)
    book.end(running, "completed", 10, 0)
    assert [row.model for row in read_rows(folder_of(tmp_path))] == ["second"]
    assert book.why_blocked("gpu", "kiosk") is not None
    book.end(second, "completed")
    book.close()
    assert ledger(tmp_path, clock, budget=Budget(tokens=100)).why_blocked("gpu", "kiosk") is not None


def test_a_line_that_a_crash_cut_off_spoils_no_other(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.end(book.begin(PERMIT, "h", "first", 1), "completed")
    book.close()
    path = file_of(folder_of(tmp_path), "2027-01-15")
    path.write_bytes(path.read_bytes() + b'{"kind":"begun","row":')
    ledger(tmp_path).begin(PERMIT, "h", "second", 1)
    assert [row.model for row in read_rows(folder_of(tmp_path))] == ["first", "second"]


@posix
def test_what_cannot_be_written_down_may_not_be_sent(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    folder_of(tmp_path).write_text("in the way")
    with pytest.raises(RemoteUnavailable, match=r"cannot be kept .*nothing is sent"):
        book.begin(PERMIT, "h", "m", 1)
    assert "cannot be kept" in book.trouble
    folder_of(tmp_path).unlink()
    row = book.begin(PERMIT, "h", "m", 1)
    assert book.trouble == ""
    path = file_of(folder_of(tmp_path), "2027-01-15")
    path.rename(path.with_suffix(".away"))
    path.symlink_to(path.with_suffix(".away"))
    with pytest.raises(RemoteUnavailable):
        book.begin(PERMIT, "h", "m", 1)
    book.end(row, "completed", 10, 10)
    assert book.spent("gpu").num_tokens == 20, "what was spent counts, though it could not be written"


@posix
def test_a_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    ledger(tmp_path).begin(PERMIT, "h", "m", 1)
    path = file_of(folder_of(tmp_path), "2027-01-15")
    path.chmod(0o644)
    book = ledger(tmp_path)
    assert "chmod 600" in (book.why_blocked("gpu", "kiosk") or "")
    with pytest.raises(RemoteUnavailable, match="chmod 600"):
        book.begin(PERMIT, "h", "m", 1)
    with pytest.raises(ConfigError, match="chmod 600"):
        list(read_rows(folder_of(tmp_path)))


def test_a_full_disk_is_told_and_the_next_line_begins_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = ledger(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:10]))
    with pytest.raises(RemoteUnavailable, match="the disk is full"):
        book.begin(PERMIT, "h", "first", 1)
    monkeypatch.undo()
    book.begin(PERMIT, "h", "second", 1)
    assert [row.model for row in read_rows(folder_of(tmp_path))] == ["second"]


def test_what_leaves_is_measured(tmp_path: Path) -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, {"remote": "measured", **labels}) or 0.0

    known = Known()
    known.remote = Remote("measured", (), price=Price(output=2.0))
    book = Ledger(tmp_path, known.find, Clock())
    permit = Permit("r", "measured", RouteMode.PREFER_LOCAL, "queue_full")
    book.end(book.begin(permit, "h", "m", 123), "completed", 40, 500_000)
    assert value("edgeagent_remote_requests_total", outcome="completed") == 1
    assert value("edgeagent_remote_sent_bytes_total") == 123
    assert value("edgeagent_remote_tokens_total", kind="prompt") == 40
    assert value("edgeagent_remote_tokens_total", kind="output") == 500_000
    assert value("edgeagent_remote_money_total") == 1.0


def test_what_is_no_address_is_refused_and_has_no_row(tmp_path: Path) -> None:
    with own_requests(tmp_path, BENCH) as begin, pytest.raises(InvalidRequest, match="is not an address"):
        begin("http://[::1")
    assert list(read_rows(folder_of(tmp_path))) == []


def test_the_page_names_each_reason_of_edgeagent_itself() -> None:
    page = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
    listed = page.split("What edgeagent sends for itself")[1].split("```")[0]
    assert {*re.findall(r"`(\w+)` (?=\(|and\b)", listed)} == {*OWN_REASONS}
