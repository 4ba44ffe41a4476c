"""The worker process over its pipes, with a tiny model."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    MemoryKind,
    SamplingParams,
    Started,
    TokenPrompt,
)
from edgeagent.worker.child.process import _older, _own_bytes
from edgeagent.worker.parent.supervision.supervisor import WORKER_COMMAND
from edgeagent.worker.protocol import (
    FULL_POWER,
    MAX_FRAME_FROM_WORKER_BYTES,
    Cancel,
    DiskCache,
    DiskShare,
    FromWorker,
    Load,
    LoadFailed,
    LoadProgress,
    Ping,
    Pong,
    Power,
    Ready,
    RenderAnswer,
    RenderJob,
    StepResult,
    Stop,
    Submit,
    ToWorker,
    decode_from_worker,
    encode,
    read_frame,
)
from edgeagent.worker.render.process import carry_out
from edgeagent.worker.render.protocol import decode_job
from tests.conftest import TinyModel

Frame = TypeVar("Frame", bound=FromWorker)


class Child:
    """The real process with a tiny model."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [*WORKER_COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        # One step takes a prompt of 4,000 tokens, which is long enough for events in the middle of a step.
        config = EngineConfig(threads=1, ctx=4096, batch=4096)
        self._template: ChatTemplate | None = None
        self.load = Load("tiny", str(path), None, config)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def send(self, *messages: ToWorker) -> None:
        self.write(b"".join(encode(message) for message in messages))

    def ask(self, request_id: str, num_prompt: int, **fields: Any) -> None:
        tokens = tuple(10 + index % 200 for index in range(num_prompt))
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest(id=request_id, model="", prompt=TokenPrompt(tokens), sampling=sampling, **fields)
        self.send(Submit(request, time.monotonic()))

    def receive(self) -> FromWorker | None:
        """Return the next frame, but carry out jobs for the renderer; None at the end."""
        assert self._process.stdout is not None
        while body := read_frame(self._process.stdout, MAX_FRAME_FROM_WORKER_BYTES):
            frame = decode_from_worker(body)
            if not isinstance(frame, RenderJob):
                return frame
            if frame.number:
                self._template, answer = carry_out(self._template, decode_job(frame.part))
                self.send(RenderAnswer(frame.number, answer))
        return None

    def until(self, kind: type[Frame]) -> Frame:
        """Return the next frame of a kind, skipping others."""
        while (frame := self.receive()) is not None:
            if isinstance(frame, kind):
                return frame
        raise AssertionError(f"the worker ended before a {kind.__name__}: {self.finish()}")

    def until_finished(self, request_id: str) -> Finished:
        while True:
            for item in self.until(StepResult).items:
                if item.id == request_id and item.deltas and isinstance(item.deltas[-1], Finished):
                    return item.deltas[-1]

    def start(self) -> Ready:
        self.send(self.load)
        return self.until(Ready)

    def finish(self) -> tuple[int, str]:
        """Close its stdin and wait for its end; return its exit code and its output."""
        _, printed = self._process.communicate()
        return self._process.returncode, printed.decode()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def child(tiny_model: TinyModel) -> Iterator[Child]:
    made = Child(tiny_model(MemoryKind.FULL_ATTENTION))
    yield made
    made.kill()


