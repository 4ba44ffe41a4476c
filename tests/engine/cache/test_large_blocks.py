"""A model whose tokens take much memory: its prompts reach the disk completely, and memory stays within its limit.

Payloads are fakes with a model's bytes per token; the store, its thread and its files are real.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_BLOCK_TOKENS, Keyring, Payload, choose_block_tokens
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import Sequence, SequenceSpec
from tests.engine.cache.disk.stores import SECRET, SteppedStore, make_disk
from tests.engine.support import greedy, naive
from tests.fakes import FakeRunner
from tests.patience import patient

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("token_bytes", "num_tokens"),
    [(0, 256), (12 * KIB, 256), (16 * KIB, 256), (28 * KIB, 128), (112 * KIB, 32), (128 * KIB, 32), (320 * KIB, 32)],
)
def test_a_block_has_fewer_tokens_the_more_bytes_each_takes(token_bytes: int, num_tokens: int) -> None:
    assert choose_block_tokens(token_bytes) == num_tokens
    assert MIN_BLOCK_TOKENS <= num_tokens <= MAX_BLOCK_TOKENS


class HeavyRunner(FakeRunner):
    """A fake whose saved tokens are as large as a real model's; the padding is zeros."""

    def __init__(self, token_bytes: int) -> None:
        super().__init__(num_cells=8400, max_batch=512)
        self._token_bytes = token_bytes

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        payload = super().save(seq_id, start, end)
        padded = bytearray((end - start) * self._token_bytes)
        padded[: len(payload)] = payload
        return memoryview(padded).toreadonly()

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        held = self.length(seq_id)
        return super().restore(seq_id, memoryview(payload)[: 4 * (2 + end - held)], end)


@dataclass
class Life:
    """One run of a process with this model and this folder."""

    engine: Engine
    blocks: BlockTable
    store: SteppedStore
    thread: threading.Thread
    most_bytes: int = 0
    most_pending_bytes: int = 0

    def look(self) -> None:
        """Record the memory in use."""
        held = {block.key: block.num_bytes for block in tuple(self.store._pending.values())}
        self.most_pending_bytes = max(self.most_pending_bytes, sum(held.values()))
        held |= {key: entry.block.num_bytes for key, entry in self.blocks._in_memory.items() if entry.block}
        self.most_bytes = max(self.most_bytes, sum(held.values()))

    def ask(self, name: str, prompt: list[int]) -> Sequence:
        sequence = self.engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=3))
        tokens: list[int] = []
        while sequence.seq_id is None or self.engine.num_live:
            for output in self.engine.step():
                tokens += output.tokens
            self.look()
        assert tokens == naive(prompt, 3)[0]
        return sequence

    def be_idle(self) -> None:
        """Work as an idle worker does, until nothing is left to do."""
        while self.engine.has_work or self.engine.wake_after_s is not None:
            if self.engine.has_work:
                self.engine.step()
            else:
                time.sleep(0.002)
            self.look()

    def end(self) -> None:
        self.engine.close()
        self.thread.join(patient(60))
        assert not self.thread.is_alive()


def live(folder: Path, token_bytes: int, host_bytes: int, *, block_tokens: int = 32) -> Life:
    store = make_disk(folder, max_bytes=1 << 40, close_s=60)
    store._clock = time.monotonic
    blocks = BlockTable(Keyring(b"fake", SECRET), host_bytes, store, can_cut=True, block_tokens=block_tokens)
    thread = threading.Thread(target=store.run, daemon=True)
    thread.start()
    store.wait_until_open(10)
    runner = HeavyRunner(token_bytes)
    engine = Engine(runner, max_running=2, prefixes=PrefixStore(runner, blocks))
    engine.refresh()
    store.is_busy = lambda: engine.num_live > 0
    return Life(engine, blocks, store, thread)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [1 + (seed + index * index + index // 49) % 49 for index in range(length)]


SHAPES = [
    pytest.param(2 * KIB, 64 * MIB, id="all of it fits"),
    pytest.param(2 * KIB, 3 * MIB, id="a fifth of it fits"),
    # The tokens of an 8B model, and the host memory of a small and of a large machine.
    pytest.param(128 * KIB, 256 * MIB, id="8B, 256 MiB", marks=pytest.mark.slow(seconds=5)),
    pytest.param(128 * KIB, 2048 * MIB, id="8B, 2 GiB", marks=pytest.mark.slow),
]


@pytest.mark.daily(2, seconds=0.4)
@pytest.mark.parametrize("wake_after_s", [True, False])
@pytest.mark.parametrize(("token_bytes", "host_bytes"), SHAPES)
def test_a_long_prompt_is_whole_after_a_restart_and_memory_keeps_its_bound(
    tmp_path: Path, token_bytes: int, host_bytes: int, wake_after_s: bool
) -> None:
    prompt = prompt_of(8000)
    first = live(tmp_path / "cache", token_bytes, host_bytes)
    assert first.ask("cold", prompt).num_cached == 0
    if wake_after_s:
        first.be_idle()
    first.end()
    block_bytes = 32 * (token_bytes + 4)
    assert first.most_bytes <= host_bytes + block_bytes
    assert first.store.left_out_bytes == 0
    second = live(tmp_path / "cache", token_bytes, host_bytes)
    assert second.ask("warm", prompt).num_cached >= 8000 - 32
    second.end()


def test_what_the_disk_does_not_take_for_long_gives_way_to_others(tmp_path: Path) -> None:
    life = live(tmp_path / "cache", 2 * KIB, 1 * MIB)
    life.store._folder.state.bytes_per_hour = 100_000
    for seed in range(6):
        life.ask(f"{seed}", prompt_of(400, seed))
        life.be_idle()
    assert life.most_bytes <= 1 * MIB + 32 * (2 * KIB + 4)
    before = life.engine._runner.num_tokens_computed  # type: ignore[attr-defined]
    assert life.ask("again", prompt_of(400, 5)).num_cached >= 368
    assert life.engine._runner.num_tokens_computed - before <= 34  # type: ignore[attr-defined]
    life.end()
