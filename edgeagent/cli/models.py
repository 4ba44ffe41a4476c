"""`edgeagent pull`: models brought to this machine. Draws; the store acts."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeagent.cli.completion import catalog_names
from edgeagent.cli.model_options import ConfigFile, ModelsDir, StateDir, settings_of


def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="org/repo[:QUANT], org/repo/file.gguf, or a catalog name.",
            autocompletion=catalog_names,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, progress included.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Download models into the shared Hugging Face cache, unless they are there.

    Without NAME it lists the catalog.

    Resumes what was interrupted; checks free disk space first and every file's sha256 afterwards. HF_TOKEN opens gated
    and private repositories; HF_ENDPOINT names another hub.
    """
    from edgeagent.cli.pull_display import pull_display
    from edgeagent.errors import EdgeAgentError
    from edgeagent.store.hub import Puller

    settings = settings_of(models_dir, state_dir, config)
    if not names:
        from edgeagent.cli.model_list import list_catalog

        list_catalog(settings, as_json=as_json)
        return
    puller = Puller(settings.store, settings.state_dir)
    num_failed = 0
    for name in names:
        with pull_display(name, as_json=as_json) as display:
            try:
                display.done(puller.pull(name, display.progress))
            except EdgeAgentError as error:
                num_failed += 1
                display.failed(error)
            except KeyboardInterrupt:
                display.interrupted()
                raise typer.Exit(130) from None
    if num_failed:
        raise typer.Exit(1)
