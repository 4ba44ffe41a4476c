"""The results of a measurement: tables for people, an object for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from edgeagent.bench.measure import Measurement, Run
from edgeagent.bench.scenarios import LENGTH, Metric
from edgeagent.bench.stats import Ratio, Summary, ratio, summarize

Align = Callable[[Sequence[Sequence[str]]], str]

PROMISE = "pXX: XX % of the samples are at least this good (times: no longer; rates: no lower)."
TURNS = (
    "A/B: the median ratio of neighbouring rounds (which alternate A B B A) and its quartiles; for times, less than 1 "
    "means that A is faster."
)
EVENTS = (
    "ITL: from one event with text to the next, as they arrive; an event may carry several tokens.\n"
    "tokens/s: the server's own counts, shared among its events by their length."
)


def tables(run: Run, align: Align) -> str:
    """Return the report as text. `align` turns rows into lines with aligned columns."""
    parts = ["\n".join(_heading(run))]
    for measurement in run.measurements:
        title = f"{measurement.scenario.name}: {measurement.scenario.summary}"
        parts.append("\n".join([title, *_table(measurement, align), *_notes(measurement, run)]))
    parts.append("\n".join([PROMISE, EVENTS, *([TURNS] if len(run.servers) > 1 else [])]))
    return "\n\n".join(parts)


def as_object(run: Run) -> dict[str, Any]:
    """Return the report as an object for JSON, with every sample."""
    return {
        "seed": run.seed,
        "rounds": run.num_rounds,
        "is_complete": run.is_complete,
        "prompt_tokens": run.workload.prompt_tokens,
        "max_tokens": run.workload.max_tokens,
        "parallel": run.workload.parallel,
        "servers": [
            {
                "url": server.address.url,
                "transport": server.transport,
                "model": server.model,
                "kind": server.kind,
                "ignores_eos": server.ignores_eos,
            }
            for server in run.servers
        ],
        "scenarios": [_scenario_object(measurement, run) for measurement in run.measurements],
    }


def summary_of(measurement: Measurement, metric: Metric, server: int) -> Summary | None:
    """Return the summary of a metric's samples on one server, or None without samples. `server` is an index."""
    return summarize([value for part in measurement.samples(metric, server) for value in part], metric.better)


def ratio_of(measurement: Measurement, metric: Metric) -> Ratio | None:
    """Return the ratio of the first server's values of a metric to the second's.

    Return None if there is only one server, if no rounds can be compared, or if `metric.better` is "neither".
    """
    if len(measurement.rounds) < 2 or metric.better == "neither":
        return None
    return ratio(measurement.samples(metric, 0), measurement.samples(metric, 1))


def _scenario_object(measurement: Measurement, run: Run) -> dict[str, Any]:
    metrics = []
    for metric in measurement.scenario.metrics:
        compared = ratio_of(measurement, metric)
        metrics.append(
            {
                **asdict(metric),
                "servers": [_server_object(measurement, metric, server) for server in range(len(run.servers))],
                "ratio": asdict(compared) if compared else None,
            }
        )
    return {
        "name": measurement.scenario.name,
        "rounds": run.num_rounds_of(measurement.scenario),
        "failure": measurement.failure,
        "notes": _notes(measurement, run),
        "metrics": metrics,
    }


def _server_object(measurement: Measurement, metric: Metric, server: int) -> dict[str, Any]:
    summary = summary_of(measurement, metric, server)
    samples = [[round(value, 4) for value in part] for part in measurement.samples(metric, server)]
    return {**(asdict(summary) if summary else {"num_samples": 0}), "samples": samples}


