"""When the writer writes: full blocks at once, conversation tails once they are quiet, replaced blocks never."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from edgeagent.cache_folder import BlockName
from edgeagent.engine.cache.block import Block, Importance
from edgeagent.engine.cache.disk import store as store_module
from edgeagent.engine.cache.disk.file_format import file_bytes
from edgeagent.engine.cache.disk.folder import Outcome
from tests.engine.cache.disk.stores import (
    NO_SPACE,
    FaultyFiles,
    Store,
    Times,
    close_now,
    failing,
    is_same,
    make_chain,
    make_store,
)
from tests.patience import patient


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def store(tmp_path: Path, times: Times) -> Store:
    opened = make_store(tmp_path / "cache", times)
    opened.open()
    return opened


def are_on_disk(store: Store, *blocks: Block) -> list[bool]:
    return [store.num_bytes(block.key) is not None for block in blocks]


def test_a_block_that_is_not_full_waits_until_it_is_quiet(store: Store, times: Times) -> None:
    (full,), (tail,) = make_chain(1), make_chain(1, num_tokens=20, seed=1)
    store.offer(full, Importance.NORMAL)
    store.offer(tail, Importance.NORMAL)
    store.work()
    assert are_on_disk(store, full, tail) == [True, False]
    times.pass_s(6)
    store.work()
    assert is_same(store.read(tail.key), tail)


def test_a_second_offer_of_no_more_importance_hurries_nothing(store: Store, times: Times) -> None:
    (block,) = make_chain(1, num_tokens=100)
    for _ in range(2):
        store.offer(block, Importance.NORMAL)
        store.work()
    assert store.num_bytes(block.key) is None
    times.pass_s(6)
    store.work()
    assert store.num_bytes(block.key) is not None


def test_one_that_a_longer_one_replaced_is_never_written(store: Store, times: Times) -> None:
    (tail,), (longer,) = make_chain(1, num_tokens=20), make_chain(1, num_tokens=40)
    store.offer(tail, Importance.NORMAL)
    store.work()
    store.offer(longer, Importance.NORMAL)
    store.remove(tail.key)
    store.work()
    times.pass_s(6)
    store.work()
    assert are_on_disk(store, tail, longer) == [False, True]
    assert store.num_written == 1
    store.remove(longer.key)  # and it is removed if it was already written
    store.work()
    assert are_on_disk(store, longer) == [False]


def test_one_that_matters_does_not_wait(store: Store) -> None:
    tails = [make_chain(1, num_tokens=20, seed=seed)[0] for seed in range(2)]
    store.offer(tails[0], Importance.SYSTEM)
    store.offer(tails[1], Importance.NORMAL)
    store.work()
    assert are_on_disk(store, *tails) == [True, False]
    store.offer(tails[1], Importance.REUSED)
    store.work()
    assert are_on_disk(store, *tails) == [True, True]


def test_a_parent_that_waits_is_written_with_its_child(store: Store) -> None:
    chain = make_chain(2, num_tokens=20)
    store.offer(chain[0], Importance.NORMAL)
    store.offer(chain[1], Importance.SYSTEM)
    store.work()
    assert are_on_disk(store, *chain) == [True, True]


def test_what_waits_is_written_at_the_end(tmp_path: Path, store: Store) -> None:
    (tail,) = make_chain(1, num_tokens=20)
    store.offer(tail, Importance.NORMAL)
    close_now(store)
    later = make_store(tmp_path / "cache")
    later.open()
    assert is_same(later.read(tail.key), tail)


def test_what_matters_most_is_written_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = store._folder.write

    def noted(name: BlockName, *rest: Any, **named: Any) -> Outcome:
        written.append(name.key)
        return write(name, *rest, **named)

    monkeypatch.setattr(store._folder, "write", noted)
    chains = [make_chain(2, seed=seed) for seed in range(3)]
    for chain, importance in zip(chains, (Importance.NORMAL, Importance.REUSED, Importance.SYSTEM), strict=True):
        for block in chain:
            store.offer(block, importance)
    store.work()
    assert written == [block.key for chain in reversed(chains) for block in chain]


def test_what_the_allowance_does_not_cover_waits_until_it_renews(tmp_path: Path, times: Times) -> None:
    chain = make_chain(12)
    store = make_store(tmp_path / "cache", times, bytes_per_hour=8 * file_bytes(chain[0]))
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert 0 < sum(are_on_disk(store, *chain)) < 8
    assert store.is_stalled
    for _ in range(180):
        times.pass_s(60)
        store.work()
    assert all(are_on_disk(store, *chain))
    assert store.stats().num_dropped == 0
    assert not store.is_pending(chain[-1].key)


def test_what_is_offered_while_the_disk_refuses_is_written_when_it_takes_it_again(tmp_path: Path, times: Times) -> None:
    files = FaultyFiles(tmp_path / "cache")
    store, chain = make_store(tmp_path / "cache", times, files=files), make_chain(3)
    store.open()
    files.fault = failing(NO_SPACE)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert store.trouble is not None
    assert store.is_stalled
    files.fault = lambda number, name: None
    times.pass_s(60)
    store.work()
    store.work()
    assert all(are_on_disk(store, *chain))


def test_one_that_is_taken_back_is_not_written_and_may_be_offered_again(store: Store) -> None:
    chain = make_chain(2)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.withdraw(chain[1].key)
    assert not store.is_pending(chain[1].key)
    store.work()
    assert are_on_disk(store, *chain) == [True, False]
    store.offer(chain[1], Importance.NORMAL)
    store.work()
    assert are_on_disk(store, *chain) == [True, True]


def test_a_block_whose_parent_is_gone_is_not_written_and_counts_as_dropped_once(store: Store) -> None:
    chain = make_chain(2)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.remove(chain[0].key)
    store.work()
    assert are_on_disk(store, *chain) == [False, False]
    stats = store.stats()
    assert (stats.num_blocks, stats.num_dropped) == (0, 1)
    assert not store.is_pending(chain[1].key)


def test_what_had_to_be_left_out_at_the_end_is_told(tmp_path: Path, times: Times) -> None:
    files = FaultyFiles(tmp_path / "cache")
    store, chain = make_store(tmp_path / "cache", times, files=files), make_chain(3)
    store.open()
    files.fault = failing(NO_SPACE)
    for block in chain:
        store.offer(block, Importance.NORMAL)
    close_now(store)
    assert store.left_out_bytes == sum(block.num_bytes for block in chain)
    assert store.stats().num_dropped == 3


def test_the_time_for_the_end_is_counted_once(store: Store, times: Times) -> None:
    assert store.hurry()
    times.pass_s(0.75)
    assert store.hurry()
    times.pass_s(0.5)
    assert not store.hurry(), "`close_s` allows one second"


class _Commands(Queue["partial[None] | None"]):
    """Commands that end with the one to close; records how long the writer waits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.num_looks = 0

    def get(self, block: bool = True, timeout: float | None = None) -> partial[None] | None:
        self.waits.append(timeout)
        if self.empty():
            self.put(None)
        return super().get(block, timeout)

    def get_nowait(self) -> partial[None] | None:
        self.num_looks += 1
        assert self.num_looks < 100, "the thread never rests"
        return super().get(block=False)


