"""`edgeagent bench` against the real daemon and the bundled model: every number is present. None is verified."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edgeagent.bench import scenarios
from edgeagent.bench.client import find_server
from edgeagent.bench.measure import measure_token_counting
from edgeagent.bench.scenarios import ITL, RATE, SCENARIOS, MeasuredServer, Prompts, Workload
from edgeagent.client import Address
from tests.integration.conftest import Daemon
from tests.patience import patient

# The bundled model answers in a few words: two streams need not overlap, nor live beside a long prompt.
MAY_BE_MISSING = {
    # An answer in one piece has no rate and no gaps; a draft model may guess it entirely.
    RATE.name,
    ITL.name,
    scenarios.LIVE_RATE.name,
    scenarios.ITL_DURING.name,
    scenarios.WORST_ITL.name,
}


@pytest.mark.parametrize("transport", [pytest.param("ws", marks=pytest.mark.slow(seconds=9)), "http"])
def test_every_number_is_there(daemon: Daemon, transport: str) -> None:
    flags = ["--rounds", "1", "--prompt-tokens", "200", "--max-tokens", "24", "--parallel", "2", "--json"]
    command = [sys.executable, "-m", "edgeagent", "bench", daemon.url, "--transport", transport, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(100), check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["is_complete"]
    assert report["servers"] == [
        {"url": daemon.url, "transport": transport, "model": "builtin", "kind": "edgeagent", "ignores_eos": False}
    ]
    assert [scenario["name"] for scenario in report["scenarios"]] == [
        name for name, each in SCENARIOS.items() if each.is_usual
    ]
    for scenario in report["scenarios"]:
        assert scenario["failure"] is None
        for metric in scenario["metrics"]:
            (server,) = metric["servers"]
            assert server["num_samples"] or metric["name"] in MAY_BE_MISSING, metric["name"]
            if metric["better"] != "neither" and server["num_samples"]:
                assert server["lowest"] > 0, metric["name"]
        num_samples = {metric["name"]: metric["servers"][0]["num_samples"] for metric in scenario["metrics"]}
        if RATE.name in num_samples:
            assert bool(num_samples[ITL.name]) == bool(num_samples[RATE.name])
    numbers = {metric["name"]: metric["servers"][0] for metric in report["scenarios"][1]["metrics"]}
    assert abs(numbers["cold prompt"]["p50"] - 200) < 40, "prompts come out about as long as asked"
    assert numbers["cold cached"]["p50"] < 40, "cold prompts are cold"
    assert numbers["warm cached"]["p50"] > 120, "warm ones are warm"


async def test_realtime_streams_and_jobs_are_measured_beside_each_other(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "REALTIME_EVERY_S", 0.3)
    server = await find_server(Address(daemon.url))
    measured = MeasuredServer(server, Prompts(1, "A", await measure_token_counting(server, 1)))
    samples = await scenarios.mixed(measured, Workload(prompt_tokens=200, max_tokens=8, parallel=2), "0")
    assert len(samples[scenarios.REALTIME]) >= scenarios.NUM_REALTIME
    assert min(samples[scenarios.JOBS] + samples[scenarios.JOBS_ALONE]) > 0
