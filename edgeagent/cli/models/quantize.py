"""`edgeagent quantize`: makes a smaller copy of a model.

This module reads the options and shows the progress. `edgeagent.quantize` makes the copy.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import complain, progress_display, size_text
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of

if TYPE_CHECKING:
    from edgeagent.quantize import QuantizePlan

LINE_STEP_PERCENT = 10
MAX_THREADS = 512
TYPE_HELP = (
    "F32, BF16, F16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0, IQ4_NL, IQ4_XS, MXFP4_MOE, "
    "Q3_K_L, Q3_K_M, Q3_K_S, IQ3_M, IQ3_S or Q2_K, from good to small."
)


def quantize(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="The model.", autocompletion=model_names)],
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help=TYPE_HELP)],
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="File or folder of the result. [default: beside MODEL]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Accept a source that is already quantized; it loses quality twice."),
    ] = False,
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", min=0, max=MAX_THREADS, help="CPU threads; 0 is one per core.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, progress included.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Make a smaller, quicker copy of a model, with fewer bits for each number.

    The best source is F32, F16 or BF16. The result is MODEL-TYPE.gguf beside the model. If the model is from the hub or
    another program, the result goes to --models-dir, or else to the current folder. It gets its name once it is
    complete and checked; Ctrl-C leaves no file. The parts of a split model become one file.
    """
    from edgeagent.quantize import plan
    from edgeagent.store.library import Library

    settings = settings_of(models_dir, state_dir, config)
    planned = plan(Library.of(settings).find(source), type_name, out, settings.store)
    _check_source(planned, allow_requantize=allow_requantize, as_json=as_json)
    try:
        with _ended_by_sigterm(), _display(planned, as_json=as_json) as display:
            _run(planned, display, force=force, threads=threads, is_enclosed=settings.engine.sandbox)
    except KeyboardInterrupt:
        complain("interrupted; nothing was kept")
        raise typer.Exit(130) from None
    name = _name(planned, settings.store.models_dir)
    size_bytes = planned.target.stat().st_size
    if as_json:
        fields = {"name": name, "path": str(planned.target), "quant": planned.quant, "size_bytes": size_bytes}
        typer.echo(json.dumps({"event": "done", **fields}))
        return
    was = size_text(planned.header.size_bytes)
    typer.echo(f"{planned.target} is made: {size_text(size_bytes)}, from {was}.")
    typer.echo(f"Try it: edgeagent run {name}", err=True)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C, so that the unfinished file is removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_source(planned: QuantizePlan, *, allow_requantize: bool, as_json: bool) -> None:
    from edgeagent.errors import InvalidRequest

    if not planned.quantized_before:
        return
    if not allow_requantize:
        raise InvalidRequest(
            f"{planned.name} is quantized already ({planned.quantized_before}): a copy of it is worse than a copy of "
            "the F16 or BF16 model; use that model, or pass --allow-requantize"
        )
    if not as_json:
        before = planned.quantized_before
        typer.echo(f"warning: {planned.name} is {before} already; the result is worse than one of F16", err=True)


def _run(planned: QuantizePlan, display: Display, *, force: bool, threads: int, is_enclosed: bool) -> None:
    from edgeagent.quantize import Order, being_written, check_room
    from edgeagent.quantize import quantize as make_copy

    with being_written(planned, overwrite=force) as draft:
        order = Order(
            sources=tuple(path.absolute() for path in planned.sources),
            target=draft.absolute(),
            file_type=planned.file_type,
            num_threads=threads,
            allow_requantize=bool(planned.quantized_before),
            is_enclosed=is_enclosed,
        )
        make_copy(order, lambda size_bytes: check_room(planned, size_bytes), display.show)


def _name(planned: QuantizePlan, models_dir: Path | None) -> str:
    """Return the name to show for the result: its stem if it is in the models folder, else its full path."""
    if models_dir is not None and planned.target.resolve().is_relative_to(models_dir.resolve()):
        return planned.target.stem
    return str(planned.target.resolve())


class Display(Protocol):
    """Shows how many of the model's tensors the quantization has begun."""

    def show(self, done: int, total: int) -> None: ...


def _display(planned: QuantizePlan, *, as_json: bool) -> AbstractContextManager[Display]:
    name = planned.target.name
    return progress_display(name, as_json=as_json, json_lines=JsonDisplay, lines=LineDisplay, bar=BarDisplay)


class LineDisplay:
    """Plain lines on stderr, one for every 10 %."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._step = -1

    def show(self, done: int, total: int) -> None:
        """Print a line if the progress has passed the next 10 %. `done` counts the tensors that were begun."""
        percent = 100 * done // max(total, 1)
        if percent // LINE_STEP_PERCENT != self._step:
            self._step = percent // LINE_STEP_PERCENT
            self._print(percent, done, total)

    def _print(self, percent: int, _done: int, _total: int) -> None:
        typer.echo(f"writing {self._name}: {percent}%", err=True)


class JsonDisplay(LineDisplay):
    """JSON lines on stdout, one for every 10 %."""

    def _print(self, _percent: int, done: int, total: int) -> None:
        typer.echo(json.dumps({"event": "progress", "num_tensors": done, "num_tensors_total": total}))


class BarDisplay(AbstractContextManager["BarDisplay"]):
    """A bar on a terminal, which is removed at the end."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        column = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=column),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("tensors"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        self._task = self._bars.add_task(f"writing {name}", total=None)

    def __enter__(self) -> BarDisplay:
        """Draw the bar."""
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bar."""
        self._bars.stop()

    def show(self, done: int, total: int) -> None:
        """Set the bar to the number of tensors that were begun."""
        self._bars.update(self._task, completed=done, total=total)
