"""Types and checks of option values. The types convert the text of a flag or an environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from edgeagent.durations import seconds_of
from edgeagent.home import with_home


class ModelOptionError(ValueError):
    """A wrong value in the engine table of one model. `problem` is pydantic's description of it."""

    def __init__(self, model: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f'[models."{model}"] engine: {problem["msg"]}')
        self.model = model
        self.problem = problem


def of_kind(value: object, kind: object) -> object:
    """Return an option's value unchanged. `kind` is the option's type.

    Raise ValueError for a bool if a number is expected, and for a number if a bool is expected. Pydantic would convert
    these values silently.
    """
    if kind in (int, float) and isinstance(value, bool):
        raise ValueError(f"must be a number, not {value}")
    if kind is bool and isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value}")
    return value


def _split_commas(value: object) -> object:
    """Split a text at its commas: "3,1" becomes ["3", "1"]. Return values of other types unchanged."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _duration(value: object) -> object:
    """Return the text of a duration, which is given as a number or a text. Raise ValueError if it is no duration.

    Values of other types are returned unchanged, and pydantic refuses them.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    seconds_of(value)
    return str(value)


def _draft(value: str) -> str:
    """Return the value unchanged. Raise ValueError for an empty name, which would mean the model itself."""
    if not value:
        raise ValueError("must be auto, none, ngram or the name of a model, not empty")
    return value


Draft = Annotated[str, AfterValidator(_draft)]
Duration = Annotated[str, BeforeValidator(_duration)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_split_commas)]
LatencyTarget = Annotated[float, Field(gt=0, le=3600)]
# Shells do not expand ~ in files, variables and `--flag=~/x`.
UserPath = Annotated[Path, AfterValidator(with_home)]
AdapterName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
