"""The report: tables and objects from hand-made measurements, and the notes that prevent misreading."""

from __future__ import annotations

import json

import pytest

from edgeagent.bench.client import Server
from edgeagent.bench.measure import Measurement, Run
from edgeagent.bench.report import as_object, ratio_of, summary_of, tables
from edgeagent.bench.scenarios import ITL, LENGTH, PER_EVENT, RATE, SCENARIOS, TTFT, Round, Workload
from edgeagent.cli.display import aligned
from edgeagent.client import Address


def decoded(rate: float, length: float = 128) -> Round:
    return {RATE: [rate], ITL: [1000 / rate, 2000 / rate], TTFT: [50.0], LENGTH: [length], PER_EVENT: [1.0]}


def run_of(*rounds: list[Round], failure: str | None = None, is_complete: bool = True) -> Run:
    ours = Server(Address("http://127.0.0.1:8127", "secret-token"), "ws", "builtin", "edgeagent")
    theirs = Server(Address("http://127.0.0.1:8080"), "http", "m.gguf", "llamacpp")
    run = Run([ours, theirs][: len(rounds)], [SCENARIOS["decode"]], Workload(1024, 128, 4), 3, seed=42)
    run.measurements.append(Measurement(SCENARIOS["decode"], [list(each) for each in rounds], failure))
    run.is_complete = is_complete
    return run


def lines_of(run: Run) -> dict[str, list[str]]:
    """Return the cells of each line of the report, by the line's first cell."""
    lines = (line.split("  ", 1) for line in tables(run, aligned).splitlines() if "  " in line)
    return {name: rest[0].split() for name, *rest in lines}


def test_one_server() -> None:
    run = run_of([decoded(100.0), decoded(120.0), decoded(80.0)])
    lines = lines_of(run)
    assert lines["tokens/s"][:4] == ["100.0", "82.00", "80.40", "3"]
    assert " ".join(lines["tokens/s"][4:]) == "one stream, first text to last"
    assert lines["TTFT, ms"][:4] == ["50.00", "50.00", "50.00", "3"]
    assert lines["answer, tokens"][:2] == ["128.0", "3"], "what only explains has no percentiles"
    text = tables(run, aligned)
    assert text.startswith("http://127.0.0.1:8127, WebSocket, model builtin (edgeagent)\n3 rounds, ")
    assert "seed 42" in text
    assert "A/B" not in text
    assert "secret-token" not in text


def test_two_servers() -> None:
    run = run_of([decoded(100.0), decoded(120.0), decoded(90.0)], [decoded(50.0), decoded(30.0), decoded(60.0)])
    lines = lines_of(run)
    assert lines["tokens/s"][0] == "100.0"
    assert lines["tokens/s"][3] == "50.00"
    assert lines["tokens/s"][-2:] == ["2.000", "1.750-3.000"]
    assert lines["answer, tokens"] == ["128.0", "128.0"]
    text = tables(run, aligned)
    assert "A  http://127.0.0.1:8127, WebSocket" in text
    assert "B  http://127.0.0.1:8080, HTTP, model m.gguf (llamacpp)" in text
    assert "A/B: the median ratio" in text


def test_what_the_reader_must_know() -> None:
    early: Round = {**decoded(100.0, length=25), RATE: []}
    text = tables(run_of([decoded(100.0), early], failure="the plug was pulled", is_complete=False), aligned)
    assert "NOT COMPLETE" in text
    assert "failed: the plug was pulled" in text
    assert "1 of 2 answers ended before 128 tokens" in text
    assert "1 of 2 rounds gave no tokens/s" in text


def test_an_undisturbed_run_has_no_notes() -> None:
    (scenario,) = as_object(run_of([decoded(100.0)]))["scenarios"]
    assert (scenario["notes"], scenario["failure"]) == ([], None)


def test_a_run_in_which_nothing_was_measured() -> None:
    assert "failed: refused" in tables(run_of([], failure="refused"), aligned)
    assert "failed: refused" in tables(run_of([], [], failure="refused"), aligned)
    assert as_object(run_of([]))["scenarios"][0]["metrics"][0]["servers"] == [{"num_samples": 0, "samples": []}]


def test_the_object_has_it_all() -> None:
    run = run_of([decoded(100.0), decoded(120.0)], [decoded(50.0)], is_complete=False)
    report = json.loads(json.dumps(as_object(run)))
    assert (report["seed"], report["rounds"], report["is_complete"]) == (42, 3, False)
    assert report["servers"][1] == {
        "url": "http://127.0.0.1:8080",
        "transport": "http",
        "model": "m.gguf",
        "kind": "llamacpp",
        "ignores_eos": True,
    }
    rate = report["scenarios"][0]["metrics"][0]
    assert (rate["name"], rate["unit"], rate["better"]) == ("tokens/s", "tokens/s", "higher")
    assert rate["servers"][0]["samples"] == [[100.0], [120.0]]
    assert (rate["servers"][0]["p50"], rate["servers"][0]["num_samples"]) == (110.0, 2)
    assert rate["ratio"] == {"num_pairs": 1, "median": 2.0, "first_quartile": 2.0, "third_quartile": 2.0}
    answer = report["scenarios"][0]["metrics"][3]
    assert answer["ratio"] is None
    assert "secret-token" not in json.dumps(report)


def test_what_only_explains_is_not_compared() -> None:
    (measurement,) = run_of([decoded(100.0)], [decoded(50.0)]).measurements
    assert ratio_of(measurement, LENGTH) is None
    compared = ratio_of(measurement, ITL)
    assert compared is not None
    assert compared.median == pytest.approx(0.5)
    summary = summary_of(measurement, ITL, 1)
    assert summary is not None
    assert (summary.num_samples, summary.highest) == (2, 40.0)


def test_a_scenario_that_is_measured_once_says_so() -> None:
    run = run_of([decoded(100.0)])
    run.num_rounds, run.scenarios = 2, [SCENARIOS["mixed"]]
    assert "\n1 round, prompts" in tables(run, aligned)
    run.scenarios = [SCENARIOS["decode"], SCENARIOS["mixed"]]
    assert "\n2 rounds (mixed: 1), prompts" in tables(run, aligned)
