"""Stores the figures of shapes in a folder: one file for each shape and quantization, updated after each situation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgeagent.bench.measure import Measurement
from tests.peer.rows import Figure, Row, figure_of
from tests.peer.shelf import QUANTS, SHAPES

Found = dict[tuple[str, str], dict[str, Figure]]
"""For each shape and quantization, its figures by the titles of their rows."""


class ShapeFolder:
    """The figures measured so far, all with the same settings.

    If `is_begun_anew`, existing files are deleted. Otherwise raise SystemExit if a file has other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, is_begun_anew: bool = False) -> None:
        self.path = path
        self.settings = settings
        path.mkdir(parents=True, exist_ok=True)
        for file in path.glob("*.json"):
            if is_begun_anew:
                file.unlink()
                continue
            former = json.loads(file.read_text(encoding="utf-8"))["settings"]
            if former != settings:
                changed = [key for key in settings if former.get(key) != settings[key]]
                raise SystemExit(
                    f"{file} was measured with other settings ({', '.join(changed)}): "
                    "name another --folder, or begin --again"
                )

    def has(self, shape: str, quant: str, situation: str) -> bool:
        """Return whether a situation was measured without failure."""
        return situation in self._read(shape, quant)["situations"]

    def add(
        self,
        shape: str,
        quant: str,
        situation: str,
        rows: Sequence[Row],
        measurement: Measurement,
        samples: dict[str, Any],
    ) -> None:
        """Store a situation's figures and samples. A failed situation is measured again by the next run."""
        kept = self._read(shape, quant)
        if measurement.failure is not None:
            return
        figures = {row.title: asdict(figure_of(row, measurement)) for row in rows}
        kept["situations"][situation] = {"figures": figures, "samples": samples}
        file = self._file(shape, quant)
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(file)

    def read(self) -> Found:
        """Return all stored figures. Shapes and quantizations are in the order of tests/peer/shelf."""
        found: Found = {}
        for shape in SHAPES:
            for quant in QUANTS:
                situations = self._read(shape, quant)["situations"].values()
                figures = {title: _figure(each) for kept in situations for title, each in kept["figures"].items()}
                if figures:
                    found[shape, quant] = figures
        return found

    def _file(self, shape: str, quant: str) -> Path:
        return self.path / f"{shape}-{quant}.json"

    def _read(self, shape: str, quant: str) -> dict[str, Any]:
        file = self._file(shape, quant)
        if not file.exists():
            return {"settings": self.settings, "situations": {}}
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept


def _figure(kept: dict[str, Any]) -> Figure:
    quartiles = kept["quartiles"]
    return Figure(**{**kept, "quartiles": None if quartiles is None else (quartiles[0], quartiles[1])})
