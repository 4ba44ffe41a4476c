"""The saved runs of `edgeagent bench`, in one SQLite file, and how two of them compare."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from edgeagent.bench.stats import Better, Change, unpaired_change
from edgeagent.errors import ConfigError, NotFound

FILE = "bench.sqlite3"
_TABLE = """CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, name TEXT NOT NULL, facts TEXT NOT NULL, report TEXT NOT NULL
)"""

Report = Mapping[str, Any]
"""What `report.as_object` returns."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A saved run. `facts` are in words what the figures depend on: the machine, the build, the model, the settings."""

    id: int
    at: str
    name: str
    facts: Mapping[str, str]
    report: Report


class SavedRuns:
    """The runs in a state folder. Each method raises ConfigError if the file cannot be used."""

    def __init__(self, folder: Path) -> None:
        """`folder`: an existing folder."""
        self._path = folder / FILE

    def save(self, name: str, facts: Mapping[str, str], report: Report) -> int:
        """Save a run under a new number, and return the number."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        values = (at, name, json.dumps(facts), json.dumps(report))
        with closing(self._open()) as database, database:
            found = database.execute("INSERT INTO runs (at, name, facts, report) VALUES (?, ?, ?, ?)", values)
            assert found.lastrowid is not None
            return found.lastrowid

    def all(self) -> list[SavedRun]:
        """Return all runs, the oldest first."""
        if not self._path.exists():
            return []
        with closing(self._open()) as database:
            rows = database.execute("SELECT id, at, name, facts, report FROM runs ORDER BY id").fetchall()
        try:
            return [
                SavedRun(id_, at, name, json.loads(facts), json.loads(report)) for id_, at, name, facts, report in rows
            ]
        except ValueError as error:
            raise ConfigError(f"{self._path} is damaged ({error}); delete it") from None

    def find(self, which: str) -> SavedRun:
        """Return the run with this number or name; the latest if several have the name. Raise NotFound."""
        found = [run for run in self.all() if which in (str(run.id), run.name)]
        if not found:
            raise NotFound(f"no saved run is called {which!r}; `edgeagent bench history` lists them")
        return found[-1]

    def _open(self) -> sqlite3.Connection:
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(self._path)
            database.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{self._path} cannot be used ({error}); if it is damaged, delete it") from None
        return database


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of two runs: the medians, and the change from the first run to the second, if both have rounds."""

    scenario: str
    metric: str
    better: Better
    first: float
    second: float
    change: Change | None


def differing_facts(first: SavedRun, second: SavedRun) -> list[str]:
    """Return in words which facts of two runs differ."""
    names = dict.fromkeys([*first.facts, *second.facts])
    values = ((name, first.facts.get(name, "unknown"), second.facts.get(name, "unknown")) for name in names)
    return [f"{name}: {ours} / {theirs}" for name, ours, theirs in values if ours != theirs]


def compare(first: SavedRun, second: SavedRun) -> list[Compared]:
    """Compare the metrics that both runs have. If a run has two servers, its first one is compared."""
    ours, theirs = (dict(_figures(run.report)) for run in (first, second))
    compared = []
    for (scenario, metric), (better, rounds) in ours.items():
        _, others = theirs.get((scenario, metric), (better, []))
        if not rounds or not others:
            continue
        medians = [[median(each) for each in side] for side in (rounds, others)]
        change = unpaired_change(*medians) if better != "neither" else None
        compared.append(Compared(scenario, metric, better, median(medians[0]), median(medians[1]), change))
    return compared


def _figures(report: Report) -> Iterator[tuple[tuple[str, str], tuple[Better, list[list[float]]]]]:
    """Yield the samples of each metric, round by round, by the names of its scenario and its own."""
    for scenario in report["scenarios"]:
        for metric in scenario["metrics"]:
            rounds = metric["servers"][0].get("samples", [])
            yield (scenario["name"], metric["name"]), (metric["better"], [each for each in rounds if each])


def main_figures(run: SavedRun) -> str:
    """Return the median of the first metric of each scenario, in words."""
    parts = {}
    for (scenario, metric), (_, rounds) in _figures(run.report):
        if rounds and scenario not in parts:
            parts[scenario] = f"{metric} {median([median(each) for each in rounds]):.4g}"
    return ", ".join(parts.values())
