"""Frames are split correctly, however the bytes arrive, and a child process gets no secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.worker.parent.environment import worker_environment
from edgeagent.worker.parent.supervision.channel import Channel, FloodLimit, FrameBuffer
from edgeagent.worker.protocol import (
    MAX_FRAME_FROM_WORKER_BYTES,
    Failed,
    FromWorker,
    ProtocolError,
    RenderJob,
    decode_from_worker,
    encode,
)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 17))
def test_frames_survive_any_cutting(bodies: list[bytes], size: int) -> None:
    stream = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    frames = FrameBuffer(64)
    got = [body for at in range(0, len(stream), size) for body in frames.feed(stream[at : at + size])]
    assert got == bodies


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    frames = FrameBuffer(100)
    assert list(frames.feed((100).to_bytes(4, "little") + b"x" * 100)) == [b"x" * 100]
    with pytest.raises(ProtocolError, match="101"):
        list(frames.feed((101).to_bytes(4, "little")))


@pytest.mark.parametrize(
    ("message", "is_flood"), [(RenderJob(1, 1.0, b"x" * 100), False), (Failed("r", "internal_error", "x" * 100), True)]
)
async def test_jobs_for_the_renderer_are_not_a_flood_of_bytes(message: FromWorker, is_flood: bool) -> None:
    violations: list[str] = []
    messages: list[object] = []
    flood = FloodLimit(max_frames=50, max_bytes=1000, period_s=3600.0)
    channel = Channel(messages.append, violations.append, flood, decode_from_worker, MAX_FRAME_FROM_WORKER_BYTES)
    channel.pipe_data_received(1, encode(message) * 50)
    assert bool(violations) is is_flood
    channel.pipe_data_received(1, encode(message))
    assert violations and violations[0].startswith("a flood of"), "frames are counted always"


def test_the_environment_holds_what_is_needed_and_no_secrets() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "hf_x",
        "EDGEAGENT_REMOTE__KEY": "k",
        "CUDA_API_KEY": "k",
        "OPENAI_API_KEY": "sk",
        "LD_PRELOAD": "/tmp/evil.so",
        "PYTHONPATH": "/elsewhere",
    }
    kept = worker_environment(environ)
    set_by_us = {"PYTHONPATH", "GGML_NO_BACKTRACE", "OPENBLAS_NUM_THREADS", "PYTHONIOENCODING"}
    set_by_us |= {"GLIBC_TUNABLES", "GOMP_SPINCOUNT"}
    assert set(kept) == {"PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES"} | set_by_us
    assert worker_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in worker_environment({"OMP_WAIT_POLICY": "active"})
    assert worker_environment({"GLIBC_TUNABLES": "glibc.rtld.nns=4"})["GLIBC_TUNABLES"] == "glibc.rtld.nns=4"
    assert kept["GGML_NO_BACKTRACE"] == "1"
    root = Path(__file__).parents[4]
    if root.name != "site-packages":
        assert kept["PYTHONPATH"].split(os.pathsep) == ["/elsewhere", str(root)]
