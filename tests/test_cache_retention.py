"""Which blocks are written, which are evicted first, and what is evicted of models that no worker uses."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.cache_folder import BlockFile, BlockName, Importance, model_folder
from edgeagent.cache_retention import choose_victims, evict_unused
from edgeagent.engine.cache.disk.folder import is_worth_writing
from tests.engine.cache.disk.stores import SECRET, Times, close_now, make_chain, make_store
from tests.examples import examples

DAY_S = 86400.0
NOW_S = 100 * DAY_S


def entry(
    key: int, parent: int = 0, *, age_s: float = 0.0, importance: Importance = Importance.NORMAL, root: int = 0
) -> BlockFile:
    """Return a block of 100 bytes; parent 0 is the root."""
    name_of = {True: bytes([root + 200] * 16)}.get(parent == 0, bytes([parent] * 16))
    name = BlockName(bytes([root + 200] * 8), name_of, bytes([key] * 32), key, 256, int(importance))
    return BlockFile(name, 100, NOW_S - age_s)


def victims(*blocks: BlockFile, num_bytes: int = 0, max_bytes: int = 1000, ttl_s: float = 7 * DAY_S) -> list[int]:
    chosen = choose_victims(blocks, num_bytes=num_bytes, max_bytes=max_bytes, now_s=NOW_S, ttl_s=ttl_s)
    return [block.name.key[0] for block in chosen]


@pytest.mark.parametrize(
    ("left", "written"),
    [
        (1.0, {"NORMAL", "REUSED", "SYSTEM", "PINNED"}),
        (0.4, {"NORMAL", "REUSED", "SYSTEM", "PINNED"}),
        (0.2, {"REUSED", "SYSTEM", "PINNED"}),
        (0.05, {"SYSTEM", "PINNED"}),
        (0.0, set()),
    ],
)
def test_the_less_is_left_the_more_something_must_matter(left: float, written: set[str]) -> None:
    worth = {importance.name for importance in Importance if is_worth_writing(importance, allowance_left=left)}
    assert worth == written


def test_nothing_goes_while_there_is_room() -> None:
    assert victims(entry(1), entry(2, 1)) == []


def test_the_longest_unused_goes_first_and_children_before_parents() -> None:
    blocks = [entry(1, age_s=50), entry(2, 1, age_s=900), entry(3, age_s=500), entry(4, 3, age_s=500)]
    assert victims(*blocks, num_bytes=250, max_bytes=400) == [2, 4, 3]


def test_of_two_that_are_alike_either_goes() -> None:
    """The two blocks belong to different prompts, at the same position and with the same age."""
    blocks = [entry(1), entry(2)]
    for block in blocks:
        block.name = replace(block.name, start=0)
    assert len(victims(*blocks, num_bytes=100)) == 1


@pytest.mark.parametrize(("num_bytes", "num_victims"), [(0, 0), (1, 1), (100, 1), (101, 2), (200, 2)])
def test_no_more_goes_than_has_to(num_bytes: int, num_victims: int) -> None:
    blocks = [entry(number, age_s=number) for number in range(1, 5)]
    assert len(victims(*blocks, num_bytes=num_bytes)) == num_victims


def test_a_block_is_as_young_as_what_stands_on_it() -> None:
    assert victims(entry(1, age_s=900), entry(2, 1, age_s=5), entry(3, age_s=100), num_bytes=100, max_bytes=300) == [3]


def test_what_matters_stays_longer() -> None:
    blocks = [entry(1, age_s=500, importance=Importance.SYSTEM), entry(2, age_s=100), entry(3, age_s=80)]
    assert victims(*blocks, num_bytes=100, max_bytes=300) == [2]
    blocks[0].used_s = NOW_S - 900
    assert victims(*blocks, num_bytes=100, max_bytes=300) == [1]


@pytest.mark.parametrize(
    ("importance", "times"),
    [(Importance.NORMAL, 1.0), (Importance.REUSED, 2.0), (Importance.SYSTEM, 5.0)],
)
def test_how_much_longer_what_matters_stays(importance: Importance, times: float) -> None:
    normal = entry(1, age_s=1000, importance=Importance.NORMAL)
    for age_s, first in ((times * 1000 - 10, 1), (times * 1000 + 10, 2)):
        blocks = [normal, entry(2, age_s=age_s, importance=importance)]
        assert victims(*blocks, num_bytes=100, max_bytes=300) == [first]


@pytest.mark.parametrize(("age_s", "first"), [(7990, 1), (8010, 2)])
def test_how_much_longer_a_small_share_stays(age_s: float, first: int) -> None:
    large = [entry(number, age_s=1000) for number in (1, 3, 4, 5)]
    blocks = [*large, entry(2, age_s=age_s, root=1)]
    assert victims(*blocks, num_bytes=100, max_bytes=400)[0] in ((1, 3, 4, 5) if first == 1 else (2,))


@pytest.mark.parametrize(("age_s", "first"), [(990, 1), (1010, 2)])
def test_a_draft_has_no_share_of_its_own(age_s: float, first: int) -> None:
    """With a share of its own, a draft's blocks would outlive those of its model, which take eight times the space."""
    large = [entry(number, age_s=1000) for number in (1, 3, 4, 5)]
    blocks = [*large, replace(entry(2, age_s=age_s, root=1), is_draft=True)]
    assert victims(*blocks, num_bytes=100, max_bytes=400)[0] in ((1, 3, 4, 5) if first == 1 else (2,))


