"""Tells the model from the question among the arguments of `edgeagent run`.

1. A single argument that reads like a name is a model (`llama3.2`, `org/repo:Q4_0`, `hello`); any other is a question
   (`Hello!`, `What now?`), unless a file has that name or it ends in .gguf.
2. Of several arguments the first is the model, and the others are the question.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path

import typer

# The characters of models' names on the hub, in the catalog and in most folders.
_NAME = re.compile(r"[\w.:/\\~@+-]+", re.ASCII)
_LIKENESS = 0.6
_MAX_NEAR = 3


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the model and the question, None for what is not given."""
    if not arguments:
        return None, None
    first, *words = arguments
    if not words and not _is_like_a_name(first) and not _is_there(first):
        return None, first
    return first, " ".join(words) or None


def check_model(name: str, question: str | None, known: Collection[str]) -> None:
    """Raise BadParameter for what cannot be a model: no known name (also with a :QUANT), no path, no org/repo.

    `question` is what was typed behind it, for the advice.
    """
    if name in known or name.rpartition(":")[0] in known or _is_there(name):
        return
    if not _has_blanks(name) and ("/" in name or "\\" in name or name.lower().endswith(".gguf")):
        return
    typed = name if question is None else f"{name} {question}"
    raise typer.BadParameter(f"there is no model {name!r:.80}; {_near(name, known)}. {_as_question(typed)}")


def _near(name: str, known: Collection[str]) -> str:
    stem = name.lower().partition(":")[0]
    near = difflib.get_close_matches(stem, known, n=_MAX_NEAR, cutoff=_LIKENESS)
    near = near or [each for each in sorted(known) if stem[:4] and each.startswith(stem[:4])][:_MAX_NEAR]
    if near:
        return f"near names: {', '.join(near)}"
    return f"known names: {', '.join(sorted(known))}, and a path to a .gguf or org/repo[:QUANT]"


def _as_question(typed: str) -> str:
    # A terminal would obey control characters.
    shown = "".join(char if char.isprintable() else " " for char in typed)
    text = " ".join(shown.replace('"', "'").split())
    short = textwrap.shorten(text, 60, placeholder=" ...") or text[:60]
    return f'To ask it as a question: edgeagent run -p "{short}"'


def _is_like_a_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None or (text.lower().endswith(".gguf") and not _has_blanks(text))


def _has_blanks(text: str) -> bool:
    return not text or any(char.isspace() for char in text)


def _is_there(text: str) -> bool:
    """Whether there is a file or folder of that name; what no file system takes for a name is a question."""
    try:
        return text != "" and Path(text).exists()
    except (OSError, ValueError):
        return False
