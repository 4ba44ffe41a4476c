"""The plot: refused before any measurement if it could not be drawn, and drawn where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from edgeagent.bench import plot
from edgeagent.bench.plot import check_plot, save_plot
from edgeagent.errors import ConfigError, EdgeAgentError
from tests.bench.test_report import decoded, run_of


@pytest.fixture
def _has_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'edgeagent\[plot\]'"):
        check_plot(tmp_path / "a.png")


@pytest.mark.usefixtures("_has_matplotlib")
def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    check_plot(tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        check_plot(tmp_path / "a.xyz")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_plot(tmp_path / "missing" / "a.png")


def test_nothing_measured_nothing_drawn(tmp_path: Path) -> None:
    with pytest.raises(EdgeAgentError, match="nothing was measured"):
        save_plot(run_of([]), tmp_path / "a.png")


class FakePanel:
    """Records the curves that are drawn into it."""

    def __init__(self) -> None:
        self.curves: list[tuple[list[float], list[float], str]] = []
        self.title = ""

    def step(self, values: list[float], shares: list[float], *, where: str, label: str) -> None:
        assert where == "post"
        self.curves.append((values, shares, label))

    def set_title(self, title: str, **_: object) -> None:
        self.title = title

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


class FakeFigure:
    """Returns panels, and records where it is saved."""

    def __init__(self) -> None:
        self.panels: list[FakePanel] = []
        self.saved: list[Path] = []

    def subplots(self, rows: int, columns: int, *, squeeze: bool) -> list[list[FakePanel]]:
        grid = [[FakePanel() for _ in range(columns)] for _ in range(rows)]
        self.panels = [panel for row in grid for panel in row]
        return grid

    def savefig(self, path: Path, **_: object) -> None:
        self.saved.append(path)


def test_curves_rise_from_the_best_sample_to_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = FakeFigure()
    monkeypatch.setattr(plot, "_grid", lambda rows, columns: (figure, figure.subplots(rows, columns, squeeze=False)))
    save_plot(run_of([decoded(100.0), decoded(80.0)], [decoded(50.0)]), tmp_path / "a.png")
    titles = [panel.title for panel in figure.panels]
    assert titles == ["decode: tokens/s", "decode: ITL", "decode: TTFT"]
    ours, theirs = figure.panels[0].curves
    assert ours == ([100.0, 100.0, 80.0], [0, 50.0, 100.0], "A edgeagent (ws)")
    assert theirs == ([50.0, 50.0], [0, 100.0], "B llamacpp (http)")
    assert figure.panels[1].curves[0][0] == [10.0, 10.0, 12.5, 20.0, 25.0]
    assert figure.saved == [tmp_path / "a.png"]


def test_matplotlib_draws_it(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    save_plot(run_of([decoded(100.0), decoded(80.0)], [decoded(50.0)]), path)
    assert path.read_bytes().startswith(b"\x89PNG")
