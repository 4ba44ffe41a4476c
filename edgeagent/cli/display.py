"""Formats the output of all commands: sizes, durations, tables, wrapped lines and errors.

Output to a pipe or a file is never wrapped or cut, so that a path stays on one line there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from edgeagent.units import size_text as size_text

_INDENT = "  "
_MIN_WIDTH = 20


def duration(seconds: float) -> str:
    """Return a duration as text, such as "3 days", "2 h 5 min", "7 min" or "12 s"."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def aligned(rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """Return rows as text in aligned columns. The first `left_columns` are left-aligned, the others right-aligned.

    There must be at least one row, and all rows must have the same number of cells.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, left_columns: int = 1, last_left: bool = False
) -> str:
    """Return a table for stdout. The first `left_columns` are left-aligned; if `last_left`, the last column is too.

    If the terminal is too narrow, the last columns are shown with their headings on an indented line below each row.
    """
    width = terminal_width()
    for num_columns in range(len(headings), 0, -1):
        kept = [list(row[:num_columns]) for row in (headings, *rows)]
        if num_columns == len(headings) and last_left:
            longest = max(len(row[-1]) for row in kept)
            kept = [[*row[:-1], row[-1].ljust(longest)] for row in kept]
        lines = aligned(kept, left_columns=left_columns).splitlines()
        if width is None or max(map(len, lines)) <= width or num_columns == 1:
            break
    folded = [""] + [
        ", ".join(f"{heading}: {cell}" for heading, cell in zip(headings[num_columns:], row[num_columns:], strict=True))
        for row in rows
    ]
    return "\n".join(
        f"{line}\n{_INDENT}{wrapped(below, len(_INDENT))}" if below else line
        for line, below in zip(lines, folded, strict=True)
    )


def wrapped(text: str, indent: int = 0) -> str:
    """Return text for stdout, with long lines wrapped at blanks to the terminal's width. Words stay whole.

    If stdout is not a terminal, return the text unchanged. `indent` is the column at which the caller prints the text.
    """
    return _wrapped(text, terminal_width(), indent)


def _wrapped(text: str, width: int | None, indent: int = 0) -> str:
    if width is None:
        return text
    lines = []
    for line in text.splitlines():
        start = len(line) - len(line.lstrip())
        margin = " " * (indent + start + len(_INDENT))
        whole = len(line) + indent <= width or not line.strip()
        lines += [line] if whole else _broken(line, width, indent, margin)
    return "\n".join(lines)


def _broken(line: str, width: int, indent: int, margin: str) -> list[str]:
    # The caller prints the first line after `indent` columns, so its indentation is only counted here.
    broken = textwrap.wrap(
        line,
        width,
        initial_indent=" " * indent,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return [broken[0][indent:], *broken[1:]]


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the width in columns of the terminal behind a stream (default stdout); None for a pipe or a file.

    The width is at least _MIN_WIDTH.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    # shutil asks for the size of stdout's terminal. If stdout is a pipe, this stream's terminal counts.
    size = os.terminal_size((80, 24))
    with suppress(OSError, ValueError):
        size = os.get_terminal_size(stream.fileno())
    return max(_MIN_WIDTH, shutil.get_terminal_size(size).columns)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))  # noqa: T201


def tell(record: object, *lines: str | None, as_json: bool) -> None:
    """Print what a command did or found: the record if `--json` was given, else the lines that are not empty."""
    if as_json:
        print_json(record)
    else:
        print(*filter(None, lines), sep="\n")  # noqa: T201


def complain(message: str) -> None:
    """Print an error on stderr, as all commands do."""
    print(_wrapped(f"error: {message}", terminal_width(sys.stderr)), file=sys.stderr)  # noqa: T201
