"""Splits generated text into three channels incrementally: content, reasoning and tool calls.

It parses markers and the syntax of calls. It does not use tokens, stop strings or templates. A call becomes content if
it is invalid, or if it names a tool that the request does not have. Only a call that is cut off before its name is
dropped.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from edgeagent.text.output.calls import MalformedError, Reader, read_calls
from edgeagent.text.tool_format import ReasoningMarkers, ToolFormat, call_opener
from edgeagent.types import ReasoningDelta, ToolCallDelta, ToolCallStarted

_BASE62 = string.digits + string.ascii_letters


@dataclass(frozen=True, slots=True)
class Content:
    """A part of the answer's text. `start` is its offset in the generated text, in characters."""

    text: str
    start: int


Part = Content | ReasoningDelta | ToolCallStarted | ToolCallDelta


def new_call_id() -> str:
    """Return an id that cannot be guessed: call_ and 24 letters and digits."""
    return "call_" + "".join(secrets.choice(_BASE62) for _ in range(24))


class ChannelParser:
    """Splits the text of one response into channels.

    The parameters of the constructor: calls are parsed only if `tool_format` is given, and only tools in `tool_names`
    can be called. Reasoning is the text between a pair of `reasoning` markers, before any content. `open_reasoning` is
    a pair whose opening marker ends the prompt. White space next to a marker belongs to the marker.
    """

    def __init__(
        self,
        *,
        tool_format: ToolFormat | None = None,
        tool_names: Collection[str] = (),
        reasoning: Sequence[ReasoningMarkers] = (),
        open_reasoning: ReasoningMarkers | None = None,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tool_format = tool_format if tool_names else None
        self._opener = call_opener(tool_format) if tool_format and tool_names else None
        self._reasoning = tuple(reasoning)
        self._in_reasoning = open_reasoning
        self._is_plain = self._tool_format is None and not reasoning and open_reasoning is None
        self._has_content = False
        self._has_reasoning = False
        self._call: _Region | None = None
        self._buffer = ""
        self._position = 0
        self._parts: list[Part] = []
        self._sink = _Sink(self._parts, frozenset(tool_names), new_call_id)

    @property
    def in_reasoning(self) -> bool:
        return self._in_reasoning is not None

    @property
    def num_calls(self) -> int:
        return self._sink.num_calls

    @property
    def num_held(self) -> int:
        """How many characters at the end of the text have not been assigned to a channel and may become content."""
        if self._call is None:
            return len(self._buffer)
        is_begun = self.num_calls > self._call.num_calls_before
        return len(self._call.unread) + (0 if is_begun else len(self._call.opening))

    def feed(self, text: str) -> tuple[Part, ...]:
        """Take more generated text. Return the content, reasoning and call parts that are complete now."""
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._take_parts()

    def finish(self) -> tuple[Part, ...]:
        """End the input and return the parts that were held back. A call whose name is known may stay incomplete."""
        while self._call is not None:
            call = self._call
            if self._sink.is_open or (self.num_calls > call.num_calls_before and "{" not in call.unread):
                self._call = None
                return self._take_parts()
            self._reject_call(call)
            while self._buffer and self._advance():
                pass
        rest = self._buffer
        if self._in_reasoning is not None:
            self._add_reasoning(rest.rstrip())
        elif not (rest.isspace() and (self.num_calls or not self._has_content)):
            self._add_content(len(rest))
        self._buffer = ""
        return self._take_parts()

    def drop_opening(self) -> None:
        """Drop a call that has its marker but no name yet, because a client cannot run it."""
        call = self._call
        if call is not None and call.opening.strip() and not self._sink.is_open:
            self._call, self._buffer = None, ""

    def _take_parts(self) -> tuple[Part, ...]:
        self._sink.flush()
        parts = tuple(self._parts)
        self._parts.clear()
        return parts

    def _advance(self) -> bool:
        """Consume text from the buffer. Return whether it is to be called again for the rest."""
        if self._call is not None:
            return self._advance_call(self._call)
        if self._in_reasoning is not None:
            return self._advance_reasoning(self._in_reasoning)
        return self._advance_content()

    def _advance_content(self) -> bool:
        if self._is_plain:
            self._add_content(len(self._buffer))
            return False
        if not self._has_content:
            body = self._buffer.lstrip()
            for pair in self._reasoning:
                if body.startswith(pair.open):
                    self._consume(len(self._buffer) - len(body) + len(pair.open))
                    self._in_reasoning = pair
                    return True
            if self._tool_format is ToolFormat.LLAMA and body.startswith("{"):
                self._begin_call(len(self._buffer) - len(body), 0)
                return True
        if self._opener is not None and (start := self._buffer.find(self._opener)) >= 0:
            self._begin_call(start, len(self._opener))
            return True
        self._add_content(self._num_safe())
        return False

    def _num_safe(self) -> int:
        """Return the number of characters at the buffer's beginning that are certainly content."""
        markers = [] if self._opener is None else [self._opener]
        if not self._has_content:
            markers += [pair.open for pair in self._reasoning if pair.open.startswith(self._buffer.lstrip())]
        cut = min((_partial_start(self._buffer, marker) for marker in markers), default=len(self._buffer))
        if self._opener is not None or not self._has_content:
            cut = len(self._buffer[:cut].rstrip())
        return cut

    def _add_content(self, length: int) -> None:
        text = self._buffer[:length]
        if not self._has_content and not self._is_plain:
            text = text.lstrip()
        if text:
            self._has_content = True
            self._parts.append(Content(text, self._position + length - len(text)))
        self._consume(length)

    def _consume(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        self._position += length
        return text

    def _advance_reasoning(self, pair: ReasoningMarkers) -> bool:
        end = self._buffer.find(pair.close)
        if end >= 0:
            self._add_reasoning(self._buffer[:end].rstrip())
            self._consume(end + len(pair.close))
            self._in_reasoning = None
            return True
        safe = len(self._buffer[: _partial_start(self._buffer, pair.close)].rstrip())
        self._add_reasoning(self._buffer[:safe])
        self._consume(safe)
        return False

    def _add_reasoning(self, text: str) -> None:
        if not self._has_reasoning:
            text = text.lstrip()
        if text:
            self._has_reasoning = True
            self._parts.append(ReasoningDelta(text))

    def _begin_call(self, start: int, marker_length: int) -> None:
        assert self._tool_format is not None
        content_end = len(self._buffer[:start].rstrip())
        self._add_content(content_end)
        opening = self._consume(start - content_end + marker_length)
        reader = read_calls(self._tool_format, self._sink)
        next(reader)
        self._call = _Region(reader, opening, num_calls_before=self.num_calls)

    def _advance_call(self, call: _Region) -> bool:
        for index, char in enumerate(self._buffer):
            call.unread.append(char)
            try:
                call.reader.send(char)
            except StopIteration as stop:
                self._consume(index + 1)
                self._put_back(stop.value)
                self._call = None
                return True
            except MalformedError:
                self._consume(index + 1)
                self._reject_call(call)
                return True
            if self._sink.has_progress:
                call.unread.clear()
                self._sink.has_progress = False
        self._consume(len(self._buffer))
        return False

    def _reject_call(self, call: _Region) -> None:
        """Treat an invalid call as text, and parse the unread part of its region again.

        If the region has given the client no call yet, its opening marker becomes content.
        """
        self._call = None
        self._put_back("".join(call.unread))
        if self.num_calls == call.num_calls_before:
            self._put_back(call.opening)
            # Without a marker, one character becomes content. Otherwise the same text would be tried again endlessly.
            self._add_content(len(call.opening) if call.opening.strip() else len(call.opening) + 1)

    def _put_back(self, text: str) -> None:
        self._buffer = text + self._buffer
        self._position -= len(text)


@dataclass(slots=True)
class _Region:
    """A region of the text with one or more calls, which are being read.

    `opening` is its marker with the white space before it. `unread` is the text since the reader last reported a name,
    arguments or an end. If the call turns out to be invalid, this text is parsed again.
    """

    reader: Reader
    opening: str
    num_calls_before: int
    unread: list[str] = field(default_factory=list)


class _Sink:
    """Turns what a reader of tool calls reports (a name, arguments, an end) into parts of the output."""

    def __init__(self, parts: list[Part], tool_names: frozenset[str], new_call_id: Callable[[], str]) -> None:
        self._parts = parts
        self._tool_names = tool_names
        self._new_call_id = new_call_id
        self._pending: list[str] = []
        self.num_calls = 0
        self.is_open = False
        self.has_progress = False

    def begin(self, name: str) -> None:
        if name not in self._tool_names:
            raise MalformedError
        self._parts.append(ToolCallStarted(self.num_calls, self._new_call_id(), name))
        self.num_calls += 1
        self.is_open = self.has_progress = True

    def arguments(self, text: str) -> None:
        self._pending.append(text)
        self.has_progress = True

    def end(self) -> None:
        self.flush()
        self.is_open = False
        self.has_progress = True

    def flush(self) -> None:
        """Add the arguments received since the last flush as one part."""
        if self._pending:
            self._parts.append(ToolCallDelta(self.num_calls - 1, "".join(self._pending)))
            self._pending.clear()


def _partial_start(text: str, marker: str) -> int:
    """Return where an incomplete `marker` at the end of `text` starts; len(text) if there is none."""
    start = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while start >= 0:
        if marker.startswith(text[start:]):
            return start
        start = text.find(marker[0], start + 1)
    return len(text)
