"""The messages between a worker and the process that renders its chat template, over a pair of pipes.

Each Open and each Render has a number and is answered by one frame with that number. A process may be ended at any
moment, in the middle of a frame too, and the next one reads from the same pipe. So each frame begins with random bytes
that no template can know, and ends with zeros: a broken frame is skipped. Each question states how many processes its
writer knows to have ended: a later process answers NotOpen.
"""

from __future__ import annotations

import os
import select
import struct

import msgspec
from msgspec import Struct

from edgeagent.text.template.rendered import Rendered
from edgeagent.text.tool_format import ToolFormat
from edgeagent.types import ChatPrompt

MARK_BYTES = 16
_CLOSE = bytes(MARK_BYTES)
_length = struct.Struct("<I")
_HEAD_BYTES = MARK_BYTES + _length.size
_READ_BYTES = 1 << 20


class Open(Struct, frozen=True, tag="open"):
    """Compile a template and find out what it can; see text.template.chat_template.ChatTemplate."""

    number: int
    source: str | None
    bos_text: str
    eos_text: str
    architecture: str
    control_texts: tuple[str, ...]
    marker_texts: tuple[str, ...]
    num_ended: int = 0


class Render(Struct, frozen=True, tag="render"):
    """Render a conversation with the template that is open, in `cpu_s` of CPU time at most."""

    number: int
    prompt: ChatPrompt
    num_ended: int
    cpu_s: float


class Opened(Struct, frozen=True, tag="opened"):
    """What the template can."""

    number: int
    supports_tools: bool
    supports_reasoning: bool
    tool_format: ToolFormat


class Done(Struct, frozen=True, tag="done"):
    """A rendered conversation, and the CPU time that it took."""

    number: int
    rendered: Rendered
    cpu_s: float


class NotOpen(Struct, frozen=True, tag="not_open"):
    """No template is open, because the process that had opened it has ended."""

    number: int


class RenderFailed(Struct, frozen=True, tag="refused"):
    """An error, and the CPU time until then; `code` is an EdgeAgentError code."""

    number: int
    code: str
    message: str
    param: str | None
    cpu_s: float


class Ended(Struct, frozen=True, tag="ended"):
    """The process has ended and another one continues. `number` is the message that it was busy with, 0 if none.

    `signal` is 0 if it failed by itself.
    """

    number: int
    signal: int


ToRenderer = Open | Render
FromRenderer = Opened | Done | NotOpen | RenderFailed | Ended

_encoder = msgspec.msgpack.Encoder()
_to_renderer: msgspec.msgpack.Decoder[ToRenderer] = msgspec.msgpack.Decoder(ToRenderer)
_from_renderer: msgspec.msgpack.Decoder[FromRenderer] = msgspec.msgpack.Decoder(FromRenderer)


def encode(message: ToRenderer | FromRenderer) -> bytes:
    """Return a message without its marks; raise UnicodeEncodeError for text that is not valid Unicode."""
    body = _encoder.encode(message)
    return _length.pack(len(body)) + body


def new_mark() -> bytes:
    """Return a mark for the frames of one pair of pipes; it begins with none of the bytes that a frame ends with."""
    return b"\xc1" + os.urandom(MARK_BYTES - 1)


def framed(encoded: bytes, mark: bytes) -> bytes:
    """Return the frame of an encoded message."""
    return mark + encoded + _CLOSE


def send(descriptor: int, mark: bytes, encoded: bytes) -> None:
    """Write a frame whole; raise OSError if the pipe has no reader any more."""
    left = memoryview(framed(encoded, mark))
    while left:
        left = left[os.write(descriptor, left) :]


class Frames:
    """Reads whole frames from a pipe; broken ones are skipped."""

    def __init__(self, descriptor: int, mark: bytes) -> None:
        self._descriptor = descriptor
        self._mark = mark
        self._buffer = bytearray()
        self._num_searched = MARK_BYTES

    def receive(self) -> bytes | None:
        """Block for the next frame's body; None at the end of the pipe."""
        while (body := self._next()) is None:
            part = os.read(self._descriptor, _READ_BYTES)
            if not part:
                return None
            self._buffer += part
        return body

    def receive_now(self) -> bytes | None:
        """Return the next frame's body if a whole one has arrived; None otherwise, also at the end of the pipe."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while (body := self._next()) is None and poll.poll(0):
            part = os.read(self._descriptor, _READ_BYTES)
            if not part:
                break
            self._buffer += part
        return body

    def _next(self) -> bytes | None:
        """Return the body of a frame that has arrived whole."""
        buffer = self._buffer
        while self._find_frame():
            (num_bytes,) = _length.unpack_from(buffer, MARK_BYTES)
            end = _HEAD_BYTES + num_bytes
            # If another frame begins before the end of this one, the writer of this one was ended while it wrote.
            cut = buffer.find(self._mark, self._num_searched, end + MARK_BYTES - 1)
            if cut >= 0:
                self._drop(cut)
            elif len(buffer) >= end + MARK_BYTES:
                body, close = bytes(buffer[_HEAD_BYTES:end]), buffer[end : end + MARK_BYTES]
                if close == _CLOSE:
                    self._drop(end + MARK_BYTES)
                    return body
                self._drop(MARK_BYTES)
            else:
                self._num_searched = max(MARK_BYTES, len(buffer) - MARK_BYTES + 1)
                return None
        return None

    def _find_frame(self) -> bool:
        """Drop what is before the first mark; return whether a frame's head is there."""
        start = self._buffer.find(self._mark)
        if start:
            self._drop(start if start > 0 else max(0, len(self._buffer) - MARK_BYTES + 1))
        return start >= 0 and len(self._buffer) >= _HEAD_BYTES

    def _drop(self, num_bytes: int) -> None:
        del self._buffer[:num_bytes]
        self._num_searched = MARK_BYTES


def decode_to_renderer(body: bytes) -> ToRenderer:
    """Return the message of a body; raise msgspec.MsgspecError."""
    return _to_renderer.decode(body)


def decode_from_renderer(body: bytes) -> FromRenderer:
    """Return the message of a body; raise msgspec.MsgspecError."""
    return _from_renderer.decode(body)