def _heading(run: Run) -> Iterator[str]:
    for name, server in zip("AB", run.servers, strict=False):
        label = f"{name}  " if len(run.servers) > 1 else ""
        transport = "WebSocket" if server.transport == "ws" else "HTTP"
        yield f"{label}{server.address.url}, {transport}, model {server.model or '(its default)'} ({server.kind})"
    workload, num_rounds = run.workload, max(map(run.num_rounds_of, run.scenarios), default=run.num_rounds)
    once = ", ".join(each.name for each in run.scenarios if run.num_rounds_of(each) < num_rounds)
    rounds = f"{num_rounds} round{'s' * (num_rounds > 1)}{f' ({once}: 1)' if once else ''}"
    yield (
        f"{rounds}, prompts of {workload.prompt_tokens} tokens, answers of {workload.max_tokens}, "
        f"{workload.parallel} requests at once, seed {run.seed}" + ("" if run.is_complete else "; NOT COMPLETE")
    )


def _table(measurement: Measurement, align: Align) -> list[str]:
    """Return the table of a scenario as lines; empty if there are no samples.

    With one server, each line also has the metric's meaning.
    """
    rows = _rows(measurement)
    if len(rows) == 1:
        return []
    lines = align(rows).splitlines()
    if len(measurement.rounds) > 1:
        return lines
    width = max(map(len, lines))
    meanings = {_label(metric): metric.meaning for metric in measurement.scenario.metrics}
    return [f"{line:<{width}}  {meanings.get(row[0], '')}".rstrip() for line, row in zip(lines, rows, strict=True)]


def _rows(measurement: Measurement) -> list[list[str]]:
    if len(measurement.rounds) == 1:
        rows = [["", "p50", "p95", "p99", "samples"]]
    else:
        rows = [["", "A p50", "A p95", "A p99", "B p50", "B p95", "B p99", "A/B", "quartiles"]]
    for metric in measurement.scenario.metrics:
        summaries = [summary_of(measurement, metric, server) for server in range(len(measurement.rounds))]
        if not any(summaries):
            continue
        cells = [_label(metric), *(cell for summary in summaries for cell in _summary_cells(summary, metric))]
        if len(summaries) == 1:
            assert summaries[0] is not None
            cells.append(str(summaries[0].num_samples))
        else:
            cells += _ratio_cells(ratio_of(measurement, metric))
        rows.append(cells)
    return rows


def _label(metric: Metric) -> str:
    return metric.name if not metric.unit or metric.unit in metric.name else f"{metric.name}, {metric.unit}"


def _summary_cells(summary: Summary | None, metric: Metric) -> list[str]:
    if summary is None:
        return ["-", "-", "-"]
    if metric.better == "neither":
        return [_number(summary.p50), "", ""]
    return [_number(summary.p50), _number(summary.p95), _number(summary.p99)]


def _ratio_cells(compared: Ratio | None) -> list[str]:
    if compared is None:
        return ["", ""]
    return [f"{compared.median:.3f}", f"{compared.first_quartile:.3f}-{compared.third_quartile:.3f}"]


def _notes(measurement: Measurement, run: Run) -> list[str]:
    """Return warnings about the numbers: failures, answers that ended early, and missing samples."""
    notes = []
    if measurement.failure is not None:
        notes.append(f"failed: {measurement.failure}")
    for server in range(len(run.servers)):
        label = f"{'AB'[server]}: " if len(run.servers) > 1 else ""
        lengths = [value for part in measurement.samples(LENGTH, server) for value in part]
        num_early = sum(length < run.workload.max_tokens for length in lengths)
        if num_early:
            notes.append(
                f"{label}{num_early} of {len(lengths)} answers ended before {run.workload.max_tokens} tokens; "
                f"rates are for the tokens that came"
            )
        for metric in measurement.scenario.metrics:
            samples = measurement.samples(metric, server)
            if num_empty := sum(not part for part in samples):
                notes.append(f"{label}{num_empty} of {len(samples)} rounds gave no {metric.name}")
    return notes


def _number(value: float) -> str:
    for least, places in ((1000, 0), (100, 1)):
        if abs(value) >= least:
            return f"{value:.{places}f}"
    return f"{value:.2f}"
