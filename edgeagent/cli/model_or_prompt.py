"""Tells a model's name from a question, where `edgeagent run` is given one word and it may be either."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

import typer

_LIKENESS = 0.75


def is_model(text: str, known: Collection[str]) -> bool:
    """Whether a text names a model: it is known, a file, or has the form of a name (org/repo, name:QUANT, x.gguf).

    Raise BadParameter for a word that is nearly a known name: a slip, as a rule, and rarely a question.
    """
    if text in known or _is_there(text):
        return True
    if any(char.isspace() for char in text):
        return False
    if "/" in text or "\\" in text or ":" in text or text.lower().endswith(".gguf"):
        return True
    near = difflib.get_close_matches(text.lower(), known, n=1, cutoff=_LIKENESS)
    if near:
        raise typer.BadParameter(
            f"there is no model {text!r}. For {near[0]!r}: edgeagent run {near[0]}. "
            f'To ask {text!r} as a question: edgeagent run MODEL "{text}"'
        )
    return False


def _is_there(text: str) -> bool:
    """Whether there is a file or folder of that name; what no file system takes for a name is a question."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
