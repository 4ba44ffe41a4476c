"""Row F5, the prefix cache on disk: after a crash at any step of its work, no invalid block is ever used."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeagent import cache_folder
from edgeagent.engine.cache.block import Block, Importance
from tests.engine.cache.disk.stores import (
    Crash,
    FaultyFiles,
    Store,
    Times,
    close_now,
    crashing,
    is_same,
    make_chain,
    make_store,
)
from tests.examples import examples

CHAINS = [make_chain(4, seed=seed, payload_bytes=3000, draft=seed == 1) for seed in range(2)]
BLOCKS = [block for chain in CHAINS for block in chain]


def _work(folder: Path, files: FaultyFiles) -> None:
    """Write, use, promote, evict, purge and close."""
    times = Times()
    store = make_store(folder, times, files=files, max_bytes=5 * 5200, bytes_per_hour=1 << 20)
    store.open()
    for block in BLOCKS:
        store.offer(block, Importance.NORMAL)
        store.work()
    store.offer(BLOCKS[0], Importance.SYSTEM)
    store.touch([BLOCKS[0].key])
    times.pass_s(400)
    store.work()
    store.purge(BLOCKS[0].root)
    store.offer(BLOCKS[0], Importance.REUSED)
    store.work()
    close_now(store)


def _assert_sound(folder: Path) -> int:
    """Open the folder as the next process would, and assert that every block is whole. Return the number of blocks."""
    store = make_store(folder, Times())
    store.open()
    assert store.trouble is None
    held = [block for block in BLOCKS if store.num_bytes(block.key) is not None]
    assert all(is_same(store.read(block.key), block) for block in held)
    leftovers = [path.name for path in folder.iterdir() if cache_folder.temporary_owner(path.name) is not None]
    assert leftovers == []
    return len(held)


def test_dying_at_every_step(tmp_path: Path) -> None:
    counter = FaultyFiles(tmp_path / "whole")
    _work(tmp_path / "whole", counter)
    assert counter.num_operations > 100
    seen = set()
    for step in range(1, counter.num_operations + 1):
        folder = tmp_path / str(step)
        try:
            _work(folder, FaultyFiles(folder, crashing(at=step)))
        except Crash:
            pass
        else:
            raise AssertionError(f"step {step} was not reached")
        seen.add(_assert_sound(folder))
    assert {0, 1, 4} <= seen  # crashes before, between and after blocks


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, len(BLOCKS) - 1), st.sampled_from(list(Importance))),
        st.tuples(st.just("touch"), st.integers(0, len(BLOCKS) - 1), st.none()),
        st.tuples(st.just("purge"), st.none(), st.none()),
        st.tuples(st.just("flip"), st.integers(0, 1 << 16), st.integers(0, 1 << 16)),
        st.tuples(st.just("cut"), st.integers(0, 1 << 16), st.integers(0, 1 << 16)),
        st.tuples(st.just("swap"), st.integers(0, 1 << 16), st.integers(0, 1 << 16)),
        st.tuples(st.just("pass"), st.integers(0, 20 * 86400), st.none()),
        st.tuples(st.just("crash"), st.integers(1, 60), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=_ACTIONS)
def test_any_schedule_serves_only_what_was_written(
    actions: list[tuple[str, Any, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Writes, uses, purges, corruptions, crashes and restarts in any order: a block read equals the one offered."""
    folder, times = tmp_path_factory.mktemp("cache"), Times()
    limit = 6 * 5200
    store = make_store(folder, times, max_bytes=limit, files=(files := FaultyFiles(folder)))
    store.open()
    for action, first, second in actions:
        files_now = sorted(path for path in folder.iterdir() if path.suffix == ".kv")
        try:
            match action:
                case "offer":
                    store.offer(BLOCKS[first], second)
                case "touch":
                    store.touch([BLOCKS[first].key])
                case "purge":
                    store.purge()
                    assert all(store.num_bytes(block.key) is None for block in BLOCKS)
                case "flip" | "cut" | "swap" if files_now:
                    _spoil(files_now, action, first, second)
                case "pass":
                    times.pass_s(first)
                case "crash":
                    files.fault = crashing(at=files.num_operations + first)
                case "restart":
                    close_now(store)
                    raise Crash
            store.work()
            _check(store, limit)
        except Crash:
            store = make_store(folder, times, max_bytes=limit, files=(files := FaultyFiles(folder)))
            store.open()


def _spoil(files: list[Path], action: str, first: int, second: int) -> None:
    victim = files[first % len(files)]
    content = bytearray(victim.read_bytes())
    match action:
        case "flip":
            content[second % len(content)] ^= 1 << (second % 8)
            victim.write_bytes(content)
        case "cut":
            victim.write_bytes(content[: second % len(content)])
        case "swap":
            victim.write_bytes(files[second % len(files)].read_bytes())


def _check(store: Store, limit: int) -> None:
    assert store.stats().num_bytes <= limit
    for block in BLOCKS:
        found = store.read(block.key)
        assert found is None or is_same(found, block)
        assert found is not None or store.num_bytes(block.key) is None


_WRITER = """
import sys
from pathlib import Path
from tests.engine.cache.disk.stores import make_chain, make_store
from edgeagent.engine.cache.block import Importance
store = make_store(Path(sys.argv[1]), max_bytes=40 * 60_000)
store.open()
print("open", flush=True)
for seed in range(10**6):
    for block in make_chain(4, seed=seed % 64, payload_bytes=50_000, draft=True):
        store.offer(block, Importance(1 + seed % 4))
    store.work()
"""


def _kill_at_random(folder: Path, num_kills: int, num_writers: int = 1) -> int:
    """Kill processes that write without pause; return the number of sound blocks over all checks."""
    chance, num_sound = random.Random(7), 0
    blocks = {block.key: block for seed in range(64) for block in _made(seed)}
    root = Path(__file__).resolve().parents[2]
    for _ in range(num_kills):
        command = [sys.executable, "-c", _WRITER, str(folder)]
        writers = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) for _ in range(num_writers)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
        time.sleep(chance.uniform(0.0, 0.15))
        for writer in writers:
            writer.send_signal(signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        store = make_store(folder, max_bytes=40 * 60_000)
        store.open()
        for key, block in blocks.items():
            if store.num_bytes(key) is not None:
                # A rename publishes only whole files, even those that the checksum would reject otherwise.
                assert is_same(store.read(key), block)
                num_sound += 1
        assert not [path for path in folder.iterdir() if path.name.startswith("tmp-")]
        close_now(store)  # so that the next writers can use the folder
    return num_sound


def _made(seed: int) -> list[Block]:
    return make_chain(4, seed=seed, payload_bytes=50_000, draft=True)


def test_killed_at_random(tmp_path: Path) -> None:
    assert _kill_at_random(tmp_path / "cache", num_kills=4) > 0


def test_two_processes_on_one_folder_killed_at_random(tmp_path: Path) -> None:
    assert _kill_at_random(tmp_path / "cache", num_kills=2, num_writers=2) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_random_200_times(tmp_path: Path) -> None:
    assert _kill_at_random(tmp_path / "cache", num_kills=200) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_on_one_folder_killed_at_random_100_times(tmp_path: Path) -> None:
    assert _kill_at_random(tmp_path / "cache", num_kills=100, num_writers=2) > 0
