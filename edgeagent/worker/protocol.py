"""The messages between the daemon and a worker, and their frames.

A frame is a 4-byte little-endian length and that many bytes of msgpack. It is not pickle, since a worker taken over by
a hostile model file must not take over the daemon. Messages to the worker go through its stdin, messages to the daemon
through its stdout.

- The first message to a worker is Load. It is answered by any number of LoadProgress, then Ready or LoadFailed.
- Every Submit is answered by StepResults for its id. The request ends with a Finished in the last StepResult, or with
  one Failed. No message for its id follows.
- Every Ask is answered by AnswerParts for its id, the last with `is_last`, or by one Failed. There may be no answer if
  the Ask is cancelled or the worker is stopped.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import IO, BinaryIO

import msgspec
from msgspec import Struct

from edgeagent.config import EngineConfig
from edgeagent.errors import EdgeAgentError
from edgeagent.types import (
    AnswerSoFar,
    Delta,
    FileShape,
    GenerateRequest,
    ModelInfo,
    QueryAnswer,
    TextQuery,
    TokenLogprob,
    WorkerStatus,
)
from edgeagent.types.choices import Profile

MAX_FRAME_FROM_WORKER_BYTES = 1 << 20
MAX_FRAME_TO_WORKER_BYTES = 32 << 20
_MAX_ERROR_CHARS = 4096

ENCLOSED = "--enclosed"
"""The argument with which the renderer's process enters the sandbox."""
MAX_RENDERER_BYTES = 256 << 20
"""The most memory that the renderer may take, in addition to what it has at its start."""


class DiskShare(Struct, frozen=True):
    """A model's share of the disk cache: how many bytes its blocks may take, and how many it may write in an hour.

    0 bytes an hour means no limit.
    """

    max_bytes: int
    max_bytes_per_hour: int


class DiskCache(Struct, frozen=True):
    """The folder of a model's cached blocks, its limits, and the secret that keys and seals the blocks.

    - `max_bytes`: the limit of the folder's size, until a Ping brings another share. `min_free_bytes`: how much of the
      disk must stay free.
    - `max_unused_s`: blocks that were unused for this many seconds are evicted.
    - `max_bytes_per_hour`: the limit of writes, until a Ping brings another share; 0 means no limit.
    - `close_s`: for how many seconds a stopping worker may still write queued blocks.
    """

    folder: str
    secret: bytes
    max_bytes: int
    min_free_bytes: int
    max_unused_s: float
    max_bytes_per_hour: int
    close_s: float


class Load(Struct, frozen=True, tag="load"):
    """Load a model. All paths are absolute.

    - `identity` changes if another file replaces the model's file or an adapter's.
    - `writable` are the folders that the sandbox lets the worker write to, in addition to the GPU drivers' caches.
    - `shapes` has the FileShape of the model, then that of its draft; empty if the model's header could not be read.
    - `room_bytes` is how much of the machine's memory the model may use; 0 means all that is free.
    - `num_tries` is the number of earlier loads that failed because memory ran out.
    - `profile` was saved by `edgeagent tune`.
    - `adapters` are the paths of the model's LoRA adapters by name.
    - `unusable_adapters` has the reasons why other adapters cannot be used, by name.
    - `draft_why` is the reason for this draft, or for none. `draft_by` is what decided this; see `SettingChoice.by`.
    - `why_no_drafts`: why the model must not take drafts of any kind; "" if it may.
    - `projector_path` is the file (mmproj) that turns images and sounds into embeddings. `why_no_projector`: a sentence
      for clients that says what is missing or what to do; "" if nothing is known. `projector_bytes`: its memory.
    """

    name: str
    path: str
    draft_path: str | None
    engine_config: EngineConfig
    identity: str = ""
    writable: tuple[str, ...] = ()
    disk: DiskCache | None = None
    shapes: tuple[FileShape, ...] = ()
    room_bytes: int = 0
    num_tries: int = 0
    profile: Profile | None = None
    adapters: dict[str, str] = {}
    unusable_adapters: dict[str, str] = {}
    draft_why: str = ""
    draft_by: str = "default"
    why_no_drafts: str = ""
    projector_path: str | None = None
    why_no_projector: str = ""
    projector_bytes: int = 0


