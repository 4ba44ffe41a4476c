"""Reads the owner's options for single models from the tables [models."NAME"] of the configuration.

The parameter `name` is the name of the model's table, or "" if the model has no table.
"""

from __future__ import annotations

from edgeagent.config import Config
from edgeagent.durations import seconds_of


def keep_alive_s(config: Config, name: str) -> float:
    """Return how many seconds a model stays loaded without use."""
    own = config.models.get(name)
    return config.load.keep_alive_s if own is None or own.keep_alive is None else seconds_of(own.keep_alive)


def draft(config: Config, name: str, *, is_default: bool) -> str:
    """Return the option --draft for a model.

    If the general --draft names a draft model, only the default model gets it (`is_default`). Others get "auto".
    """
    own = config.models.get(name)
    if own is not None and own.draft != "auto":
        return own.draft
    return config.draft if is_default or config.draft_model is None else "auto"


def preloaded(config: Config) -> tuple[str, ...]:
    """Return the names of the additional models that are loaded at the start and stay loaded."""
    return (*config.load.preload, *(name for name, own in config.models.items() if own.preload))
