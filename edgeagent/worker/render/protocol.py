"""The messages between a worker and the renderer, the process that does untrusted work for it.

The work is the model's chat template, and the first compilation of clients' grammars. The daemon carries the messages
as RenderJob and RenderAnswer (see worker.protocol), without reading them.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from edgeagent.text.template.rendered import Pieces
from edgeagent.text.tool_format import ReasoningMarkers, ToolFormat
from edgeagent.types import ChatPrompt


class Open(Struct, frozen=True, tag="open"):
    """Compile a template and find out what it supports; see text.template.chat_template.ChatTemplate."""

    source: str | None
    bos_text: str
    eos_text: str
    architecture: str
    control_texts: tuple[str, ...]
    marker_texts: tuple[str, ...]


class Render(Struct, frozen=True, tag="render"):
    """Render a conversation with the open template."""

    prompt: ChatPrompt


class Check(Struct, frozen=True, tag="check"):
    """Compile a grammar for the first time."""

    grammar: str


class Opened(Struct, frozen=True, tag="opened"):
    """The template is open; the fields say what it supports."""

    supports_tools: bool
    supports_reasoning: bool
    tool_format: ToolFormat


class NotOpen(Struct, frozen=True, tag="not_open"):
    """The Render was not carried out: an earlier process has ended, and its open template is lost. Send Open again."""


class Done(Struct, frozen=True, tag="done"):
    """A rendered conversation; see text.template.rendered.Rendered."""

    pieces: Pieces
    open_reasoning: ReasoningMarkers | None
    media_marks: str = ""


class Checked(Struct, frozen=True, tag="checked"):
    """The grammar was compiled. `fault`: why it was refused; empty if it was not."""

    fault: str


class Refused(Struct, frozen=True, tag="refused"):
    """The job failed; `code` is an EdgeAgentError code."""

    code: str
    message: str
    param: str | None


class Answer(Struct, frozen=True):
    """The outcome of a job, and the CPU time in seconds that it took."""

    outcome: Opened | NotOpen | Done | Checked | Refused
    cpu_s: float


Job = Open | Render | Check

_encoder = msgspec.msgpack.Encoder()
_jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Job | Answer) -> bytes:
    """Return a message's bytes; raise UnicodeEncodeError for text that is not valid Unicode."""
    return _encoder.encode(message)


def decode_job(body: bytes) -> Job:
    """Return the job in a frame's body; raise msgspec.MsgspecError if it is invalid."""
    return _jobs.decode(body)


def decode_answer(body: bytes) -> Answer:
    """Return the answer in a frame's body; raise msgspec.MsgspecError if it is invalid."""
    return _answers.decode(body)