class Delivered(Struct, frozen=True, array_like=True):
    """The output so far: first `so_far` from another machine, then `tokens` from earlier workers.

    `step_lengths` has the number of tokens that each step delivered. `held_logprobs` has the log probabilities of
    the last tokens, whose text was not sent yet.
    """

    tokens: tuple[int, ...] = ()
    step_lengths: tuple[int, ...] = ()
    held_logprobs: tuple[TokenLogprob, ...] = ()
    so_far: AnswerSoFar | None = None


NOTHING_DELIVERED = Delivered()


class Submit(Struct, frozen=True, tag="submit"):
    """Begin a request, or continue one that an earlier worker or another machine began.

    `accepted_at_s` is time.monotonic() when the daemon accepted the request. `load_ms` is how long the request waited
    for the model to load. The output continues after its `delivered` part, which is not sent again.
    """

    request: GenerateRequest
    accepted_at_s: float
    load_ms: float = 0.0
    delivered: Delivered = NOTHING_DELIVERED


class Cancel(Struct, frozen=True, tag="cancel"):
    """Cancel a request or an Ask; an unknown, finished or answered id is ignored.

    A live request is answered with Finished(cancelled), an Ask with nothing more.
    """

    id: str


class Ask(Struct, frozen=True, tag="ask"):
    """Send the model a query, such as a Tokenize or an Embed. Queries do not wait for requests."""

    id: str
    query: TextQuery


class Power(Struct, frozen=True):
    """The share of its CPU threads that a worker uses. `why`: in words, what holds it back; "" if nothing does."""

    thread_share: float = 1.0
    why: str = ""


FULL_POWER = Power()


class Ping(Struct, frozen=True, tag="ping"):
    """Ask for a Pong, and say what holds from now on. The worker's reader thread answers, even in the middle of a step.

    `disk` is the model's share of the disk cache; None if it does not change.
    """

    nonce: int
    disk: DiskShare | None = None
    power: Power = FULL_POWER


class RenderAnswer(Struct, frozen=True, tag="rendered"):
    """The renderer's answer to a RenderJob. `trouble`: what the job took, if the process ended during it; else ""."""

    number: int
    body: bytes = b""
    trouble: str = ""


class Stop(Struct, frozen=True, tag="stop"):
    """Cancel all live requests, save cached blocks to the disk cache, and exit."""


ToWorker = Load | Submit | Cancel | Ask | Ping | RenderAnswer | Stop


class LoadProgress(Struct, frozen=True, tag="progress"):
    """How much of the model is loaded, 0 to 1.

    `part` describes the part of a file that is tried next; "" if none is. If the process then crashes, that part is
    reported as the cause.
    """

    fraction: float
    part: str = ""


def adapter_part(path: str) -> str:
    """Return the `LoadProgress.part` of an adapter. If the process ends, the daemon knows which adapter it tried."""
    return f"the adapter {path}"


def draft_part(path: str) -> str:
    """Return the `LoadProgress.part` of a draft model. The worker sends it before it opens the draft's file."""
    return f"the draft {path}"


def projector_part(path: str) -> str:
    """Return the `LoadProgress.part` of a projector. The worker sends it before it opens the projector's file."""
    return f"the projector {path}"


def rewind_part(path: str) -> str:
    """Return the `LoadProgress.part` of the test that shows whether a model can remove refused drafts."""
    return f"removing refused drafts of {path}"


class Ready(Struct, frozen=True, tag="ready"):
    """The model is loaded and warm. `notes` and `warnings` are lines for the daemon's log."""

    info: ModelInfo
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class LoadFailed(Struct, frozen=True, tag="load_failed"):
    """The model cannot be loaded; the worker exits after this. `code` is an EdgeAgentError code.

    `can_take_less`: the load ran out of memory, and a load with a higher `num_tries` would use less.
    """

    code: str
    message: str
    can_take_less: bool = False


class StepItem(Struct, frozen=True, array_like=True):
    """One request's output in an engine step. A large output comes in several items; all but the last have `is_part`.

    Only the last item has `tokens`. `held_logprobs` has the log probabilities of the latest tokens, whose text is held
    back. If the worker dies, the next worker needs these log probabilities. `num_withheld`: see Step.
    """

    id: str
    deltas: tuple[Delta, ...]
    tokens: tuple[int, ...] = ()
    is_part: bool = False
    held_logprobs: tuple[TokenLogprob, ...] = ()
    num_withheld: int = 0


