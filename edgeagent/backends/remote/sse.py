"""Parses server-sent events from a byte stream that arrives in arbitrary pieces, without interpreting their data.

The format is WHATWG's: lines end with LF, CRLF or CR, an empty line ends an event, `data:` lines are joined by LF.
`id:` and `retry:` are ignored, since a stream of tokens cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from edgeagent.backends.remote.failures import Failure, Kind

MAX_EVENT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class Event(Struct, frozen=True):
    """One event. `name` is its type; "" if it has none."""

    name: str
    data: bytes


class EventReader:
    """Reads the events of one stream. A line, or the data of an event, may have at most `max_event_bytes`."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._num_data_bytes = 0
        self._is_at_start = True
        self._is_cr_last = False

    @property
    def has_half_an_event(self) -> bool:
        """Whether the bytes so far end in an unfinished line, or before the blank line after an event's data."""
        return bool(self._rest or self._data)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Take the next bytes, and yield the events that they complete. Raise a Failure if one is too long."""
        if self._is_cr_last and chunk:
            # A CRLF was split between two chunks. Its LF does not end another line.
            chunk = chunk.removeprefix(b"\n")
            self._is_cr_last = False
        self._rest += chunk
        if self._is_at_start:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
            self._is_at_start = False
            chunk = bytes(self._rest)
        # Search only the new bytes, since a long line may arrive byte by byte.
        if b"\n" in chunk or b"\r" in chunk:
            yield from self._events(self._split())
        if len(self._rest) > self._max_event_bytes:
            raise self._too_long()

    def _split(self) -> list[bytes]:
        text = bytes(self._rest)
        if b"\r" in text:
            self._is_cr_last = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = bytearray(rest)
        return lines

    def _events(self, lines: list[bytes]) -> Iterator[Event]:
        for line in lines:
            if line:
                self._take(line)
                continue
            if self._data:
                yield Event(self._name, b"\n".join(self._data))
                self._data.clear()
            self._name, self._num_data_bytes = "", 0

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._num_data_bytes += len(value)
            if self._num_data_bytes > self._max_event_bytes:
                raise self._too_long()
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", errors="replace")

    def _too_long(self) -> Failure:
        return Failure(Kind.GARBLED, f"it sent an event of more than {self._max_event_bytes} bytes")
