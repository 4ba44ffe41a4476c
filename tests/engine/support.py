"""An engine on a fake runner, greedy samplers, and what a plain loop would generate."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.types import FinishReason, MemoryKind, SamplingParams
from tests.fakes import ALWAYS, FakeRunner, FakeTier, next_token, warm_costs
from tests.integrity import check_integrity

END = 0
GREEDY = SamplingParams(
    temperature=0.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repeat_penalty=1.0,
    repeat_last_n=0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)


def greedy(num_vocab: int = 50) -> Sampler:
    return Sampler(resolve(SamplingParams(), GREEDY), num_vocab)


def naive(prompt: list[int], max_tokens: int, num_vocab: int = 50) -> tuple[list[int], FinishReason]:
    """Return what a plain loop would generate."""
    tokens, output = list(prompt), list[int]()
    while True:
        token = next_token(tokens, num_vocab)
        if token == END:
            return output, FinishReason.STOP
        output.append(token)
        tokens.append(token)
        if len(output) == max_tokens:
            return output, FinishReason.LENGTH


def run(engine: Engine, check: bool = True) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Step to the end; return each sequence's output."""
    results: dict[str, tuple[list[int], FinishReason | None]] = {}
    collected: dict[str, list[int]] = {}
    for _ in range(100_000):
        if not engine.has_work:
            return results
        for output in engine.step():
            assert output.error is None
            collected.setdefault(output.sequence.id, []).extend(output.tokens)
            if output.finish_reason is not None:
                assert output.sequence.id not in results
                results[output.sequence.id] = (collected[output.sequence.id], output.finish_reason)
        if check:
            check_integrity(engine)
    raise AssertionError("the engine does not come to an end")


def make_engine(
    runner: FakeRunner,
    *,
    max_running: int = 4,
    draft: FakeRunner | None = None,
    host_bytes: int = 0,
    below: FakeTier | None = None,
    batch_s: float = 0.0,
) -> Engine:
    """Make an engine that predicts `batch_s` seconds for a full batch."""
    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    blocks = BlockTable(Keyring(b"fake", b"s" * 32), host_bytes, below, can_cut=can_cut)
    costs = warm_costs(runner.max_batch, batch_s)
    drafters = None
    if draft is not None:
        keyring = Keyring(b"fake draft", b"s" * 32)
        kept = BlockTable(keyring, host_bytes // 4, below, can_cut=True, block_tokens=64, is_draft=True)
        drafters = Drafters(DraftModel(draft, PrefixStore(draft, kept)), max_tokens=4, planning_share=ALWAYS)
    prefixes = PrefixStore(runner, blocks, costs)
    return Engine(runner, max_running=max_running, drafters=drafters, prefixes=prefixes)


class BatchSizes(FakeRunner):
    """Records the size of each batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sizes: list[int] = []

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self.sizes.append(sum(len(part.tokens) for part in slices))
        super().decode(slices)