def test_pinned_ones_stay_with_what_they_stand_on() -> None:
    blocks = [entry(1, age_s=50 * DAY_S), entry(2, 1, age_s=50 * DAY_S, importance=Importance.PINNED), entry(3)]
    assert victims(*blocks, num_bytes=10_000) == [3]


def test_what_cannot_be_reached_goes_pinned_or_not() -> None:
    blocks = [entry(1), entry(3, 2), entry(4, 3, importance=Importance.PINNED)]
    assert sorted(victims(*blocks)) == [3, 4]


def test_what_nobody_used_for_long_goes() -> None:
    assert victims(entry(1, age_s=8 * DAY_S), entry(2, age_s=7 * DAY_S), entry(3, age_s=6 * DAY_S)) == [1]


def test_what_cannot_be_reached_goes_before_what_is_expired_and_that_before_the_rest() -> None:
    blocks = [entry(1, age_s=1), entry(2, age_s=8 * DAY_S), entry(4, 3)]
    assert victims(*blocks, num_bytes=250) == [4, 2, 1]


def test_a_flood_leaves_another_partition_its_share() -> None:
    mine = [entry(number, age_s=300) for number in range(1, 3)]
    flood = [entry(number, age_s=100, root=1) for number in range(10, 18)]
    assert set(victims(*mine, *flood, num_bytes=600)) <= set(range(10, 18))
    for age_s, block in enumerate(mine, 5000):
        block.used_s = NOW_S - age_s  # but not forever
    assert victims(*mine, *flood, num_bytes=100) == [2]


@settings(max_examples=examples(50))
@given(
    blocks=st.lists(
        st.tuples(st.integers(0, 30), st.floats(0, 20 * DAY_S), st.sampled_from(list(Importance)), st.integers(0, 2)),
        max_size=30,
    ),
    num_bytes=st.integers(0, 4000),
)
def test_what_is_left_can_be_reached(blocks: list[tuple[int, float, Importance, int]], num_bytes: int) -> None:
    everything: list[BlockFile] = []
    for key, (parent, age_s, importance, root) in enumerate(blocks, 1):
        roots = {block.name.key[0]: block.name.root[0] - 200 for block in everything}
        parent = parent if parent < key else 0
        everything.append(entry(key, parent, age_s=age_s, importance=importance, root=roots.get(parent, root)))
    gone = set(victims(*everything, num_bytes=num_bytes))
    left = {block.name.key[0] for block in everything} - gone
    for block in everything:
        if block.name.key[0] in left and not block.name.is_first:
            assert block.name.parent[0] in left
    pinned = {block.name.key[0] for block in everything if block.importance is Importance.PINNED}
    assert pinned <= left
    others = [block for block in everything if block.name.key[0] in left]
    is_enough = 100 * len(gone) >= num_bytes
    assert is_enough or not choose_victims(others, num_bytes=1, max_bytes=1000, now_s=NOW_S, ttl_s=1e9)


