"""The messages between a worker and the process that does untrusted work for it, over a pair of pipes.

The work is the model's chat template, and the first compilation of clients' grammars. Each message has a number and is
answered by one frame with that number, unless the process ends first. A process may be ended at any moment, even in the
middle of a frame, and the next one uses the same pipe. So each frame begins with random bytes that no template can
know, and ends with zeros; a broken frame is skipped.

Each message also has `num_ended`: how many processes have ended, as far as the worker knows. If more have
ended, the process answers NotOpen.
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
    """Compile a template and find out what it supports; see text.template.chat_template.ChatTemplate."""

    number: int
    source: str | None
    bos_text: str
    eos_text: str
    architecture: str
    control_texts: tuple[str, ...]
    marker_texts: tuple[str, ...]
    num_ended: int = 0


class Render(Struct, frozen=True, tag="render"):
    """Render a conversation with the open template, using at most `cpu_s` seconds of CPU time."""

    number: int
    prompt: ChatPrompt
    num_ended: int
    cpu_s: float


class Check(Struct, frozen=True, tag="check"):
    """Compile a grammar for the first time, using at most `cpu_s` seconds of CPU time."""

    number: int
    grammar: str
    num_ended: int
    cpu_s: float


class Checked(Struct, frozen=True, tag="checked"):
    """The grammar was compiled in `cpu_s` seconds of CPU time. `fault`: why it was refused; empty if it was not."""

    number: int
    fault: str
    cpu_s: float


class Opened(Struct, frozen=True, tag="opened"):
    """The template is open; the fields say what it supports."""

    number: int
    supports_tools: bool
    supports_reasoning: bool
    tool_format: ToolFormat


class Done(Struct, frozen=True, tag="done"):
    """A rendered conversation, and the CPU time in seconds that it took."""

    number: int
    rendered: Rendered
    cpu_s: float


class NotOpen(Struct, frozen=True, tag="not_open"):
    """The message was not carried out: an earlier process has ended, and its open template is lost. Send Open again."""

    number: int


class RenderFailed(Struct, frozen=True, tag="refused"):
    """The Open or Render failed after `cpu_s` seconds of CPU time. `code` is an EdgeAgentError code."""

    number: int
    code: str
    message: str
    param: str | None
    cpu_s: float


class Ended(Struct, frozen=True, tag="ended"):
    """The process has ended, and a new one starts. `number` is that of the unfinished message; 0 if there was none.

    `signal` is the signal that ended it; 0 if it exited by itself.
    """

    number: int
    signal: int


ToRenderer = Open | Render | Check
FromRenderer = Opened | Done | Checked | NotOpen | RenderFailed | Ended

_encoder = msgspec.msgpack.Encoder()
_to_renderer: msgspec.msgpack.Decoder[ToRenderer] = msgspec.msgpack.Decoder(ToRenderer)
_from_renderer: msgspec.msgpack.Decoder[FromRenderer] = msgspec.msgpack.Decoder(FromRenderer)


def encode(message: ToRenderer | FromRenderer) -> bytes:
    """Return a message's bytes with their length before them, but without marks (see `framed`).

    Raise UnicodeEncodeError for text that is not valid Unicode.
    """
    body = _encoder.encode(message)
    return _length.pack(len(body)) + body


def new_mark() -> bytes:
    """Return a random mark for the frames between a worker and its renderers.

    Its first byte is not zero, so that no mark seems to begin within the zeros at the end of a frame.
    """
    return b"\xc1" + os.urandom(MARK_BYTES - 1)


def framed(encoded: bytes, mark: bytes) -> bytes:
    """Return the frame of an encoded message: the mark, the message, and zeros."""
    return mark + encoded + _CLOSE


def send(descriptor: int, mark: bytes, encoded: bytes) -> None:
    """Write a whole frame; raise OSError if the pipe no longer has a reader."""
    left = memoryview(framed(encoded, mark))
    while left:
        left = left[os.write(descriptor, left) :]


class Frames:
    """Reads whole frames from a pipe, and skips broken ones."""

    def __init__(self, descriptor: int, mark: bytes) -> None:
        self._descriptor = descriptor
        self._mark = mark
        self._buffer = bytearray()
        self._num_searched = MARK_BYTES

    def receive(self) -> bytes | None:
        """Block until the next frame arrives and return its body; None at the end of the pipe."""
        while (body := self._next()) is None:
            part = os.read(self._descriptor, _READ_BYTES)
            if not part:
                return None
            self._buffer += part
        return body

    def receive_now(self) -> bytes | None:
        """Return the next frame's body if it has arrived completely; None otherwise, and at the end of the pipe."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while (body := self._next()) is None and poll.poll(0):
            part = os.read(self._descriptor, _READ_BYTES)
            if not part:
                break
            self._buffer += part
        return body

    def _next(self) -> bytes | None:
        """Return the body of the first complete frame in the buffer; None if there is none."""
        buffer = self._buffer
        while self._find_frame():
            (num_bytes,) = _length.unpack_from(buffer, MARK_BYTES)
            end = _HEAD_BYTES + num_bytes
            # If another frame begins before the end of this one, this one's writer was ended while writing it.
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
        """Drop all bytes before the first mark. Return whether the buffer then begins with a whole frame head."""
        start = self._buffer.find(self._mark)
        if start:
            self._drop(start if start > 0 else max(0, len(self._buffer) - MARK_BYTES + 1))
        return start >= 0 and len(self._buffer) >= _HEAD_BYTES

    def _drop(self, num_bytes: int) -> None:
        del self._buffer[:num_bytes]
        self._num_searched = MARK_BYTES


def decode_to_renderer(body: bytes) -> ToRenderer:
    """Return the message in a frame body; raise msgspec.MsgspecError if it is invalid."""
    return _to_renderer.decode(body)


def decode_from_renderer(body: bytes) -> FromRenderer:
    """Return the message in a frame body; raise msgspec.MsgspecError if it is invalid."""
    return _from_renderer.decode(body)
