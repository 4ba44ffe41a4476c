"""Reads one string out of a JSON object while the object's text is still arriving."""

from __future__ import annotations

import json
import re

# A whole escape, or characters that need none. After an escaped high surrogate, the next escape is needed too.
_HEX4 = "[0-9a-fA-F]{4}"
_WHOLE = re.compile(
    rf'\\u[dD][89abAB][0-9a-fA-F]{{2}}(?:\\u{_HEX4}|(?=[^\\]|\\[^u]))|\\u(?![dD][89abAB]){_HEX4}|\\[^u]|[^"\\]+'
)


class StringReader:
    """The string of one field of a JSON object, whose text comes in pieces. The field must be the object's first."""

    def __init__(self, field: str) -> None:
        self._opening = re.compile(rf'\s*\{{\s*"{re.escape(field)}"\s*:\s*"')
        self._unread = ""
        self._is_open = False

    def read(self, piece: str) -> str:
        """Return the characters of the string that a further piece of the object's text completes."""
        self._unread += piece
        if not self._is_open:
            opening = self._opening.match(self._unread)
            if opening is None:
                return ""
            self._is_open, self._unread = True, self._unread[opening.end() :]
        end = 0
        while whole := _WHOLE.match(self._unread, end):
            end = whole.end()
        text, self._unread = self._unread[:end], self._unread[end:]
        # A surrogate without its other half cannot be sent.
        return str(json.loads(f'"{text}"', strict=False)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
