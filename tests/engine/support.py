"""An engine on a fake runner, greedy samplers, and what a plain loop would generate."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.media_tokens import media_tokens
from edgeagent.engine.runner import Chunk, ChunkRows, Positions, Rows, Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import InternalError
from edgeagent.types import FinishReason, MemoryKind, SamplingParams
from tests.fakes import ALWAYS, FakeClock, FakeRunner, FakeTier, next_token, rows_of, warm_costs
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
    **options: Any,
) -> Engine:
    """Make an engine that predicts `batch_s` seconds for a full batch. `options` are the engine's own."""
    can_cut = runner.memory_kind is MemoryKind.FULL_ATTENTION
    blocks = BlockTable(Keyring(b"fake", b"s" * 32), host_bytes, below, can_cut=can_cut)
    costs = warm_costs(runner.max_batch, batch_s)
    drafters = None
    if draft is not None:
        keyring = Keyring(b"fake draft", b"s" * 32)
        kept = BlockTable(keyring, host_bytes // 4, below, can_cut=True, block_tokens=64, is_draft=True)
        drafters = Drafters(DraftModel(draft, PrefixStore(draft, kept)), max_tokens=4, planning_share=ALWAYS)
    prefixes = PrefixStore(runner, blocks, costs)
    return Engine(runner, max_running=max_running, drafters=drafters, prefixes=prefixes, **options)


class BatchSizes(FakeRunner):
    """Records the size of each batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sizes: list[int] = []

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self.sizes.append(sum(len(part.tokens) for part in slices))
        super().decode(slices)


KEYS = (b"first", b"second", b"third")


@dataclass
class FakeEmbeddings:
    """Embeddings that are there after some calls of `take`, or that cannot be computed."""

    rows: Rows
    num_calls: int = 0
    error: InternalError | None = None
    num_waits: int = field(default=0, init=False)
    is_asked: bool = field(default=False, init=False)

    def take(self) -> Rows | None:
        self.is_asked = True
        if self.error is not None:
            raise self.error
        self.num_calls -= 1
        return None if self.num_calls >= 0 else self.rows

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1


def positions_of(chunk: Items[int]) -> Positions:
    """Return positions that a FakeRunner knows as those of a whole chunk."""
    return np.array([np.zeros(len(chunk)), np.arange(len(chunk)), np.arange(len(chunk))], np.int32)


def begin_of(prompt: Items[int], spans: Items[MediaSpan], length: int) -> tuple[list[int], list[MediaSpan]]:
    """Return the first `length` tokens of a prompt and their spans. The prompt ends with text: with less if need be."""
    cut = next((span.start for span in spans if span.start < length <= span.end), length)
    again = [
        replace(span, embeddings=FakeEmbeddings(rows_of(prompt[span.start : span.end])))
        for span in spans
        if span.end <= cut
    ]
    return list(prompt[:cut]), again


def prompt_of(rng: random.Random, chunk_tokens: int) -> tuple[list[int], list[MediaSpan]]:
    """Return a prompt of few different parts, so that prompts share prefixes that end in media, and its spans."""
    tokens, spans = [rng.randrange(1, 3)], list[MediaSpan]()
    for _ in range(rng.randrange(1, 4)):
        key, form = rng.choice(KEYS), rng.choice(("in parts", "whole", "of one position"))
        chunk = media_tokens(key, chunk_tokens, is_whole=form == "whole", is_one=form == "of one position")
        embeddings = FakeEmbeddings(rows_of(chunk), rng.choice((0, 0, 3)))
        positions = positions_of(chunk) if form == "of one position" else None
        end = len(tokens) + len(chunk)
        spans.append(MediaSpan(len(tokens), end, embeddings, form != "whole", positions, len(chunk) // 2))
        tokens += chunk
        tokens += rng.choice(([7], [7, 8, 9], list(range(20, 40))))
    return tokens, spans


class FakeSide:
    """A context that computes a chunk at once each time it is resumed, and fails after `num_chunks`.

    It pauses by itself after `window_s`.
    """

    window_s = math.inf

    def __init__(
        self,
        tokens: Items[int],
        num_known: int,
        chunk: int,
        num_chunks: int,
        clock: FakeClock,
        media: ChunkRows | None = None,
        kind: MemoryKind = MemoryKind.FULL_ATTENTION,
    ) -> None:
        self.media = media
        self.clock, self.paused_s = clock, math.inf
        self.tokens, self.num_known, self.chunk = list(tokens), num_known, chunk
        self.runner = FakeRunner(num_cells=2000, max_batch=512, memory_kind=kind)
        self.runner.place_media(0, () if media is None else media.stretches)
        self.num_left = num_chunks
        self.chunks: list[Chunk] = []
        self.is_over = self.is_closed = False
        self.num_bytes = 1 << 20
        self.is_running = False
        self.events: list[str] = []

    def give(self, chunk: Chunk) -> None:
        assert self.runner.restore(0, chunk.payload, chunk.end)

    def resume(self, until_s: float = math.inf) -> None:
        assert not self.is_closed
        assert until_s > self.clock()
        self.paused_s = min(until_s, self.clock() + self.window_s)
        self.events.append("resume")
        self.is_running = True
        start = self.runner.length(0)
        if start < self.num_known or self.is_over:
            return
        if not self.num_left:
            self.is_over = True
            return
        self.num_left -= 1
        media = self.media
        end = len(self.tokens) if media is not None and media.is_one else min(start + self.chunk, len(self.tokens))
        part = Slice(0, start, self.tokens[start:end], 0)
        if media is not None:
            rows = media.rows[start - self.num_known : end - self.num_known]
            part = part._replace(rows=rows, is_causal=media.is_causal, positions=media.positions)
        self.runner.decode([part])
        self.chunks.append(Chunk(end - start, end, self.runner.save(0, start, end)))
        self.is_over = end == len(self.tokens)

    def pause(self) -> None:
        self.events.append("pause")
        self.is_running = False

    def wait_paused(self, timeout_s: float) -> bool:
        if not self.is_running:  # the step before was interrupted, so the engine has not resumed it
            return True
        self.clock.advance(max(0.0, min(timeout_s, self.paused_s - self.clock())))
        return self.clock() >= self.paused_s

    def wait(self, timeout_s: float) -> None:
        assert self.is_running

    def take(self) -> list[Chunk]:
        taken, self.chunks = self.chunks, []
        return taken

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class SlowRunner(FakeRunner):
    """A runner whose steps take 10 ms, plus 5 ms per token below 64 tokens; checks that side contexts are paused."""

    def __init__(self, clock: FakeClock, sides: list[FakeSide], **options: Any) -> None:
        super().__init__(**({"num_cells": 2000, "max_batch": 512, "end_token": -1} | options))
        self.clock, self.sides = clock, sides
        self.sizes: list[int] = []
        self.true_s = step_s

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        assert not any(side.is_running for side in self.sides if not side.is_closed)
        size = sum(len(part.tokens) for part in slices)
        self.sizes.append(size)
        self.clock.advance(self.true_s(size))
        super().decode(slices)


def step_s(size: int) -> float:
    return 0.01 + size * (0.005 if size < 64 else 0.002)
