"""Reads what a user types. On a capable terminal, the user can edit, paste several lines and use a history.

A question of several lines is pasted, or typed between two lines of three quotes. On a dumb terminal, only the system's
own line editing works.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeagent.state_files import open_own

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT, CONTINUATION = ">>> ", "... "
QUOTES = '"""'
MAX_HISTORY_BYTES = 1 << 20


class LineReader(Protocol):
    """Reads questions, one at a time."""

    def read(self) -> str:
        """Read a question. Raise EOFError at the end of input, and KeyboardInterrupt for Ctrl-C on an empty line."""
        ...


def make_reader(history_file: Path | None) -> LineReader:
    """Return the best reader for the terminal.

    A TerminalReader keeps the typed lines in `history_file`, unless that is None. A PlainReader keeps none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        return PlainReader()
    try:
        return TerminalReader(history_file)
    except Exception:  # the library raises this for a console that it cannot draw on (Windows has several kinds)
        return PlainReader()


class PlainReader:
    """Reads lines with Python's `input`."""

    def __init__(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 gives input() editing

    def read(self) -> str:
        """Read a question, see LineReader.read. If readline is available, Ctrl-C drops a half-typed line."""
        while True:
            try:
                text = input(PROMPT)
                while is_open(text):
                    text += "\n" + input(CONTINUATION)
            except KeyboardInterrupt:
                if not _half_typed():
                    raise
                print()  # noqa: T201
            else:
                return unquoted(text)


class TerminalReader:
    """Reads lines with prompt_toolkit, from a terminal that it can draw on."""

    def __init__(self, history_file: Path | None) -> None:
        # Imported here, since it takes 60 ms and only a chat needs it.
        from prompt_toolkit import PromptSession

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,  # `_keys` handles Enter, so pasted lines stay together
            prompt_continuation=CONTINUATION,
            key_bindings=_keys(),
            history=_history(history_file),
            enable_open_in_editor=False,
        )

    def read(self) -> str:
        return unquoted(self._session.prompt())


def is_open(text: str) -> bool:
    """Whether a text begins with three quotes that are not closed yet."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """Return text without surrounding blanks, and without the three quotes around a question of several lines.

    Bytes that are not UTF-8 are replaced, see `replace_surrogates`.
    """
    text = replace_surrogates(text).strip()
    if text.startswith(QUOTES) and text.endswith(QUOTES) and len(text) >= 2 * len(QUOTES):
        text = text[len(QUOTES) : -len(QUOTES)].strip()
    return text


def replace_surrogates(text: str) -> str:
    """Return text with "?" for each byte that is not UTF-8. Python decodes such a byte as a lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def _keys() -> KeyBindings:
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()
    # A search in the history (Ctrl-R) has its own meaning of these keys, and ends with each of them.
    is_typing = ~is_searching

    @keys.add("enter", filter=is_typing)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-c", filter=is_typing)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    @keys.add("c-d", filter=is_typing)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            event.app.exit(exception=EOFError, style="class:exiting")

    return keys


def _history(file: Path | None) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class LenientHistory(FileHistory):
        """A history in a file. If the file can no longer be read or written, the chat continues without it."""

        def load_history_strings(self) -> Iterable[str]:
            try:
                return list(super().load_history_strings())
            except OSError:
                return []

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):
                super().store_string(replace_surrogates(string))

    # If the file cannot be written, the chat works, but the lines of this session are not kept.
    if file is None or not _is_ready(file):
        return InMemoryHistory()
    return LenientHistory(file)


def _is_ready(file: Path) -> bool:
    """Prepare the history file: create it if needed, and make it private to this user. Return whether it can be used.

    If the file is longer than MAX_HISTORY_BYTES, only its newest lines are kept.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_own(file)
        with os.fdopen(descriptor, "r+b") as stream:
            if os.name == "posix":
                os.fchmod(descriptor, 0o600)
            if stream.seek(0, os.SEEK_END) > MAX_HISTORY_BYTES:
                stream.seek(-MAX_HISTORY_BYTES // 2, os.SEEK_END)
                # An entry begins with an empty line and a comment.
                _, _, kept = stream.read().partition(b"\n\n#")
                stream.seek(0)
                stream.write(b"\n#" + kept)
                stream.truncate()
    except OSError:
        return False
    return True


def _half_typed() -> bool:
    """Whether text was typed on the line that Ctrl-C interrupted; False if that is unknown."""
    with contextlib.suppress(ImportError):
        import readline

        return bool(readline.get_line_buffer())
    return False
