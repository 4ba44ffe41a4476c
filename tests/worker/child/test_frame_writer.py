"""Frames on the pipe: complete, in order, and never waited for by the main thread."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from queue import SimpleQueue
from typing import BinaryIO

import pytest

from edgeagent.types import TextDelta
from edgeagent.worker.child.frame_writer import FrameWriter, wait_until_written
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    FromWorker,
    StepItem,
    StepResult,
    decode_from_worker,
    frame_length,
)
from tests.patience import patient


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


def test_frames_come_in_order_also_those_that_the_writer_makes(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    def two() -> Iterator[FromWorker]:
        assert threading.current_thread() is writer
        yield steps(2)
        yield steps(3, "x" * 10_000)

    reader, writer = pipe
    for item in (steps(1), two, steps(4)):
        writer.frames.put(item)
    writer.start()
    assert [read(reader) for _ in range(4)] == [steps(1), steps(2), steps(3, "x" * 10_000), steps(4)]
    writer.frames.put(None)
    writer.join()


def test_the_writer_holds_nothing_of_what_it_has_written(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    """Embeddings of a cancelled request are encoded as long as anything refers to them."""

    class Made:
        def __call__(self) -> Iterator[FromWorker]:
            yield steps(1)

    reader, writer = pipe
    is_free, made = threading.Event(), Made()
    weakref.finalize(made, is_free.set)
    writer.start()
    writer.frames.put(made)
    del made
    assert read(reader) == steps(1)
    assert is_free.wait(patient(10))
    writer.frames.put(None)
    writer.join()


def test_a_frame_that_must_be_there_is_there(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    writer.frames.put(steps(1))
    writer.start()
    writer.write_now(steps(2))
    os.set_blocking(reader.fileno(), False)
    assert [read(reader), read(reader)] == [steps(1), steps(2)]
    writer.frames.put(None)
    writer.join()


def test_a_reader_that_does_not_read_holds_nothing_up(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    writer.start()
    count = 2000
    for number in range(count):
        writer.frames.put(steps(number, "x" * 1000))
    assert not writer.frames.empty()
    assert [read(reader) for _ in range(count)] == [steps(number, "x" * 1000) for number in range(count)]
    writer.frames.put(None)
    writer.join()


def test_what_was_awaited_is_on_the_pipe(pipe: tuple[BinaryIO, FrameWriter]) -> None:
    reader, writer = pipe
    writer.frames.put(steps(1))
    wait_until_written(writer.frames, 0.0)  # nobody writes yet, and the wait ends
    writer.start()
    wait_until_written(writer.frames, patient(10.0))
    os.set_blocking(reader.fileno(), False)
    assert read(reader) == steps(1)
    writer.frames.put(None)
    writer.join()


def test_a_wait_ends_although_nobody_writes_and_its_time_is_over_at_once() -> None:
    for _ in range(200):
        wait_until_written(SimpleQueue(), 1e-7)
