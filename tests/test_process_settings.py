"""Garbage collections after `keep_collections_short`, and a thread that requests short time slices for itself alone."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import platform
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.process_settings import (
    import_when_used,
    keep_collections_short,
    request_short_time_slices,
    request_time_slices,
    switch_threads_often,
)
from tests.patience import patient


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, had_frozen, interval_s = gc.get_threshold(), gc.get_freeze_count() > 0, sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)
    gc.set_threshold(*before)
    if not had_frozen:
        gc.unfreeze()


class Node:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.own = self


def test_what_exists_is_left_out_of_collections() -> None:
    before = gc.get_freeze_count()
    node = Node()
    keep_collections_short()
    assert gc.get_freeze_count() > before
    assert not any(each is node for each in gc.get_objects())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_later_cycles_are_still_freed(is_enabled: bool) -> None:
    if not is_enabled:
        gc.disable()  # as during the start-up of a daemon
    keep_collections_short()
    seen = [id(Node()) for _ in range(3000)]
    assert seen
    alive = sum(isinstance(each, Node) for each in gc.get_objects())
    assert alive < 3000


def test_a_collection_of_the_middle_generation_sees_few_objects() -> None:
    keep_collections_short()
    new, young, _ = gc.get_threshold()
    assert new * young <= 2100


def test_threads_switch_often() -> None:
    sys.setswitchinterval(0.005)
    switch_threads_often()
    assert 0 < sys.getswitchinterval() <= 0.0005


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


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in SCHED_GETATTR, reason="Linux's own call")
def test_longer_slices_are_those_of_its_children_too_unless_the_user_chose_another_policy() -> None:
    usual = in_thread(slice_ns)[0]
    taken, own, child = in_thread(lambda: request_time_slices(100_000_000), slice_ns, lambda: in_thread(slice_ns)[0])
    assert taken
    if usual:  # the kernel supports a slice for each thread
        assert own == child == 100_000_000
    *_, taken = in_thread(
        lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), lambda: request_time_slices(100_000_000)
    )
    assert not taken


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not request_short_time_slices()
    assert not request_time_slices(1_000_000)


ARENAS = """
import ctypes, sys, threading
from edgeagent.process_settings import keep_little_freed_memory

if sys.argv[1] == "one":
    keep_little_freed_memory()
everyone = threading.Barrier(4)

def allocate():
    kept = [bytes(2000) for _ in range(100)]
    everyone.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_one_arena() -> None:
    def num_arenas(which: str) -> int:
        command = [sys.executable, "-c", ARENAS, which]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patient(60)).stdout
        return told.count("<heap nr=")

    assert num_arenas("one") == 1
    assert num_arenas("own") > 1


def test_a_part_of_a_package_is_imported_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text("from in_parts.other import OTHER\nfrom in_parts.part import PART\n")
    (folder / "part.py").write_text("from . import values\nPART = values.VALUE\n")
    (folder / "values.py").write_text("VALUE = 1\n")
    (folder / "other.py").write_text("OTHER = 2\n")
    (folder / "whole.py").write_text("import in_parts.other\nWHOLE = in_parts.other.OTHER\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_when_used("in_parts", "in_parts.whole", "no_such_package")
    assert importlib.import_module("in_parts.part").PART == 1
    whole = importlib.import_module("in_parts.whole")
    assert "in_parts.other" not in sys.modules
    package = importlib.import_module("in_parts")
    assert package.whole is whole
    assert whole.WHOLE == 2
    assert (package.OTHER, package.PART) == (2, 1)
    with pytest.raises(AttributeError):
        _ = package.missing
    import_when_used("in_parts")
    assert sys.modules["in_parts"] is package
