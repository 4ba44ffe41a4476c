"""Finds out which arguments of `edgeagent run` are the model and which are the question.

1. A single argument is a model if it looks like a name (`llama3.2`, `org/repo:Q4_0`, `hello`), if it ends in .gguf and
   has no blanks, or if a file or folder has this path. Otherwise it is a question (`Hello!`, `What now?`).
2. If there are several arguments, the first is the model, and the others are the question.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import typer

from edgeagent.store.names.near import near_names

# The characters of models' names on the hub, in the catalog and in most folders.
_NAME = re.compile(r"[\w.:/\\~@+-]+", re.ASCII)


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the model and the question; each is None if it is not given."""
    if not arguments:
        return None, None
    first, *words = arguments
    if not words and not _is_like_a_name(first) and not _is_there(first):
        return None, first
    return first, " ".join(words) or None


def check_model(
    name: str, question: str | None, known: Collection[str], means_a_model: Callable[[str], bool] = lambda _: False
) -> None:
    """Raise BadParameter if `name` cannot be a model.

    It can be one if it is a known name (with or without :QUANT), a path, or org/repo (with or without :QUANT).
    `means_a_model` returns True for other spellings of known names. `question` is the text that was typed after the
    name; the error message repeats it.
    """
    if name in known or name.rpartition(":")[0] in known or _is_there(name) or means_a_model(name):
        return
    if not _has_blanks(name) and ("/" in name or "\\" in name or name.lower().endswith(".gguf")):
        return
    typed = name if question is None else f"{name} {question}"
    near = near_names(name, known, "a path to a .gguf or org/repo[:QUANT]")
    raise typer.BadParameter(f"there is no model {name!r:.80}; {near}. {_as_question(typed)}")


def _as_question(typed: str) -> str:
    # A terminal would execute control characters.
    shown = "".join(char if char.isprintable() else " " for char in typed)
    text = " ".join(shown.replace('"', "'").split())
    short = textwrap.shorten(text, 60, placeholder=" ...") or text[:60]
    return f'To ask it as a question: edgeagent run -p "{short}"'


def _is_like_a_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None or (text.lower().endswith(".gguf") and not _has_blanks(text))


def _has_blanks(text: str) -> bool:
    return not text or any(char.isspace() for char in text)


def _is_there(text: str) -> bool:
    """Whether a file or folder has this name; False if no file system allows the name."""
    try:
        return text != "" and Path(text).exists()
    except (OSError, ValueError):
        return False
