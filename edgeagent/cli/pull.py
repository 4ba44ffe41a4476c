"""`edgeagent pull`: downloads models. This module shows the progress; the store does the work."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.completion import catalog_names
from edgeagent.cli.display import complain, size_text
from edgeagent.cli.options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.cli.progress import Show, progress
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.store.hub.pull import Progress, PulledModel, Puller

JSON_INTERVAL_S = 0.5
VERBS = {"waiting": "waiting for another pull of", "downloading": "downloading", "verifying": "verifying"}


class JsonReport:
    """JSON objects on stdout, one a line: progress, then done, error or interrupted."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Progress | None = None
        self._printed_at_s = float("-inf")

    def progress(self, _: Show, progress: Progress) -> None:
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
            projector=None if model.projector is None else str(model.projector),
        )

    def failed(self, error: EdgeAgentError) -> None:
        self._print("error", code=error.code, message=error.message)

    def interrupted(self) -> None:
        self._print("interrupted", **(_bytes(self._last) if self._last is not None else {}))

    def _print(self, event: str, **fields: object) -> None:
        typer.echo(json.dumps({"event": event, "model": self._name, **fields}))


class TextReport:
    """Progress on stderr, and the result as a line on stdout."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept_bytes = 0
        self._total_bytes = 0

    def progress(self, show: Show, progress: Progress) -> None:
        # While a file is verified, all of it is on disk. Only a download can lower the count.
        done_bytes = progress.done_bytes
        self._kept_bytes = done_bytes if progress.stage == "downloading" else max(self._kept_bytes, done_bytes)
        self._total_bytes = progress.total_bytes
        show(f"{VERBS[progress.stage]} {progress.file}", done_bytes, progress.total_bytes)

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


def _bytes(progress: Progress) -> dict[str, object]:
    return {
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "resumed_bytes": progress.resumed_bytes,
    }


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

    If the catalog names a draft model for it, that is downloaded too, and so is the projector (mmproj-*.gguf) with
    which a model reads images or sounds. An interrupted download is resumed. Free disk
    space is checked first, and the sha256 of every file afterwards. Gated and private repositories need
    `hf auth login` or HF_TOKEN. HF_ENDPOINT names another hub.
    """
    from edgeagent.store.hub.pull import Puller

    settings = settings_of(state_dir, config, models_dir)
    if not names:
        from edgeagent.cli.models import list_catalog

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
    report = JsonReport(name) if as_json else TextReport(name)
    try:
        with progress("bytes", is_quiet=as_json) as show:
            pulled = puller.pull(name, partial(report.progress, show))
    except EdgeAgentError as error:
        report.failed(error)
        return error
    except KeyboardInterrupt:
        report.interrupted()
        raise typer.Exit(130) from None
    report.done(pulled)
    return pulled
