"""`edgeagent pull`: downloads models. This module shows the progress; the store does the work."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from edgeagent.cli.completion import catalog_names
from edgeagent.cli.display import complain, progress_display, size_text
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from edgeagent.store.hub.pull import Progress, PulledModel, Puller

JSON_INTERVAL_S = 0.5
LINE_STEP_PERCENT = 10
VERBS = {"waiting": "waiting for another pull of", "downloading": "downloading", "verifying": "verifying"}


class PullDisplay(Protocol):
    """Shows the progress of one pull, and then its end: done, failed or interrupted."""

    def progress(self, progress: Progress) -> None: ...

    def done(self, model: PulledModel) -> None: ...

    def failed(self, error: EdgeAgentError) -> None: ...

    def interrupted(self) -> None: ...


def pull_display(name: str, *, as_json: bool) -> AbstractContextManager[PullDisplay]:
    """Return the display for the pull of one model."""
    return progress_display(name, as_json=as_json, json_lines=JsonDisplay, lines=LineDisplay, bar=BarDisplay)


class JsonDisplay:
    """JSON objects on stdout, one a line: progress, then done, error or interrupted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Progress | None = None
        self._printed_at_s = float("-inf")

    def progress(self, progress: Progress) -> None:
        is_next_stage = self._last is None or (self._last.stage, self._last.file) != (progress.stage, progress.file)
        self._last = progress
        if is_next_stage or time.monotonic() - self._printed_at_s >= JSON_INTERVAL_S:
            self._printed_at_s = time.monotonic()
            self._print("progress", **_bytes(progress), stage=progress.stage, file=progress.file)

    def done(self, model: PulledModel) -> None:
        self._print(
            "done",
            name=model.name,
            paths=[str(path) for path in model.paths],
            size_bytes=model.size_bytes,
            downloaded_bytes=model.downloaded_bytes,
            is_current=model.is_current,
            draft=model.draft,
        )

    def failed(self, error: EdgeAgentError) -> None:
        self._print("error", code=error.code, message=error.message)

    def interrupted(self) -> None:
        self._print("interrupted", **(_bytes(self._last) if self._last is not None else {}))

    def _print(self, event: str, **fields: object) -> None:
        typer.echo(json.dumps({"event": event, "model": self._name, **fields}))


class LineDisplay:
    """Plain lines of progress on stderr, one for every 10 %, and the result as a line on stdout."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept_bytes = 0
        self._total_bytes = 0
        self._printed = ("", "", -1)

    def progress(self, progress: Progress) -> None:
        self._count(progress)
        percent = 100 * progress.done_bytes // max(progress.total_bytes, 1)
        step = (progress.stage, progress.file, percent // LINE_STEP_PERCENT)
        if step != self._printed:
            self._printed = step
            typer.echo(f"{VERBS[progress.stage]} {progress.file}: {percent}%", err=True)

    def done(self, model: PulledModel) -> None:
        how = f"downloaded {size_text(model.downloaded_bytes)}" if model.downloaded_bytes else "nothing to download"
        typer.echo(f"{model.name} is here: {size_text(model.size_bytes)}, {how}.")
        if not model.is_current:
            typer.echo("The hub could not be asked whether it has a newer one.", err=True)
        typer.echo(f"Try it: edgeagent run {model.name}", err=True)

    def failed(self, error: EdgeAgentError) -> None:
        complain(error.message)

    def interrupted(self) -> None:
        kept = f"{size_text(self._kept_bytes)} of {size_text(self._total_bytes)} are kept. " if self._kept_bytes else ""
        complain(f"interrupted. {kept}To continue: edgeagent pull {self._name}")

    def _count(self, progress: Progress) -> None:
        # While a file is verified, all of it is on disk. Only a download can lower the count.
        done_bytes = progress.done_bytes
        self._kept_bytes = done_bytes if progress.stage == "downloading" else max(self._kept_bytes, done_bytes)
        self._total_bytes = progress.total_bytes


class BarDisplay(LineDisplay, AbstractContextManager["BarDisplay"]):
    """A bar with speed and remaining time. It is removed at the end of the pull."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._bars = _bars()
        self._task: TaskID | None = None
        self._stage = ("", "")

    def __enter__(self) -> BarDisplay:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def progress(self, progress: Progress) -> None:
        self._count(progress)
        if self._task is None or self._stage != (progress.stage, progress.file):
            # Each stage and file has its own bar, since the speed of one does not apply to the next.
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._stage = (progress.stage, progress.file)
            label = f"{VERBS[progress.stage]} {progress.file}"
            self._task = self._bars.add_task(label, total=progress.total_bytes, completed=progress.done_bytes)
        self._bars.update(self._task, completed=progress.done_bytes)

    def done(self, model: PulledModel) -> None:
        self._bars.stop()
        super().done(model)

    def failed(self, error: EdgeAgentError) -> None:
        self._bars.stop()
        super().failed(error)

    def interrupted(self) -> None:
        self._bars.stop()
        super().interrupted()


def _bytes(progress: Progress) -> dict[str, object]:
    return {
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "resumed_bytes": progress.resumed_bytes,
    }


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    # On a narrow terminal the name is shortened, so that the other columns always fit.
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=12),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    return Bars(*columns, console=Console(stderr=True), transient=True, expand=True)


def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="org/repo[:QUANT], org/repo/file.gguf, or a catalog name.",
            autocompletion=catalog_names,
        ),
    ] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Leave out the draft that the catalog names.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the hub; show whether the model is on this machine.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object a line, progress included; the catalog as one array."),
    ] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Download models into the shared Hugging Face cache, unless they are there.

    Without NAME it lists the catalog.

    If the catalog names a draft model for it, that is downloaded too. An interrupted download is resumed. Free disk
    space is checked first, and the sha256 of every file afterwards. Gated and private repositories need
    `hf auth login` or HF_TOKEN. HF_ENDPOINT names another hub.
    """
    from edgeagent.store.hub.pull import Puller

    settings = settings_of(models_dir, state_dir, config)
    if not names:
        from edgeagent.cli.models.listing import list_catalog

        list_catalog(settings, as_json=as_json)
        return
    puller = Puller(settings.store, settings.state_dir, offline=offline)
    wanted = list(dict.fromkeys(names))
    failures = []
    for name in wanted:
        pulled = _pull(puller, name, as_json=as_json)
        if isinstance(pulled, EdgeAgentError):
            failures.append(pulled.exit_status)
        elif pulled.draft is not None and not no_draft and pulled.draft not in wanted:
            wanted.append(pulled.draft)
    if failures:
        raise typer.Exit(min(failures))  # 2 only if every name that failed must be corrected


def _pull(puller: Puller, name: str, *, as_json: bool) -> PulledModel | EdgeAgentError:
    """Pull one model and show the progress. Return the error if it failed."""
    with pull_display(name, as_json=as_json) as display:
        try:
            pulled = puller.pull(name, display.progress)
        except EdgeAgentError as error:
            display.failed(error)
            return error
        except KeyboardInterrupt:
            display.interrupted()
            raise typer.Exit(130) from None
        display.done(pulled)
        return pulled
