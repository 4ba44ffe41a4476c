"""Reads the context length of a remote's models from its list of models, or from its refusal of a long prompt."""

from __future__ import annotations

import re
from typing import Any

CERTAIN = 1.5
"""A prompt certainly does not fit if its estimated size is more than this many times the context length."""
# The largest plausible context, in tokens.
_MAX_TOKENS = 1 << 24
_TOO_LONG = re.compile(r"context.{0,40}(length|window|size)|maximum.{0,20}(context|tokens|model length)|too long", re.I)
_TOLD = re.compile(r"(?:context|model)(?:['\u2019]s)? (?:length|window|size)\D{0,20}(\d{1,12})", re.I)


def is_too_long(refusal: str) -> bool:
    """Whether a refusal says that the prompt and the requested output tokens do not fit the context."""
    return _TOO_LONG.search(refusal) is not None


def told_context(refusal: str) -> int:
    """Return the context length in tokens that a refusal of a prompt names; 0 if it names none."""
    told = _TOLD.search(refusal)
    return 0 if told is None else listed_context(int(told[1]))


def listed_context(*values: Any) -> int:
    """Return the first value that can be a context length in tokens; 0 if none can. The remote sent the values."""
    return next((value for value in values if type(value) is int and 0 < value <= _MAX_TOKENS), 0)
