"""`edgeagent pull`: downloads models. This module shows the progress; the store does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.completion import catalog_names
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.store.hub.pull import PulledModel, Puller


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
    from edgeagent.cli.models.pull_display import pull_display

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
