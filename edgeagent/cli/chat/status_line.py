"""A line on stderr that says what a command is waiting for.

Later output overwrites the line. It is shown only on a terminal.
"""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self


class StatusLine:
    """Shows one text at a time. At the end of the context, the line is cleared."""

    def __init__(self) -> None:
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.show("")

    @property
    def is_visible(self) -> bool:
        """Whether stderr is a terminal, so that the line can be shown."""
        return sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show a text in place of the one before. An empty text leaves the cursor at the start of an empty line."""
        if not self.is_visible:
            return
        # A line that wraps could not be overwritten.
        width = shutil.get_terminal_size().columns - 1
        text = text[: width - len("^C")]
        if text != self._shown:
            # Clear the whole line, since the terminal may have written ^C after the text.
            line = f"{text:<{len(self._shown)}}" if text else f"{'':{width}}\r"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)  # noqa: T201
            self._shown = text