class TestChild:
    def test_loads_answers_and_ends_on_stop(self, child: Child) -> None:
        child.send(child.load)
        progress = []
        while isinstance(frame := child.receive(), LoadProgress):
            progress.append(frame.fraction)
        assert progress == sorted(progress)
        assert progress[-1] == 1.0
        assert isinstance(frame, Ready)
        assert (frame.info.name, frame.info.context_length) == ("tiny", 4096)
        child.ask("a", 5, max_tokens=4)
        finished = child.until_finished("a")
        assert (finished.usage.num_prompt_tokens, finished.usage.num_output_tokens) == (5, 4)
        child.ask("live", 5)
        child.until(StepResult)
        child.send(Stop())
        assert child.until_finished("live").reason is FinishReason.CANCELLED
        assert child.receive() is None
        assert child.finish() == (0, "")

    def test_in_a_long_step_it_hears_pings_cancels_and_stop(self, child: Child) -> None:
        child.start()
        child.ask("long", 4000, prefill_only=True)
        started = child.until(StepResult)
        assert started.items[0].deltas == (Started(4000, 0),)
        child.send(child.load, Ping(7))
        pong = child.receive()
        assert isinstance(pong, Pong)
        assert (pong.nonce, pong.status.num_steps) == (7, 0)
        assert pong.status.step_started_at_s > 0
        child.send(Cancel("long"))
        # Its only step did not finish, since then it would have ended with STOP.
        assert child.until_finished("long").reason is FinishReason.CANCELLED
        child.ask("next", 5, max_tokens=2)
        assert child.until_finished("next").reason is FinishReason.LENGTH
        child.ask("other", 4000, prefill_only=True)
        child.until(StepResult)
        child.send(Stop())
        assert child.until_finished("other").reason is FinishReason.CANCELLED
        # llama.cpp's messages about interrupted steps are not errors, so they are not printed.
        assert child.finish() == (0, "edgeagent worker: a second Load; ignored\n")

    def test_its_share_of_the_disk_and_its_power_come_with_a_ping(self, child: Child, tmp_path: Path) -> None:
        disk = DiskCache(str(tmp_path), b"s" * 32, 1 << 30, 0, 3600.0, 0, close_s=1.0)
        nice = structs.replace(child.load.engine_config, nice=3)
        child.load = structs.replace(child.load, disk=disk, writable=(disk.folder,), engine_config=nice)
        child.start()
        assert psutil.Process(child._process.pid).nice() == 3 or sys.platform == "win32"
        for nonce in itertools.count():  # the disk's thread takes up a share some time after the ping
            child.send(Ping(nonce, DiskShare(1000, 0) if nonce else None, Power(0.5, "heat") if nonce else FULL_POWER))
            status = child.until(Pong).status
            assert status.held_back == ("heat" if nonce else "")
            assert status.disk_cache is not None
            if not nonce:
                assert status.disk_cache.max_bytes == 1 << 30
            elif status.disk_cache.max_bytes == 1000:
                break

    def test_the_end_of_its_input_ends_it_even_in_a_step(self, child: Child) -> None:
        child.start()
        child.ask("long", 4000)
        child.until(StepResult)
        assert child.finish() == (0, "")

    def test_garbage_ends_it(self, child: Child) -> None:
        child.start()
        child.write(b"\4\0\0\0abcd")
        assert child.receive() is None
        code, printed = child.finish()
        assert code == 0
        assert printed.startswith("edgeagent worker: ")

    def test_what_does_not_begin_with_a_load_is_told_who_starts_it(self, child: Child) -> None:
        child.write(b"\xff\xff\xff\xff")
        code, printed = child.finish()
        assert code == 2
        assert printed == "edgeagent worker: the first message must be Load; this program is started by the daemon\n"

    def test_a_model_that_does_not_load_is_its_last_word(self, child: Child, tmp_path: Path) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(b"GGUF" + bytes(100))
        child.send(structs.replace(child.load, path=str(path)))
        failed = child.until(LoadFailed)
        assert failed.code == "model_damaged"
        assert child.receive() is None
        assert child.finish()[0] == 1


@pytest.mark.parametrize(
    ("counts", "own_bytes"),
    [({"rss": 700, "shared": 500}, 200), ({"rss": 700, "private": 300}, 300), ({"rss": 700}, 0)],
    ids=["Linux", "Windows", "macOS"],
)
def test_own_memory_leaves_out_mapped_weights_on_every_system(counts: dict[str, int], own_bytes: int) -> None:
    assert _own_bytes(SimpleNamespace(**counts)) == own_bytes


def test_a_pong_names_what_was_begun_first() -> None:
    """Other prompts are prepared, each for a moment, while the decoder of an image hangs."""
    nothing, hung = ("", 0.0), ("hung", 4.0)
    for preparing in (nothing, ("a", 5.0), nothing, ("b", 6.0)):
        assert _older(preparing, hung) == hung
    assert _older(hung, ("image", 5.0)) == _older(hung, nothing) == hung
    assert _older(nothing, nothing) == nothing
