"""Frames: what goes in comes out, and whatever else comes is a ProtocolError."""

from __future__ import annotations

import io

import msgspec
import pytest

from edgeagent.types import GenerateRequest, TextDelta, TextPrompt, TokenLogprob
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    Cancel,
    ProtocolError,
    StepItem,
    Steps,
    Submit,
    decode_from_worker,
    decode_to_worker,
    encode,
    frame_length,
    read_to_worker,
)

STEPS = Steps(1.5, (StepItem("a", (TextDelta("x", (TokenLogprob(1, b"\xff", -0.5),)),), (1,)),))


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
