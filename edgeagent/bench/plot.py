"""Draws the report as a picture: cumulative distributions of the metrics' samples, from best to worst.

This module needs the extra `plot`.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from edgeagent.bench.measure import Measurement, Run
from edgeagent.bench.scenario import Metric
from edgeagent.errors import ConfigError, EdgeAgentError

PANEL_INCHES = (4.0, 2.8)
MAX_COLUMNS = 4
DPI = 150


def check_plot(path: Path) -> None:
    """Raise ConfigError if matplotlib is missing, if `path` has a wrong ending, or if its folder does not exist.

    Call this before the measurement.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; install it with: pip install 'edgeagent[plot]'")
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot {path}: the name must end in .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")


def save_plot(run: Run, path: Path) -> None:
    """Write a picture with a row of panels for each scenario, and a panel for each metric.

    Metrics without samples, metrics that only explain others, and those after the first MAX_COLUMNS are left out. Raise
    EdgeAgentError if no metric is left, or if the file cannot be written.
    """
    rows = [(measurement, _drawable(measurement)) for measurement in run.measurements]
    rows = [(measurement, metrics) for measurement, metrics in rows if metrics]
    if not rows:
        raise EdgeAgentError(f"nothing was measured, so {path} was not drawn")
    figure, axes = _grid(len(rows), min(MAX_COLUMNS, max(len(metrics) for _, metrics in rows)))
    for row, (measurement, metrics) in zip(axes, rows, strict=True):
        for panel, metric in zip(row, [*metrics, *(None for _ in row)], strict=False):
            if metric is None:
                panel.set_axis_off()
            else:
                _draw(panel, measurement, metric, run)
    try:
        figure.savefig(path, dpi=DPI)
    except OSError as error:
        raise EdgeAgentError(f"cannot write {path}: {error.strerror}") from error


def _drawable(measurement: Measurement) -> list[Metric]:
    metrics = [metric for metric in measurement.scenario.metrics if metric.better != "neither"]
    return [
        metric for metric in metrics if any(any(measurement.samples(metric, s)) for s in range(len(measurement.rounds)))
    ][:MAX_COLUMNS]


def _grid(num_rows: int, num_columns: int) -> tuple[Any, Any]:
    # pyplot is not used, since it keeps figures in memory and looks for a display.
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(PANEL_INCHES[0] * num_columns, PANEL_INCHES[1] * num_rows), layout="constrained"
    )
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _draw(panel: Any, measurement: Measurement, metric: Metric, run: Run) -> None:
    for index, server in enumerate(run.servers):
        samples = sorted(value for part in measurement.samples(metric, index) for value in part)
        if metric.better == "higher":
            samples.reverse()
        if samples:
            shares = [100 * (position + 1) / len(samples) for position in range(len(samples))]
            label = f"{'AB'[index]} {server.kind} ({server.transport})"
            panel.step([samples[0], *samples], [0, *shares], where="post", label=label)
    panel.set_title(f"{measurement.scenario.name}: {metric.name}", fontsize=9)
    panel.set_xlabel(metric.unit)
    panel.set_ylabel("% of samples at least as good", fontsize=7)
    panel.set_ylim(0, 100)
    panel.grid(alpha=0.3)
    if len(run.servers) > 1:
        panel.legend(fontsize=7)
