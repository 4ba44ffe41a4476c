"""Frames: decoding returns what was encoded, and any other input is a ProtocolError."""

from __future__ import annotations

import io

import msgspec
import pytest

from edgeagent.config import EngineConfig
from edgeagent.errors import InvalidRequest
from edgeagent.types import GenerateRequest, TextDelta, TextPrompt, TokenLogprob
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    MAX_FRAME_FROM_WORKER_BYTES,
    MAX_FRAME_TO_WORKER_BYTES,
    Cancel,
    Delivered,
    Load,
    ProtocolError,
    StepItem,
    StepResult,
    Stop,
    Submit,
    decode_from_worker,
    decode_to_worker,
    encode,
    failed_message,
    frame_length,
    read_to_worker,
)

STEPS = StepResult(1.5, (StepItem("a", (TextDelta("x", (TokenLogprob(1, b"\xff", -0.5),)),), (1,)),))


def test_messages_survive_their_frames() -> None:
    submit = Submit(GenerateRequest(id="a", model="", prompt=TextPrompt("é", suffix="b")), 1.0)
    assert decode_to_worker(encode(submit)[LENGTH_BYTES:]) == submit
    assert decode_from_worker(encode(STEPS)[LENGTH_BYTES:]) == STEPS


def test_a_stream_is_read_frame_by_frame_to_its_end() -> None:
    frames = encode(Cancel("a")) + encode(Cancel("b"))
    stream = io.BytesIO(frames + encode(Cancel("cut off"))[:-1])
    assert [read_to_worker(stream) for _ in range(3)] == [Cancel("a"), Cancel("b"), None]
    assert read_to_worker(io.BytesIO(b"\1\0")) is None


def test_a_length_over_the_limit_is_refused_before_the_body_is_read() -> None:
    assert frame_length(b"\x10\0\0\0", 16) == 16
    with pytest.raises(ProtocolError, match="17 bytes is over the limit of 16"):
        frame_length(b"\x11\0\0\0", 16)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "unknown"}),
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "id": 5}),
    ],
    ids=["empty", "no msgpack", "unknown message", "field missing", "wrong type"],
)
def test_a_body_that_is_no_message_is_an_error(body: bytes) -> None:
    for decode in (decode_to_worker, decode_from_worker):
        with pytest.raises(ProtocolError):
            decode(body)


def test_a_worker_cannot_nest_without_end() -> None:
    rival = msgspec.msgpack.encode({"token": 1, "piece": b"", "logprob": 0.0, "top": [None]})
    body = encode(STEPS)[LENGTH_BYTES:]
    logprob = msgspec.msgpack.encode(TokenLogprob(1, b"\xff", -0.5))
    assert body.count(logprob) == 1
    with pytest.raises(ProtocolError):
        decode_from_worker(body.replace(logprob, rival[:-1] * 20_000 + logprob))


def test_the_limits_are_what_they_are_said_to_be() -> None:
    assert (MAX_FRAME_FROM_WORKER_BYTES, MAX_FRAME_TO_WORKER_BYTES, LENGTH_BYTES) == (1 << 20, 32 << 20, 4)
    assert int.from_bytes(encode(STEPS)[:LENGTH_BYTES], "little") == len(encode(STEPS)) - LENGTH_BYTES


def test_a_frame_to_the_worker_has_its_limit() -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert size == LENGTH_BYTES, "the body was asked for"
            return (MAX_FRAME_TO_WORKER_BYTES + 1).to_bytes(LENGTH_BYTES, "little")

    with pytest.raises(ProtocolError, match="over the limit"):
        read_to_worker(Endless())  # type: ignore[arg-type]


def test_an_empty_message_is_read_as_one() -> None:
    assert read_to_worker(io.BytesIO(encode(Stop()))) == Stop()
    header = (8).to_bytes(LENGTH_BYTES, "little")
    assert read_to_worker(io.BytesIO(header + b"1234567")) is None
    with pytest.raises(ProtocolError):
        read_to_worker(io.BytesIO(header + b"12345678"))


def test_an_error_s_text_fits_into_a_frame() -> None:
    end = failed_message("a", InvalidRequest("x" * 5000, param="tools"))
    assert (end.id, end.code, end.message, end.param) == ("a", InvalidRequest.code, "x" * 4096, "tools")
    assert failed_message("a", InvalidRequest("short")).message == "short"


def test_what_is_left_out_has_its_default() -> None:
    submit = decode_to_worker(
        msgspec.msgpack.encode(
            {"type": "submit", "request": {"id": "a", "model": "", "prompt": TextPrompt("b")}, "accepted_at_s": 1.0}
        )
    )
    assert isinstance(submit, Submit) and (submit.load_ms, submit.delivered) == (0.0, Delivered())
    item = StepItem("a", ())
    assert (item.tokens, item.is_part, item.held_logprobs) == ((), False, ())


def test_a_load_says_nothing_of_its_own() -> None:
    plain = Load("name", "/m.gguf", None, EngineConfig())
    assert plain == Load("name", "/m.gguf", None, EngineConfig(), "", (), None, (), 0, 0)