class StepResult(Struct, frozen=True, tag="steps"):
    """The outputs of one engine step, for all requests that it computed; see StepItem.

    A step with many deltas comes in several StepResults.

    `at_s`: when the step's tokens were sampled (time.monotonic).
    """

    at_s: float
    items: tuple[StepItem, ...]


class AnswerPart(Struct, frozen=True, tag="answer"):
    """A part of the answer to an Ask."""

    id: str
    part: QueryAnswer
    is_last: bool


class Failed(Struct, frozen=True, tag="failed"):
    """One request or Ask failed; `code` is an EdgeAgentError code."""

    id: str
    code: str
    message: str
    param: str | None = None


def failed_message(failed_id: str, error: EdgeAgentError) -> Failed:
    """Return the Failed for an error. The message is shortened, since it may quote a schema too long for a frame."""
    return Failed(failed_id, error.code, error.message[:_MAX_ERROR_CHARS], error.param)


class Pong(Struct, frozen=True, tag="pong"):
    """The answer to a Ping."""

    nonce: int
    status: WorkerStatus


class RenderJob(Struct, frozen=True, tag="render"):
    """A part of a job for the renderer, the process for untrusted work. It may use `cpu_s` seconds of CPU time.

    A job is answered by one RenderAnswer with its number. Number 0 only starts the process, and gets no answer.
    """

    number: int
    cpu_s: float
    part: bytes = b""
    is_last: bool = True


FromWorker = LoadProgress | Ready | LoadFailed | StepResult | AnswerPart | Failed | Pong | RenderJob

_encoder = msgspec.msgpack.Encoder()
_length = struct.Struct("<I")
LENGTH_BYTES = _length.size


# Each takes milliseconds to make, and a process needs one of them at most.
@cache
def _to_worker() -> msgspec.msgpack.Decoder[ToWorker]:
    return msgspec.msgpack.Decoder(ToWorker)


@cache
def _from_worker() -> msgspec.msgpack.Decoder[FromWorker]:
    return msgspec.msgpack.Decoder(FromWorker)


class ProtocolError(Exception):
    """A frame is too large or holds no known message, or a message is not allowed at this time."""


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return the frame of a message; raise UnicodeEncodeError or OverflowError if msgpack cannot encode a value."""
    buffer = bytearray(LENGTH_BYTES)
    _encoder.encode_into(message, buffer, LENGTH_BYTES)
    _length.pack_into(buffer, 0, len(buffer) - LENGTH_BYTES)
    return bytes(buffer)


def framed(body: bytes) -> bytes:
    return _length.pack(len(body)) + body


def frame_length(header: bytes, max_bytes: int) -> int:
    """Return the body length that a 4-byte header announces; raise ProtocolError if it is over `max_bytes`."""
    (length,) = _length.unpack(header)
    if length > max_bytes:
        raise ProtocolError(f"a frame of {length} bytes is over the limit of {max_bytes}")
    return int(length)


def decode_to_worker(body: bytes) -> ToWorker:
    """Return the message in a frame body; raise ProtocolError if it is invalid."""
    try:
        return _to_worker().decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_from_worker(body: bytes) -> FromWorker:
    """Return the message in a frame body; raise ProtocolError if it is invalid."""
    try:
        return _from_worker().decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError(str(error)) from error


def read_frame(stream: IO[bytes], max_bytes: int) -> bytes | None:
    """Wait for the next frame and return its body; None at the end of the stream.

    Raise ProtocolError if it is over `max_bytes`, or OSError if the stream cannot be read.
    """
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    length = frame_length(header, max_bytes)
    body = stream.read(length)
    return None if len(body) < length else body


def read_to_worker(stream: BinaryIO) -> ToWorker | None:
    """Wait for the next message to the worker and return it; None at the end of the stream.

    Raise ProtocolError for an invalid frame, or OSError if the stream cannot be read.
    """
    body = read_frame(stream, MAX_FRAME_TO_WORKER_BYTES)
    return None if body is None else decode_to_worker(body)
