"""Progress on stderr: of long work as a bar or as few plain lines, and of a wait as one line that is overwritten."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import typer

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

Show = Callable[[str, int, int], None]
"""Shows a stage, how much of it is done, and how much there is in all; 0 if that is not known."""
Unit = Literal["bytes", "tensors", "rounds", "seconds", "questions"]


@contextmanager
def progress(unit: Unit, *, is_quiet: bool = False) -> Iterator[Show]:
    """Yield a function that shows progress; it shows nothing if `is_quiet`. A bar is removed at the end."""
    if is_quiet or not sys.stderr.isatty():
        yield _show_nothing if is_quiet else _show_in_lines(unit)
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    task: TaskID | None = None
    shown = ""
    with Progress(*_columns(unit), console=Console(stderr=True), transient=True, expand=True) as bars:

        def show(stage: str, done: int, total: int) -> None:
            nonlocal task, shown
            # Each stage has its own bar, since the speed of one says nothing about the next.
            if task is None or stage != shown:
                if task is not None:
                    bars.remove_task(task)
                shown, task = stage, bars.add_task(stage, total=total or None, completed=done)
                bars.refresh()
            bars.update(task, completed=done, total=total or None)

        yield show


def _show_nothing(_stage: str, _done: int, _total: int) -> None:
    pass


def _columns(unit: Unit) -> list[ProgressColumn]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    # On a narrow terminal the stage is shortened, so that the other columns always fit.
    narrow = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    stage = TextColumn("{task.description}", markup=False, table_column=narrow)
    counts: list[ProgressColumn] = [MofNCompleteColumn(), TextColumn(unit)]
    if unit == "bytes":
        counts = [DownloadColumn(), TransferSpeedColumn()]
    return [stage, BarColumn(bar_width=12), *counts, TimeRemainingColumn(compact=True)]


def _show_in_lines(unit: Unit) -> Show:
    """Return a function that prints a line for each stage, and for each 10 % of one that has bytes or tensors."""
    printed: tuple[str, int] | None = None

    def show(stage: str, done: int, total: int) -> None:
        nonlocal printed
        percent = 100 * done // max(total, 1)
        step = 0 if unit in ("rounds", "seconds") else percent // 10
        line = (stage if total else stage.rstrip("0123456789%"), step)
        if line != printed:
            printed = line
            how_much = f" ({done} of {total} {unit})" if unit in ("rounds", "seconds") else f": {percent}%"
            typer.echo(f"{stage}{how_much}" if total else stage, err=True)

    return show


class StatusLine:
    """Shows one text at a time. At the end of the context, the line is cleared."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show("")

    @property
    def is_visible(self) -> bool:
        return sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show a text in place of the one before. An empty text leaves the cursor at the start of an empty line."""
        if not self.is_visible:
            return
        # A line that wraps could not be overwritten.
        width = shutil.get_terminal_size().columns - 1
        text = text[: width - len("^C")]
        if text != self._shown:
            # Clear the whole line, since the terminal may have written ^C after the text.
            line = f"{text:<{len(self._shown)}}" if text else f"{'':{width}}\r"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)  # noqa: T201
            self._shown = text
