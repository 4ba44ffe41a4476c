"""Frames on the pipe: complete, in order, and never waited for by the main thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from edgeagent.types import TextDelta, WorkerStatus
from edgeagent.worker.child.frame_writer import FrameWriter, Outlet
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    FromWorker,
    Pong,
    StepItem,
    StepResult,
    decode_from_worker,
    frame_length,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there it always goes through the thread")


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, FrameWriter]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb") as stream:
        yield reader, FrameWriter(stream)


def steps(number: int, text: str = "") -> StepResult:
    return StepResult(float(number), (StepItem("r", (TextDelta(text),), (number,)),))


def read(reader: BinaryIO) -> FromWorker:
    body = reader.read(frame_length(reader.read(LENGTH_BYTES), 1 << 24))
    return decode_from_worker(body)


@POSIX
def test_a_small_frame_is_there_at_once(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    Outlet(writer).put(steps(1))
    assert read(reader) == steps(1)
    assert writer.frames.empty()


def test_a_large_frame_goes_through_the_thread_and_those_behind_it_too(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    outlet.put(steps(1, "x" * 10_000))
    outlet.put(steps(2))
    assert writer.frames.qsize() == 2
    writer.start()
    assert [read(reader), read(reader)] == [steps(1, "x" * 10_000), steps(2)]
    writer.frames.put(None)
    writer.join()
    assert writer.num_written == 2


@POSIX
def test_a_reader_that_does_not_read_holds_nothing_up(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    writer.start()
    count = 2000
    for number in range(count):
        outlet.put(steps(number, "x" * 1000))
    assert not writer.frames.empty()
    assert [read(reader) for _ in range(count)] == [steps(number, "x" * 1000) for number in range(count)]
    # Once the backlog is written, it is as fast as before.
    writer.frames.put(None)
    writer.join()
    outlet.put(steps(7))
    assert writer.frames.empty()
    assert read(reader) == steps(7)


def test_two_who_write_do_not_mix(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    writer.start()
    count = 3000
    got: list[FromWorker] = []
    reading = threading.Thread(target=lambda: got.extend(read(reader) for _ in range(2 * count)))
    reading.start()
    for number in range(count):
        writer.frames.put(Pong(number, WorkerStatus()))
        outlet.put(steps(number, "x" * (number % 6000)))
    reading.join()
    assert [frame.at_s for frame in got if isinstance(frame, StepResult)] == list(range(count))
    assert [frame.nonce for frame in got if isinstance(frame, Pong)] == list(range(count))
    writer.frames.put(None)
    writer.join()
