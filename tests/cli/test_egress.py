"""`edgeagent egress`: the ledger listed, exported and purged, with and without rows."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.egress import ANSWERS, PULL, TRACES
from edgeagent.egress.ledger import Ledger
from edgeagent.remotes import EndpointConfig, Price, Remote
from edgeagent.remotes.file import RemotesFile, add_remote
from edgeagent.types import Permit, RouteMode

Output = pytest.CaptureFixture[str]


def fill(folder: Path, *ages_s: float) -> None:
    add_remote(folder, Remote("gpu", (EndpointConfig("https://gpu.example"),), price=Price(output=1000.0)))
    now_s = time.time()
    for number, age_s in enumerate(ages_s):
        ledger = Ledger(folder, RemotesFile(folder).find, lambda at_s=now_s - age_s: at_s)  # type: ignore[misc]
        permit = Permit(f"r{number}", "gpu", RouteMode.PREFER_LOCAL, "queue_full", "kiosk" if number else "")
        ledger.end(ledger.begin(permit, "gpu.example", "meta/llama", 2000), "completed", 100, 50)
        ledger.close()


def test_nothing_has_left(tmp_path: Path, capsys: Output) -> None:
    assert main(["egress", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Nothing has left this machine in the last 24 hours.\n"
    assert main(["egress", "--json", "--state-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": []}


def test_rows_are_shown_with_their_sums(tmp_path: Path, capsys: Output) -> None:
    fill(tmp_path, 3 * 86400, 60, 30)
    assert main(["egress", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    cells = "gpu gpu.example meta/llama kiosk queue_full 2.0 kB 100 50 completed"
    assert lines[1].split()[2:] == cells.split()
    assert lines[3] == "2 requests in the last 24 hours: at most 4.0 kB sent, 300 tokens, 0.1 money; 2 completed"
    assert main(["egress", "--since", "7d", "--state-dir", str(tmp_path)]) == 0
    assert "owner" in (output := capsys.readouterr().out) and "3 requests in the last 7 days" in output
    assert main(["egress", "--since", "2100-01-01", "--state-dir", str(tmp_path)]) == 0
    assert "Nothing has left this machine since 2100-01-01." in capsys.readouterr().out


def test_attempts_are_not_counted_as_requests(tmp_path: Path, capsys: Output) -> None:
    fill(tmp_path, 60, 30)
    fill(tmp_path, 20, 10)
    assert main(["egress", "--state-dir", str(tmp_path)]) == 0
    assert "2 requests in 4 attempts in the last 24 hours: at most 8.0 kB sent" in capsys.readouterr().out


def test_all_rows_are_exported_into_a_private_file(tmp_path: Path, capsys: Output) -> None:
    fill(tmp_path, 3 * 86400, 60)
    file = tmp_path / "rows.jsonl"
    export = ["egress", "--state-dir", str(tmp_path), "--export"]
    assert main([*export, str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["request"] for row in rows] == ["r0", "r1"] and rows[0]["outcome"] == "completed"
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main([*export, str(file)]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert main([*export, "-"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


def test_a_purge_leaves_no_row(tmp_path: Path, capsys: Output) -> None:
    fill(tmp_path, 3 * 86400, 0)
    assert main(["egress", "--purge", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "Deleted the rows of 2 days.\n"
    assert main(["egress", "--since", "30d", "--state-dir", str(tmp_path)]) == 0
    assert "Nothing has left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "yesterday"], "--since: must be like 30m, 24h or 7d"),
        (["--json", "--purge"], "give one of --json, --export and --purge"),
    ],
)
def test_wrong_options_are_told(options: list[str], message: str, tmp_path: Path, capsys: Output) -> None:
    assert main(["egress", *options, "--state-dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_answers_at_a_server_have_content(tmp_path: Path, capsys: Output) -> None:
    ledger = Ledger(tmp_path)
    for reason in (PULL, ANSWERS, ANSWERS):
        ledger.end(ledger.begin_own(reason, "redis://kv.example"), "completed")
    assert main(["egress", "--state-dir", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "1 host asked for models, without content; 2 commands to a store of answers, encrypted" in output


def test_what_edgeagent_sends_for_itself_is_counted(tmp_path: Path, capsys: Output) -> None:
    fill(tmp_path, 30)
    ledger = Ledger(tmp_path)
    ledger.begin_own(PULL, "https://user:secret@hub.example:8443/api", "org/model")
    for _ in range(2):
        ledger.end(ledger.begin_own(TRACES, "https://collector.example/v1/traces", num_bytes=900), "completed")
    assert main(["egress", "--since", "1d", "--state-dir", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "1 request in the last day: at most 2.0 kB sent" in output
    assert output.endswith("1 completed; and 1 host asked for models, 2 batches of traces, without content")
    assert main(["egress", "--json", "--state-dir", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["host"], row["model"], row["reason"], row["remote"], row["outcome"]) for row in rows[1:]] == [
        ("hub.example:8443", "org/model", "pull", "", "unfinished"),
        *[("collector.example", "", "traces", "", "completed")] * 2,
    ]
    assert main(["egress", "--since", "1h", "--state-dir", str(tmp_path)]) == 0
    assert "in the last hour:" in " ".join(capsys.readouterr().out.split())
