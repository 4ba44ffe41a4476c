"""What docs/howto/latency.md shows, unchanged, with a real daemon: its example, its commands, and a restart."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import httpx
import pytest

from edgeagent.daemon.state import SLO_FILE
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.test_readme_examples import blocks, of, run
from tests.patience import patient

GUIDE = "docs/howto/latency.md"


def commands(daemon: Daemon) -> tuple[str, dict[str, object]]:
    """Run the guide's commands; return the table, and the JSON."""
    (block,) = blocks(GUIDE, "text")
    table, document = (daemon.run(*shlex.split(line)[1:]) for line in block.splitlines())
    return table, json.loads(document)["slo"]


def num_answers(slo: dict[str, object]) -> dict[tuple[str, str], int]:
    return {(each["window"], each["tier"]): each["num_answers"] for each in slo["tiers"]}  # type: ignore[attr-defined]


@pytest.mark.slow(seconds=6)
def test_a_client_states_its_latency_and_the_record_is_kept(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin")
    assert "No answer in the last 24 hours." in commands(daemon)[0]
    for tier in ("interactive", "batch"):
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8, "edgeagent": {"tier": tier}}
        answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60)).json()
        assert answer["edgeagent"]["slo"]["tier"] == tier
    (code,) = blocks(GUIDE, "python")
    shown = run([sys.executable, "-c", of(daemon, code)])
    slo = json.loads(shown[shown.index("{\n") : shown.rindex("}\n") + 1])["slo"]
    assert (slo["tier"], slo["ttft_target_ms"], slo["itl_target_ms"]) == ("realtime", 500.0, 1000.0)
    assert re.search(r"^deadline_unreachable (?:\d+|unknown)$", shown, re.MULTILINE)
    table, record = commands(daemon)
    # The refused request counts only if nothing could be predicted yet, so that it waited until its limit.
    num_realtime = 1 if "deadline_unreachable unknown" not in shown else 2
    expected = {
        (window, tier): num_realtime if tier == "realtime" else 1
        for window in ("1h", "1d")
        for tier in ("realtime", "interactive", "batch")
    }
    assert num_answers(record) == expected
    assert len(re.findall(r"^1[hd]  +(?:realtime|interactive|batch) +local  +[12]  ", table, re.MULTILINE)) == 6
    stop_daemon(daemon)
    assert (tmp_path / "state" / SLO_FILE).stat().st_size < 20_000
    daemon = start_daemon(tmp_path / "state", "builtin")
    assert num_answers(commands(daemon)[1]) == expected
    metrics = httpx.get(f"{daemon.url}/metrics").text
    assert 'edgeagent_slo_attainment{tier="realtime",window="1d"}' in metrics
    stop_daemon(daemon)
