"""The options that the commands about models share, and the configuration that results from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edgeagent.config import Config

ModelsDir = Annotated[
    Path | None,
    typer.Option("--models-dir", metavar="DIR", help="Folder of models: downloads, and .gguf files laid into it."),
]
StateDir = Annotated[Path | None, typer.Option("--state-dir", metavar="DIR", help="The daemon's state folder.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Read this config.toml instead.")]


def settings_of(models_dir: Path | None, state_dir: Path | None, file: Path | None) -> Config:
    """Return the configuration for a command about models.

    `file` is the config file; None is the default one. A folder that is not None overrides the configured one.
    """
    from edgeagent.config_sources import load_config

    flags = {"store.models_dir": models_dir, "state_dir": state_dir}
    return load_config({name: value for name, value in flags.items() if value is not None}, file).config
