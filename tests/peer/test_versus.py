"""Tests of the comparison with llama-server: the rows, the stored results, and the tables."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeagent.bench.measure import Measurement
from edgeagent.bench.scenarios import ITL, RATE, Metric, Round
from tests.peer import versus
from tests.peer.laboratory import SCENARIOS, caches, chats
from tests.peer.rows import QUICK, Bar, Row, Situation, Size, figure_of, measured, rows, situations
from tests.peer.servers import Setup
from tests.peer.shape_folder import ShapeFolder
from tests.peer.shelf import TWINS, make_model
from tests.peer.tables import one_model, over_shapes, put_between_marks

SETTINGS = {"commit": "c0ffee", "rounds": 2}
ONE_STREAM = Row("one stream", "decode", RATE, Bar("≥", 0.97))


def measurement(scenario: str, metric: Metric, *servers: list[list[float]]) -> Measurement:
    """Return rounds of one metric, as a list for each server."""
    return Measurement(SCENARIOS[scenario], [[{metric: samples} for samples in each] for each in servers])


@pytest.mark.parametrize("size", [Size(), QUICK])
def test_every_row_is_of_a_metric_that_its_situation_measures(size: Size) -> None:
    for row in rows(size):
        scenario = SCENARIOS[situations(size)[row.situation].scenario]
        assert {row.metric, row.of or row.metric} <= set(scenario.metrics)
    assert {row.situation for row in rows(size)} == situations(size).keys()
    assert len({row.title for row in rows(size)}) == len(rows(size))


def test_a_ratio_is_of_neighbouring_rounds() -> None:
    figure = figure_of(ONE_STREAM, measurement("decode", RATE, [[80.0], [40.0]], [[100.0], [50.0]]))
    assert (figure.ours, figure.theirs, figure.value, figure.unit) == (60.0, 75.0, 0.8, "tokens/s")
    assert figure.quartiles == (0.8, 0.8)


def test_a_percentile_is_of_all_gaps_together() -> None:
    row = Row("gap", "disk", ITL, figure="p95")
    figure = figure_of(row, measurement("chat", ITL, [[1.0] * 30, [2.0] * 70], [[4.0] * 50, [4.0] * 50]))
    assert (figure.ours, figure.theirs, figure.value, figure.quartiles) == (2.0, 4.0, 0.5, None)


def test_a_share_is_of_our_own_metric_round_by_round() -> None:
    row = Row("cached", "restart", caches.AFTER_CACHED, Bar("≥", 0.97), of=caches.AFTER_PROMPT)
    rounds: list[Round] = [
        {caches.AFTER_CACHED: [cached], caches.AFTER_PROMPT: [200.0]} for cached in (100.0, 150.0, 200.0)
    ]
    figure = figure_of(row, Measurement(SCENARIOS["restart"], [rounds]))
    assert figure.value == 0.75
    assert figure.theirs is None


def test_of_growth_our_own_is_judged() -> None:
    row = next(row for row in rows(Size()) if row.metric is chats.GROWTH)
    figure = figure_of(row, measurement("beginnings", chats.GROWTH, [[2.0]], [[1.0]]))
    assert (figure.value, figure.theirs) == (2.0, 1.0)
    assert row.bar is not None
    assert not row.bar.is_met(2.0, "8b-kv")


def test_a_row_without_samples_has_no_value() -> None:
    figure = figure_of(ONE_STREAM, measurement("decode", RATE, [[]], [[1.0]]))
    assert (figure.ours, figure.value) == (None, None)


def test_bars_of_some_shapes_are_no_others() -> None:
    bar = Bar("≤", None, {"8b-kv": 0.125})
    assert bar.is_met(9.0, "qwen3-0.6b")
    assert not bar.is_met(0.2, "8b-kv")
    assert bar.text == "≤ 0.125 (8b-kv)"
    assert Bar("≥", 0.97).text == "≥ 0.97"


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    folder = ShapeFolder(tmp_path, SETTINGS)
    done = measurement("decode", RATE, [[80.0]], [[100.0]])
    folder.add("8b-kv", "Q8_0", "decode", [ONE_STREAM], done, {})
    done.failure = "no answer"
    folder.add("8b-kv", "Q8_0", "ttft", [], done, {})
    again = ShapeFolder(tmp_path, SETTINGS)
    assert again.has("8b-kv", "Q8_0", "decode")
    assert not again.has("8b-kv", "Q8_0", "ttft"), "it failed"
    assert not again.has("8b-kv", "Q4_0", "decode")
    assert again.read() == {("8b-kv", "Q8_0"): {"one stream": figure_of(ONE_STREAM, done)}}


def test_figures_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    done = measurement("decode", RATE, [[80.0]], [[100.0]])
    ShapeFolder(tmp_path, SETTINGS).add("8b-kv", "Q8_0", "decode", [ONE_STREAM], done, {})
    with pytest.raises(SystemExit, match="other settings \\(commit\\)"):
        ShapeFolder(tmp_path, {**SETTINGS, "commit": "decaf"})
    assert not ShapeFolder(tmp_path, {"commit": "decaf"}, is_begun_anew=True).read()


def test_tables_have_a_line_for_each_shape_and_mark_what_is_missed(tmp_path: Path) -> None:
    folder = ShapeFolder(tmp_path, SETTINGS)
    for shape, rate in (("8b-kv", 80.0), ("qwen3-0.6b", 99.0)):
        done = measurement("decode", RATE, [[rate]], [[100.0]])
        folder.add(shape, "Q4_0", "decode", [ONE_STREAM], done, {})
    assert list(over_shapes([ONE_STREAM], folder.read(), SETTINGS)) == [
        "commit c0ffee, rounds 2",
        "",
        "| | one stream, tokens/s |",
        "|---|---|",
        "| bar | ≥ 0.97 |",
        "| qwen3-0.6b, Q4_0 | 0.99 (99.0 / 100) |",
        "| 8b-kv, Q4_0 | **0.80** (80.0 / 100) |",
    ]


def test_a_figure_that_llama_server_does_not_have_stands_alone(tmp_path: Path) -> None:
    folder = ShapeFolder(tmp_path, SETTINGS)
    folder.add("8b-kv", "Q4_0", "decode", [ONE_STREAM], measurement("decode", RATE, [[80.0]], [[]]), {})
    assert list(over_shapes([ONE_STREAM], folder.read(), SETTINGS))[-1] == "| 8b-kv, Q4_0 | 80.0 |"


def test_the_table_of_one_model_has_a_line_for_each_row() -> None:
    lines = list(one_model([ONE_STREAM], {"decode": measurement("decode", RATE, [[80.0]], [[100.0]])}))
    assert lines[2:] == ["| one stream | 80.0 tokens/s | 100 tokens/s | 0.80 (0.80–0.80) | ≥ 0.97 |"]


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "figures.md"
    begin, end = "<!-- shapes: begin -->", "<!-- shapes: end -->"
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    put_between_marks(document, "new")
    assert document.read_text(encoding="utf-8") == f"before\n{begin}\nnew\n{end}\nafter\n"
    document.write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no"):
        put_between_marks(document, "new")


def test_one_command_measures_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def fake(setup: Setup, situation: Situation, *_: Any) -> tuple[Measurement, dict[str, Any]]:
        asked.append((setup.model.name, situation.name))
        return Measurement(SCENARIOS[situation.scenario], [[{}], [{}]]), {}

    monkeypatch.setattr(versus, "measured", fake)
    monkeypatch.setattr(versus, "cached_model", lambda folder, shape, quant: folder / f"{shape.name}-{quant}")
    monkeypatch.setattr(versus, "commit", lambda: "c0ffee")
    command = ["versus", "--folder", str(tmp_path), "--shapes", "8b-kv", "qwen3-0.6b", "--quant", "Q4_0", "Q8_0"]
    monkeypatch.setattr(sys, "argv", [*command, "--scenario", "decode"])
    versus.main()
    models = ["8b-kv-Q4_0", "8b-kv-Q8_0", "qwen3-0.6b-Q4_0", "qwen3-0.6b-Q8_0"]
    assert asked == [(model, "decode") for model in models]
    asked.clear()
    monkeypatch.setattr(sys, "argv", [*command, "--scenario", "decode", "--scenario", "disk"])
    versus.main()
    assert asked == [(model, "disk") for model in models]
    assert "| 8b-kv, Q8_0 | – |" in capsys.readouterr().out


@pytest.mark.slow(seconds=8)
def test_a_twin_is_measured_with_the_disk_cache_and_without(tmp_path: Path) -> None:
    model = make_model(tmp_path / "twin.gguf", replace(TWINS["qwen3.5-0.8b"], num_vocab=20_000))
    situation = situations(QUICK)["disk"]
    done, samples = measured(Setup(model, Path("not asked"), threads=1), situation, QUICK, num_rounds=1, seed=1)
    assert done.failure is None
    assert [server["kind"] for server in samples["servers"]] == ["edgeagent", "edgeagent"]
    for row in rows(QUICK):
        if row.situation == "disk":
            assert figure_of(row, done).value is not None


def test_a_shape_that_is_not_on_the_shelf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["versus", "--folder", str(tmp_path), "--shapes", "70b"])
    with pytest.raises(SystemExit, match="no shape is called 70b"):
        versus.main()
