"""How many tokens a remote's models take: as its list of models says, or its refusal of a prompt that is too long."""

from __future__ import annotations

import re
from typing import Any

CERTAIN = 1.5
"""Sizes are estimated from characters: a prompt that is larger by this factor is certain not to fit."""
# The largest context that is believed.
_MAX_TOKENS = 1 << 24
_TOO_LONG = re.compile(r"context.{0,40}(length|window|size)|maximum.{0,20}(context|tokens|model length)|too long", re.I)
_TOLD = re.compile(r"(?:context|model)(?:['\u2019]s)? (?:length|window|size)\D{0,20}(\d{1,12})", re.I)


def is_too_long(refusal: str) -> bool:
    """Whether a refusal says that the prompt, with the tokens asked for, does not fit."""
    return _TOO_LONG.search(refusal) is not None


def told_context(refusal: str) -> int:
    """Return the context that a refusal names; 0 where it names none."""
    told = _TOLD.search(refusal)
    return 0 if told is None else listed_context(int(told[1]))


def listed_context(*values: Any) -> int:
    """Return the first of several fields of a list of models that can be a context's length; 0 where none can."""
    return next((value for value in values if type(value) is int and 0 < value <= _MAX_TOKENS), 0)
