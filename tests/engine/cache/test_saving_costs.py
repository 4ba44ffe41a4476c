"""Saving a long context costs as much per token as saving a short one; measured as counted work, not as time."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.cache.block import BlockKey, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import SequenceSpec
from tests.engine.support import greedy
from tests.fakes import FakeClock, FakeRunner, FakeTier

BLOCK_TOKENS = 32


class Counting(Keyring):
    """Counts the tokens hashed for keys."""

    num_hashed = 0

    def key(self, parent: BlockKey, tokens: Items[int]) -> BlockKey:
        self.num_hashed += len(tokens)
        return super().key(parent, tokens)


class Quick(FakeRunner):
    """A fake whose logits depend on the last token only, so that long prefixes cost no time."""

    def _logits_after(self, prefix: list[int]):  # type: ignore[no-untyped-def]
        return super()._logits_after(prefix[-1:])


class Long:
    """One long context on a runner that costs nothing; counts tokens hashed and tokens copied out of the cells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
        self.num_copied = 0
        self.keys = Counting(b"fake", b"s" * 32)
        below = FakeTier()
        blocks = BlockTable(self.keys, 1 << 30, below, can_cut=True, block_tokens=BLOCK_TOKENS)
        runner = Quick(num_cells=2 * length + 600, max_batch=512, end_token=-1)
        monkeypatch.setattr(runner, "save", lambda seq_id, start, end: memoryview(bytes(8)))
        self.engine = Engine(
            runner, max_running=2, prefixes=PrefixStore(runner, blocks, clock=FakeClock()), clock=FakeClock()
        )
        tokens = Slots.tokens

        def counted(cells: Slots, *where: int) -> array[int]:
            found = tokens(cells, *where)
            self.num_copied += len(found)
            return found

        monkeypatch.setattr(Slots, "tokens", counted)

    def run(self, name: str, prompt: list[int], max_tokens: int) -> tuple[int, int]:
        """Run a request and its background work; return the numbers of tokens hashed and copied for saving it."""
        before = self.keys.num_hashed, self.num_copied
        self.engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=max_tokens))
        while self.engine.has_work:
            self.engine.step()
        return self.keys.num_hashed - before[0], self.num_copied - before[1]


@pytest.mark.parametrize("length", [2_000, 8_000, 32_000])
def test_each_token_is_hashed_once_and_copied_a_few_times(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    long = Long(monkeypatch, length)
    prompt = [1 + index * index % 49 + index // 49 % 7 for index in range(length)]
    num_hashed, num_copied = long.run("first", prompt, 300)
    assert length <= num_hashed <= 1.02 * (length + 300)
    assert num_copied <= 4 * (length + 300)
    # The next turn saves only what is new, however long the context already is.
    num_hashed, num_copied = long.run("next", [*prompt, 5, 5], 300)
    assert num_hashed <= 400
    assert num_copied <= 2_000
