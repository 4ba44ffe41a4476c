"""Types of option values. They convert the text of a flag or an environment variable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from edgeagent.durations import seconds_of
from edgeagent.home import with_home


def _split_commas(value: object) -> object:
    """Split the text of a flag or an environment variable into its values: "3,1"."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _duration(value: object) -> object:
    """Return a duration as text; raise ValueError if the value is not a duration."""
    if isinstance(value, int | float | str):
        seconds_of(value)
    return str(value) if isinstance(value, int | float) else value


def _draft(value: str) -> str:
    """Refuse an empty name, which would mean the model itself."""
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
