"""Memory is reused, but never while a reader still holds it."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import NoReturn

import numpy as np
import pytest

from edgeagent.engine.llama.cell_packing import PayloadPool

MIB = 1 << 20


def made(max_free_bytes: int = 8 * MIB) -> PayloadPool:
    pool = PayloadPool()
    pool.max_free_bytes = max_free_bytes
    return pool


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_a_buffer_comes_back_when_its_last_view_is_gone() -> None:
    pool = made()
    first = pool.take(MIB)
    first[:10] = b"\7" * 10
    place, part = address(first), np.frombuffer(first[:10].toreadonly(), np.uint8)[:5]
    del first
    second = pool.take(MIB)
    assert address(second) != place
    assert part.tolist() == [7] * 5
    del part
    assert address(pool.take(MIB)) == place


def test_what_is_kept_is_bounded() -> None:
    pool = made(max_free_bytes=3 * MIB)
    taken = [pool.take(MIB) for _ in range(10)]
    taken.clear()
    assert pool.num_free_bytes == 3 * MIB
    while pool.prepare(MIB):
        pass
    assert pool.num_free_bytes == 3 * MIB


def test_the_sizes_that_were_used_last_stay() -> None:
    pool = made(max_free_bytes=8 * MIB)
    taken = [pool.take(3 * MIB), pool.take(3 * MIB), pool.take(4 * MIB)]
    place = address(taken[2])
    while taken:
        del taken[0]  # the shorter blocks leave first
    assert pool.num_free_bytes == 7 * MIB
    assert address(pool.take(4 * MIB)) == place


def test_buffers_of_other_sizes_give_way_to_those_made_ready() -> None:
    pool = made(max_free_bytes=8 * MIB)
    taken = [pool.take(3 * MIB), pool.take(5 * MIB)]
    taken.clear()
    assert [pool.prepare(4 * MIB) for _ in range(3)] == [True, True, False]
    assert pool.num_free_bytes == 8 * MIB
    kept = [pool.take(4 * MIB), pool.take(4 * MIB)]
    assert (len(kept), pool.num_free_bytes) == (2, 0)


def test_a_lower_limit_frees_what_is_above_it() -> None:
    pool = made(max_free_bytes=8 * MIB)
    assert [pool.prepare(2 * MIB) for _ in range(5)] == [True, True, True, True, False]
    pool.max_free_bytes = 4 * MIB
    assert not pool.prepare(2 * MIB)
    assert pool.num_free_bytes == 4 * MIB


def test_memory_is_made_ready_for_later() -> None:
    pool = made(max_free_bytes=2 * MIB)
    assert [pool.prepare(MIB) for _ in range(3)] == [True, True, False]
    kept = [pool.take(MIB - 100), pool.take(MIB - 100)]
    assert {len(buffer) for buffer in kept} == {MIB - 100}
    assert pool.num_free_bytes == 0


def test_small_payloads_are_the_allocator_s() -> None:
    pool = made()
    small = pool.take(1000)
    del small
    assert pool.num_free_bytes == 0
    assert not pool.prepare(1000)


def test_another_thread_may_be_the_last_reader() -> None:
    pool = made()
    buffer = pool.take(MIB)
    views = [np.frombuffer(buffer, np.uint8)]
    del buffer
    thread = threading.Thread(target=views.clear)
    thread.start()
    thread.join()
    assert pool.num_free_bytes == MIB


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="numpy allocates here, and raises MemoryError itself")
def test_a_lack_of_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = made(64 * MIB)

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", fail)
    with pytest.raises(MemoryError, match="4194304 bytes"):
        pool.take(4 * MIB)
    assert not pool.prepare(4 * MIB)
    monkeypatch.undo()
    assert pool.prepare(4 * MIB) and len(pool.take(4 * MIB)) == 4 * MIB
