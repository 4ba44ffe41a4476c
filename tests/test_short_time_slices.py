"""A thread requests short scheduler turns for itself alone."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import threading

import pytest

from edgeagent.short_time_slices import request_short_time_slices

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "riscv64": 275}


def slice_ns() -> int:
    """Return this thread's scheduler slice in nanoseconds, as Linux reports it (0 before 6.12)."""
    room = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR[platform.machine()], 0, room, len(room), 0) == 0
    return int(struct.unpack("=IIQiIQQQ", room.raw)[5])


def in_thread(*steps: object) -> list[object]:
    """Call functions in a new thread; return their results."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(step() for step in steps))  # type: ignore[operator]
    thread.start()
    thread.join()
    return found


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in SCHED_GETATTR, reason="Linux's own call")
def test_a_thread_asks_for_itself_and_not_for_its_children() -> None:
    before = slice_ns()  # another test in this process may have asked in this thread
    usual = in_thread(slice_ns)[0]
    nice, taken, own, niceness, child = in_thread(
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        request_short_time_slices,
        slice_ns,
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda: in_thread(slice_ns)[0],
    )
    assert taken == (nice >= 0)  # type: ignore[operator]
    assert niceness == nice
    if usual and taken:  # the kernel supports a slice for each thread
        assert own == 100_000
        assert child == usual
    assert slice_ns() == before


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not request_short_time_slices()