def test_it_waits_for_a_command_only_while_nothing_can_be_written(store: Store) -> None:
    chain = make_chain(3)
    commands = store._commands = _Commands()
    for block in chain:
        store.offer(block, Importance.NORMAL)
    store.run()
    assert are_on_disk(store, *chain) == [True] * 3
    # One wait before the first command, and one when everything is written.
    assert commands.waits == [store_module._TICK_S] * 2
    assert store.trouble is None
    assert not store._closed.empty(), "a caller that waits for its end goes on"


def test_it_waits_too_while_the_allowance_does_not_cover_the_next_block(tmp_path: Path, times: Times) -> None:
    chain = make_chain(2)
    store = make_store(tmp_path / "cache", times, bytes_per_hour=int(1.5 * file_bytes(chain[0])))
    store.open()
    commands = store._commands = _Commands()
    for block in chain:
        store.offer(block, Importance.SYSTEM)
    store.run()
    assert are_on_disk(store, *chain) == [True, False]
    assert store.left_out_bytes == chain[1].num_bytes
    assert len(commands.waits) == 2
    assert store.trouble is None


def test_who_waits_until_it_is_open_goes_on_whether_it_opens_or_breaks(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(number: int, name: str) -> None:
        raise RuntimeError("a bug")

    broken = make_store(tmp_path / "other", files=FaultyFiles(tmp_path / "other", fault))
    broken._commands.put(None)
    broken.run()
    assert "a bug" in capsys.readouterr().err
    for each in (store, broken):
        assert not each._opened.empty()


class _Threaded:
    """A store with its writer thread."""

    def __init__(self, folder: Path, files: FaultyFiles | None = None) -> None:
        self.store = make_store(folder, files=files)
        self.store._clock = time.monotonic
        self.thread = threading.Thread(target=self.store.run)
        self.thread.start()
        self.store.wait_until_open(10)


def test_on_its_thread(tmp_path: Path) -> None:
    threaded = _Threaded(tmp_path / "cache")
    chain = make_chain(3)
    for block in chain:
        threaded.store.offer(block, Importance.NORMAL)
    threaded.store.close()
    threaded.thread.join(patient(10))
    assert not threaded.thread.is_alive()
    later = make_store(tmp_path / "cache")
    later.open()
    assert all(is_same(later.read(block.key), block) for block in chain)


def test_it_leaves_the_processor_to_those_who_compute_and_ends_soon_all_the_same(tmp_path: Path) -> None:
    threaded = _Threaded(tmp_path / "cache")
    threaded.store.is_busy = lambda: True
    (block,) = make_chain(1, payload_bytes=4 << 20)
    (other,) = make_chain(1, seed=1)
    threaded.store.offer(block, Importance.SYSTEM)
    threaded.store.offer(other, Importance.SYSTEM)
    while threaded.store.num_bytes(block.key) is None:
        time.sleep(0.005)
    assert threaded.store.num_bytes(other.key) is None  # it rests a hundred times as long as it worked
    threaded.store.close()
    threaded.thread.join(patient(10))
    assert threaded.store.num_written == 2


@pytest.mark.parametrize(("max_pending_blocks", "rest_s"), [(1000, 1.0), (2, 0.5), (1, 0.0)])
def test_it_rests_after_each_block_while_tokens_are_computed_and_less_the_more_waits(
    store: Store, times: Times, monkeypatch: pytest.MonkeyPatch, max_pending_blocks: int, rest_s: float
) -> None:
    worked_s = itertools.count(0.0, 0.01)
    monkeypatch.setattr(time, "thread_time", lambda: next(worked_s))
    blocks = [make_chain(1, seed=seed)[0] for seed in range(2)]
    store.max_pending_bytes = max_pending_blocks * blocks[0].num_bytes
    store.is_busy = lambda: True
    for block in blocks:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert are_on_disk(store, *blocks) == [True, rest_s == 0.0]
    assert is_same(store.read(blocks[0].key), blocks[0]), "reads go on"
    times.pass_s(0.9 * rest_s)
    store.work()
    assert are_on_disk(store, *blocks) == [True, rest_s == 0.0]
    times.pass_s(0.2 * rest_s)
    store.work()
    assert are_on_disk(store, *blocks) == [True, True]


def test_it_rests_no_longer_once_no_token_is_computed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_s = itertools.count(0.0, 0.01)
    monkeypatch.setattr(time, "thread_time", lambda: next(worked_s))
    blocks = [make_chain(1, seed=seed)[0] for seed in range(2)]
    store.is_busy = lambda: True
    for block in blocks:
        store.offer(block, Importance.NORMAL)
    store.work()
    assert are_on_disk(store, *blocks) == [True, False]
    store.is_busy = lambda: False
    store.work()
    assert are_on_disk(store, *blocks) == [True, True]


def test_a_bug_ends_the_store_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = FaultyFiles(tmp_path / "cache")
    threaded = _Threaded(tmp_path / "cache", files)

    def fault(number: int, name: str) -> None:
        raise RuntimeError("a bug")

    files.fault = fault
    threaded.store.offer(make_chain(1)[0], Importance.SYSTEM)
    while threaded.store.trouble is None:
        time.sleep(0.005)
    assert "a bug" in threaded.store.trouble
    threaded.store.offer(make_chain(1, seed=1)[0], Importance.SYSTEM)
    threaded.store.close()
    threaded.thread.join(patient(10))
    assert threaded.store.stats().num_dropped == 1
    assert "RuntimeError" in capsys.readouterr().err


@pytest.mark.parametrize("importance", [Importance.SYSTEM, Importance.NORMAL])
def test_blocks_that_a_full_disk_never_took_leave_nothing_behind(
    tmp_path: Path, times: Times, importance: Importance
) -> None:
    files = FaultyFiles(tmp_path / "cache", failing(NO_SPACE))
    store = make_store(tmp_path / "cache", times, files=files)
    # Blocks that are not full and not important wait until they are quiet.
    kept, *others = (make_chain(1, seed=seed, num_tokens=20)[0] for seed in range(100))
    store.offer(kept, importance)
    for block in others:
        store.offer(block, importance)
        store.work()
        store.withdraw(block.key)
    store.work()
    assert list(store._waiting) == [kept.key] and store.is_pending(kept.key)
    times.pass_s(6)
    files.fault = lambda number, name: None
    times.pass_s(31)
    store.work()
    store.work()
    assert are_on_disk(store, kept, others[-1]) == [True, False]


def test_what_matters_most_is_still_first_after_others_were_taken_back(
    tmp_path: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, written = FaultyFiles(tmp_path / "cache"), list[bytes]()
    store = make_store(tmp_path / "cache", times, files=files)
    store.open()
    files.fault = failing(NO_SPACE)
    *pinned, normal, system, reused = (make_chain(1, seed=seed)[0] for seed in range(15))
    for block in (*pinned, normal, system):
        store.offer(
            block, Importance.NORMAL if block is normal else Importance.SYSTEM if block is system else Importance.PINNED
        )
    store.work()
    for block in pinned:
        store.withdraw(block.key)
    store.offer(reused, Importance.REUSED)
    store.work()
    files.fault = lambda number, name: None
    write = store._folder.write

    def noted(name: BlockName, *rest: Any, **named: Any) -> Outcome:
        written.append(name.key)
        return write(name, *rest, **named)

    monkeypatch.setattr(store._folder, "write", noted)
    times.pass_s(31)
    store.work()
    store.work()
    assert written == [system.key, reused.key, normal.key]


def test_what_is_there_already_or_was_forgotten_is_not_written_again(tmp_path: Path, times: Times) -> None:
    (known,), (forgotten,) = make_chain(1), make_chain(1, seed=1)
    earlier = make_store(tmp_path / "cache", times)
    earlier.offer(known, Importance.NORMAL)
    close_now(earlier)
    operations: list[str] = []
    files = FaultyFiles(tmp_path / "cache", lambda number, name: operations.append(name))
    store = make_store(tmp_path / "cache", times, files=files)
    store.open()
    operations.clear()
    store.write(known, Importance.NORMAL, is_full=True)  # the engine did not take the results of the start yet
    store.work()
    assert (store.num_written, store.is_pending(known.key), are_on_disk(store, known)) == (0, False, [True])
    store.offer(forgotten, Importance.NORMAL)
    store.purge()
    store.work()
    assert (store.num_written, store.is_pending(forgotten.key)) == (0, False)
    assert "create" not in operations


def test_what_was_there_is_announced_once_and_nothing_of_its_own(tmp_path: Path, times: Times) -> None:
    before, after = make_chain(2), make_chain(2, seed=1)
    earlier = make_store(tmp_path / "cache", times)
    for block in before:
        earlier.offer(block, Importance.NORMAL)
    close_now(earlier)
    store = make_store(tmp_path / "cache", times)
    for block in after:
        store.offer(block, Importance.NORMAL)
    for _ in range(3):
        times.pass_s(20)
        store.work()
    assert [head.key for head in store.take_found(99)] == [block.key for block in before]
