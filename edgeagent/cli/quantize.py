"""`edgeagent quantize`: makes a smaller copy of a model.

This module reads the options and shows the progress. `edgeagent.quantize` makes the copy.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import complain, size_text
from edgeagent.cli.options import AsJsonLines, ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.cli.progress import Show, progress
from edgeagent.config import MAX_THREADS

if TYPE_CHECKING:
    from edgeagent.quantize import QuantizePlan

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
    as_json: AsJsonLines = False,
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

    settings = settings_of(state_dir, config, models_dir)
    planned = plan(Library.of(settings).find(source), type_name, out, settings.store)
    _check_source(planned, allow_requantize=allow_requantize, as_json=as_json)
    try:
        with _ended_by_sigterm(), progress("tensors", is_quiet=as_json) as show:
            show = _show_in_json if as_json else show
            _run(planned, show, force=force, threads=threads, is_enclosed=settings.engine.sandbox)
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


def _run(planned: QuantizePlan, show: Show, *, force: bool, threads: int, is_enclosed: bool) -> None:
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
        on_tensor = partial(show, f"writing {planned.target.name}")
        make_copy(order, lambda size_bytes: check_room(planned, size_bytes), on_tensor)


def _name(planned: QuantizePlan, models_dir: Path | None) -> str:
    """Return the name to show for the result: its stem if it is in the models folder, else its full path."""
    if models_dir is not None and planned.target.resolve().is_relative_to(models_dir.resolve()):
        return planned.target.stem
    return str(planned.target.resolve())


def _show_in_json(_stage: str, done: int, total: int) -> None:
    """Print a JSON line for the first and the last tensor, and for each 10 % between."""
    if done in (0, total) or 10 * done // total != 10 * (done - 1) // total:
        typer.echo(json.dumps({"event": "progress", "num_tensors": done, "num_tensors_total": total}))