SIZE = 2188  # of a block's file


@dataclass(slots=True)
class Cache:
    """A cache folder with a folder of two blocks for each model."""

    dir: Path
    times: Times = field(default_factory=Times)

    def add(self, model: str, *, importance: Importance = Importance.NORMAL, is_loaded: bool = False) -> Path:
        folder = model_folder(self.dir, Path(model), SECRET)
        store = make_store(folder, self.times, is_beside=True)
        for block in make_chain(2, seed=len(model)):
            store.offer(block, importance)
        store.work()
        if not is_loaded:
            close_now(store)
        return folder

    def evict(self, max_bytes: int = 1 << 30, min_free_bytes: int = 0) -> int:
        limits = {"max_bytes": max_bytes, "min_free_bytes": min_free_bytes}
        return evict_unused(self.dir, **limits, ttl_s=7 * DAY_S, wall=self.times.wall)


def num_blocks(folder: Path) -> int:
    return len(list(folder.glob("*.kv")))


def test_the_models_that_were_unused_for_longest_give_way_and_loaded_ones_stay(tmp_path: Path) -> None:
    cache, folders = Cache(tmp_path), []
    for name in ("a", "bb", "ccc"):
        folders.append(cache.add(name, is_loaded=name == "a"))
        cache.times.pass_s(3600.0)
    assert cache.evict() == 4 * SIZE
    assert cache.evict(max_bytes=3 * SIZE) == 3 * SIZE
    assert [num_blocks(folder) for folder in folders] == [2, 1, 2]
    assert cache.evict(max_bytes=0) == 0
    assert [num_blocks(folder) for folder in folders] == [2, 0, 0]


def test_what_is_pinned_gives_way_to_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder = cache.add("a", importance=Importance.PINNED)
    cache.times.pass_s(30 * DAY_S)
    assert cache.evict(max_bytes=0, min_free_bytes=1 << 60) == 2 * SIZE
    assert num_blocks(folder) == 2


def test_a_disk_that_is_short_of_space_gets_it_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder = cache.add("a")
    assert cache.evict(min_free_bytes=1 << 60) == 0
    assert num_blocks(folder) == 0


@pytest.mark.parametrize("step_s", [-365 * DAY_S, 365 * DAY_S])
def test_unused_models_age_by_the_wall_clock_within_a_bound(tmp_path: Path, step_s: float) -> None:
    cache = Cache(tmp_path)
    folder = cache.add("a")
    cache.times.wall.at_s += step_s
    assert cache.evict() == 2 * SIZE, "the clock was wrong"
    for _ in range(8):
        cache.times.wall.at_s += DAY_S
        cache.evict()
    assert num_blocks(folder) == 0


def test_a_model_whose_time_is_lost_begins_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder = cache.add("a")
    (folder / "state.json").unlink()
    cache.times.wall.at_s += 365 * DAY_S
    assert cache.evict() == 2 * SIZE
    cache.times.wall.at_s += 6 * DAY_S
    assert cache.evict() == 2 * SIZE
    later = make_store(folder, cache.times)
    later.open()
    assert later.stats().num_blocks == 2, "a worker goes on from the same time"


def test_an_empty_folder_is_removed_a_day_later(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    folder, kept = cache.add("a"), cache.add("bb")
    (kept / "notes.txt").write_text("mine")
    cache.times.wall.at_s = time.time()  # by which the folders were changed
    cache.evict(max_bytes=0)
    assert folder.is_dir(), "a worker may be about to use it"
    for each in (folder, kept):
        os.utime(each, (time.time() - 1.1 * DAY_S,) * 2)
    assert cache.evict() == 0
    assert [path.name for path in tmp_path.rglob("*")] == [kept.name, "notes.txt"]
    folder.mkdir()
    os.utime(folder, (time.time() - 1.1 * DAY_S,) * 2)
    cache.evict()
    assert not folder.exists(), "also if the eviction put the first lock file there"
