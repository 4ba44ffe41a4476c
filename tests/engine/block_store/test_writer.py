"""When the writer writes: full blocks at once, ends of conversations when they are quiet, nothing that was replaced."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from edgeagent.engine.block_store.store import BlockStore
from edgeagent.engine.blocks import Block, Importance
from tests.engine.block_store.stores import FaultyFiles, Times, close_now, is_same, make_chain, make_store


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def store(tmp_path: Path, times: Times) -> BlockStore:
    opened = make_store(tmp_path / "cache", times)
    opened.open()
    return opened


def held(store: BlockStore, *blocks: Block) -> list[bool]:
    return [store.num_bytes(block.key) is not None for block in blocks]


def test_a_block_that_is_not_full_waits_until_it_is_quiet(store: BlockStore, times: Times) -> None:
    (full,), (tail,) = make_chain(1), make_chain(1, num_tokens=20, seed=1)
    store.offer(full, Importance.IDLE)
    store.offer(tail, Importance.IDLE)
    store.work()
    assert held(store, full, tail) == [True, False]
    times.pass_s(6)
    store.work()
    assert is_same(store.read(tail.key), tail)


def test_one_that_a_longer_one_replaced_is_never_written(store: BlockStore, times: Times) -> None:
    (tail,), (longer,) = make_chain(1, num_tokens=20), make_chain(1, num_tokens=40)
    store.offer(tail, Importance.IDLE)
    store.work()
    store.offer(longer, Importance.IDLE)
    store.discard(tail.key)
    store.work()
    times.pass_s(6)
    store.work()
    assert held(store, tail, longer) == [False, True]
    assert store.num_written == 1
    store.discard(longer.key)  # nor kept, once it is written
    store.work()
    assert held(store, longer) == [False]


def test_one_that_matters_does_not_wait(store: BlockStore) -> None:
    tails = [make_chain(1, num_tokens=20, seed=seed)[0] for seed in range(2)]
    store.offer(tails[0], Importance.SYSTEM)
    store.offer(tails[1], Importance.IDLE)
    store.work()
    assert held(store, *tails) == [True, False]
    store.offer(tails[1], Importance.REUSED)
    store.work()
    assert held(store, *tails) == [True, True]


def test_a_parent_that_waits_is_written_with_its_child(store: BlockStore) -> None:
    chain = make_chain(2, num_tokens=20)
    store.offer(chain[0], Importance.IDLE)
    store.offer(chain[1], Importance.SYSTEM)
    store.work()
    assert held(store, *chain) == [True, True]


def test_what_waits_is_written_at_the_end(tmp_path: Path, store: BlockStore) -> None:
    (tail,) = make_chain(1, num_tokens=20)
    store.offer(tail, Importance.IDLE)
    close_now(store)
    later = make_store(tmp_path / "cache")
    later.open()
    assert is_same(later.read(tail.key), tail)


def test_a_full_queue_drops_instead_of_waiting(store: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeagent.engine.block_store.store._MAX_QUEUED_BYTES", 256_000)
    chains = [make_chain(1, seed=seed, payload_bytes=40_000)[0] for seed in range(8)]
    for block in chains:
        store.offer(block, Importance.IDLE)
    assert store.stats().num_dropped == 4  # a quarter is for what matters more
    store.offer(make_chain(1, seed=9, payload_bytes=40_000)[0], Importance.SYSTEM)
    assert store.stats().num_dropped == 4


class _Threaded:
    """A store with its writer's thread."""

    def __init__(self, folder: Path, files: FaultyFiles | None = None) -> None:
        self.store = make_store(folder, files=files)
        self.store._ticks = self.store._writer._ticks = time.monotonic
        self.thread = threading.Thread(target=self.store.run)
        self.thread.start()
        self.store.wait_until_open(10)


def test_on_its_thread(tmp_path: Path) -> None:
    threaded = _Threaded(tmp_path / "cache")
    chain = make_chain(3)
    for block in chain:
        threaded.store.offer(block, Importance.IDLE)
    threaded.store.close()
    threaded.thread.join(10)
    assert not threaded.thread.is_alive()
    later = make_store(tmp_path / "cache")
    later.open()
    assert all(is_same(later.read(block.key), block) for block in chain)


def test_it_leaves_the_processor_to_those_who_compute_and_ends_soon_all_the_same(tmp_path: Path) -> None:
    threaded = _Threaded(tmp_path / "cache")
    threaded.store.yield_to(lambda: True)
    (block,) = make_chain(1, payload_bytes=4 << 20)
    (other,) = make_chain(1, seed=1)
    threaded.store.offer(block, Importance.SYSTEM)
    threaded.store.offer(other, Importance.SYSTEM)
    while threaded.store.num_bytes(block.key) is None:
        time.sleep(0.005)
    assert threaded.store.num_bytes(other.key) is None  # it rests a hundred times as long as it worked
    threaded.store.close()
    threaded.thread.join(10)
    assert threaded.store.num_bytes(other.key) is not None


def test_a_bug_ends_the_store_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = FaultyFiles(tmp_path / "cache")
    threaded = _Threaded(tmp_path / "cache", files)

    def fault(number: int, name: str) -> None:
        raise RuntimeError("a bug")

    files.fault = fault
    threaded.store.offer(make_chain(1)[0], Importance.SYSTEM)
    threaded.thread.join(10)
    assert "a bug" in (threaded.store.trouble or "")
    threaded.store.offer(make_chain(1, seed=1)[0], Importance.SYSTEM)
    threaded.store.close()
    assert threaded.store.stats().num_dropped == 1
    assert "RuntimeError" in capsys.readouterr().err
