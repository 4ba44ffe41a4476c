"""Formats the figures as Markdown tables: one table for a single model, or tables over all shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from edgeagent.bench.measure import Measurement
from tests.peer.rows import Figure, Row, figure_of, number
from tests.peer.shape_folder import Found


def heading(settings: Mapping[str, Any]) -> str:
    """Return one line with the settings that the figures depend on."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value != "")


def one_model(
    rows: Sequence[Row], measurements: Mapping[str, Measurement], other: str = "llama-server, or without"
) -> Iterator[str]:
    """Yield the lines of the table for a single model, compared with what the other server is."""
    yield f"| | edgeagent | {other} | ratio (quartiles) | bar |"
    yield "|---|---|---|---|---|"
    for row in rows:
        if row.situation in measurements:
            figure = figure_of(row, measurements[row.situation])
            bar = "" if row.bar is None else row.bar.text
            cells = (_with_unit(figure.ours, figure.unit), _with_unit(figure.theirs, figure.unit), _ratio(row, figure))
            yield f"| {row.title} | {' | '.join(cells)} | {bar} |"


def over_shapes(rows: Sequence[Row], found: Found, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table for each situation, with a row for each shape. Bold figures miss their bar."""
    yield heading(settings)
    for _, group in groupby(rows, key=lambda row: row.situation):
        columns = list(group)
        measured = {model: figures for model, figures in found.items() if any(row.title in figures for row in columns)}
        if not measured:
            continue
        yield ""
        yield f"| | {' | '.join(f'{row.title}{_unit_of(row)}' for row in columns)} |"
        yield "|---" * (1 + len(columns)) + "|"
        if any(row.bar for row in columns):
            yield f"| bar | {' | '.join(row.bar.text if row.bar else '–' for row in columns)} |"
        for (shape, quant), figures in measured.items():
            yield f"| {shape}, {quant} | {' | '.join(_cell(row, figures.get(row.title), shape) for row in columns)} |"


def put_between_marks(document: Path, text: str, name: str = "shapes") -> None:
    """Replace the text between the two marks called `name` in a document.

    The marks are `<!-- NAME: begin -->` and `<!-- NAME: end -->`. Raise SystemExit if one is missing.
    """
    first, last = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, begin, rest = document.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise SystemExit(f"{document} has no {first} and {last}")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _cell(row: Row, figure: Figure | None, shape: str) -> str:
    """Return the text of a cell, such as "1.2 (120 / 100)": the ratio, and in brackets the figures of both servers.

    If the bar applies to edgeagent's own figure, that figure comes first. If there is no ratio, the cell has only that
    figure. "–" means that there are no samples.
    """
    if figure is None or figure.ours is None:
        return "–"
    if figure.value is None:
        return number(figure.ours)
    value = number(figure.value)
    if row.bar is not None and not row.bar.is_met(figure.value, shape):
        value = f"**{value}**"
    if row.is_own:
        return value if figure.theirs is None else f"{value} (theirs {number(figure.theirs)})"
    known = [number(part) for part in (figure.ours, figure.theirs) if part is not None]
    return f"{value} ({' / '.join(known)})"


def _unit_of(row: Row) -> str:
    return "" if row.metric.unit in row.title or row.metric.unit == "x" else f", {row.metric.unit}"


def _with_unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{number(value)} {unit}"


def _ratio(row: Row, figure: Figure) -> str:
    if figure.value is None or row.is_own:
        return "–"
    spread = "" if figure.quartiles is None else f" ({number(figure.quartiles[0])}–{number(figure.quartiles[1])})"
    return f"{number(figure.value)}{spread or ' (of all)'}"
