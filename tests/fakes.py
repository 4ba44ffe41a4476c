"""The few fakes that several packages' tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edgeagent.engine.cache.block import (
    Block,
    BlockKey,
    DiskResult,
    Found,
    Gone,
    Importance,
    Loaded,
    Payload,
    Purged,
    Written,
)
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.media_tokens import cut_before_media, is_medium
from edgeagent.engine.runner import CUTTABLE, DecodeCancelled, Logits, OutOfCells, Rows, Slice, Stretch
from edgeagent.types import MemoryKind

ALWAYS = 1e9
"""As a planning share (Drafters): drafts are planned in each step, although a fake's steps take almost no time."""


def next_token(prefix: Sequence[int], num_vocab: int) -> int:
    """Return the token that a FakeRunner predicts after a prefix: a fixed function of the whole prefix.

    Tokens that an adapter computed have other numbers in `prefix`, see `computed`.
    """
    digest = hashlib.blake2b(np.asarray(prefix, np.int32).tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % num_vocab


def computed(token: int, adapter: str) -> int:
    """Return what a FakeRunner's cell holds for a token; it depends on the adapter that computed it."""
    return token + 1000 * (1 + int(adapter, 16)) if adapter else token


SHIFTED = 1 << 20
"""A FakeRunner's cell that was moved holds its token plus this number: it is not the cell of an exact prompt."""


def rows_of(numbers: Iterable[int]) -> Rows:
    """Return embeddings that a FakeRunner knows as those of a chunk with these numbers."""
    return np.array([[number % 4096] for number in numbers], np.float32)


def check_media(slices: Sequence[Slice], *, can_mix: bool) -> None:
    """Check the rules for a batch with embeddings; see Slice."""
    media = [part for part in slices if any(map(is_medium, part.tokens))]
    assert all(part.rows is None for part in slices if part not in media)
    for part in media:
        assert len(slices) == 1 or (can_mix and len(media) == 1 and part.is_causal)
        assert all(map(is_medium, part.tokens)) and not part.num_logits and not part.num_drafts
        assert part.rows is not None and np.array_equal(part.rows, rows_of(part.tokens))
        if not part.is_causal:
            assert cut_before_media(part.tokens, len(part.tokens) - 1) == 0, "a whole chunk was cut"


class FakeRunner:
    """A runner whose next token is a fixed function of the prefix, and which detects misuse of its memory."""

    def __init__(
        self,
        *,
        num_vocab: int = 50,
        num_cells: int = 256,
        num_sequences: int = 8,
        max_batch: int = 64,
        max_outputs: int = 64,
        memory_kind: MemoryKind = MemoryKind.FULL_ATTENTION,
        end_token: int = 0,
        max_rewind: int | None = None,
    ) -> None:
        """`max_rewind` is how many draft tokens a memory that is a state can take back."""
        self.memory_kind = memory_kind
        self.max_rewind = (max_rewind or 0) if memory_kind not in CUTTABLE else max_batch
        self._num_revocable: dict[int, int] = {}
        self.num_vocab = num_vocab
        self.num_cells = num_cells
        self.num_sequences = num_sequences
        self.max_batch = self.max_whole = max_batch
        self.max_outputs = max_outputs
        self.max_branches = 5 if memory_kind is MemoryKind.FULL_ATTENTION else 1
        self.row_cost = 0.5
        self.min_prompt_chunk = 1
        self.attention_tile = 0
        self.least_tokens: list[int] = []  # of each batch
        self._end_token = end_token
        self._sequences: dict[int, list[int]] = {seq_id: [] for seq_id in range(num_sequences)}
        self._stretches: dict[int, tuple[Stretch, ...]] = {}
        self._parts: dict[int, list[int]] = {}  # of a stretch that is not computed to its end
        self._outputs: list[Logits] = []
        self._adapter = ""
        self.adapters_used: list[str] = []
        self.cancel_next: int | None = None  # compute this many slices of the next batch, then cancel it
        self.refuse_next = False
        self.max_slices = max_batch  # a batch of more slices finds no cells
        self.refuse_restores = False
        self.num_tokens_computed = 0
        self.num_decodes = self.num_aborts = self.num_graphs_reused = 0
        self.is_blocking = True
        self.can_shift = self.can_mix = False

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        self.decode(slices, min_tokens)

    def wait(self) -> None: ...

    def request_abort(self) -> None:
        self.num_aborts += 1

    def clear_abort(self) -> None: ...

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        assert slices
        self.least_tokens.append(min_tokens)
        assert 0 < sum(len(part.tokens) for part in slices) <= self.max_batch
        assert len({part.seq_id for part in slices}) == len(slices)
        assert sum(part.num_logits for part in slices) <= self.max_outputs
        assert sum(part.places[0].end for part in slices if part.places) <= self.max_branches
        check_media(slices, can_mix=self.can_mix)
        if self.refuse_next:
            self.refuse_next = False
            raise OutOfCells
        if len(slices) > self.max_slices:
            raise OutOfCells
        self._outputs = []
        self.num_decodes += 1
        self._num_revocable = {part.seq_id: min(part.num_drafts, self.max_rewind) for part in slices}
        for index, part in enumerate(slices):
            if self.cancel_next is not None and index >= self.cancel_next:
                self.cancel_next = None
                raise DecodeCancelled
            held = self._sequences[part.seq_id]
            assert part.start == len(held), f"sequence {part.seq_id} holds {len(held)} positions, got {part.start}"
            if part.positions is not None:
                self._compute_part(part)
                continue
            assert part.seq_id not in self._parts, "text is computed within a stretch"
            first_logits = len(part.tokens) - part.num_logits
            branches = [list(held) for _ in range(part.places[0].end if part.places else 0)]
            for offset, (token, place) in enumerate(zip(part.tokens, part.places, strict=False)):
                before = branches[place.first]
                for branch in reversed(branches[place.first : place.end]):
                    assert len(branch) == part.start + place.depth and branch == before
                    branch.append(computed(int(token), self._adapter))
                self.num_tokens_computed += 1
                if offset >= first_logits:
                    self._outputs.append(self._logits_after(before))
            if part.places:
                continue
            for offset, token in enumerate(part.tokens):
                held.append(computed(int(token), self._adapter))
                self.num_tokens_computed += 1
                if offset >= first_logits:
                    self._outputs.append(self._logits_after(held))
        if self.cancel_next is not None:
            self.cancel_next = None
            raise DecodeCancelled

    def _compute_part(self, part: Slice) -> None:
        """Compute a part of a stretch, whose second positions count from 0."""
        assert part.positions is not None
        held, done = self._sequences[part.seq_id], self._parts.setdefault(part.seq_id, [])
        assert part.positions[1].tolist() == [*range(len(done), len(done) + len(part.tokens))]
        done += [computed(int(token), self._adapter) for token in part.tokens]
        self.num_tokens_computed += len(part.tokens)
        if part.start + len(done) == self._stretch_at(part.seq_id).end:
            held += self._parts.pop(part.seq_id)

    def _stretch_at(self, seq_id: int) -> Stretch:
        """Return the stretch that begins where a sequence ends."""
        start = len(self._sequences[seq_id])
        return next(each for each in self._stretches[seq_id] if each.start == start)

    def place_media(self, seq_id: int, stretches: Sequence[Stretch]) -> None:
        self._stretches[seq_id] = tuple(stretches)

    def use_adapter(self, adapter: str) -> None:
        self._adapter = adapter
        self.adapters_used.append(adapter)

    def logits(self, index: int) -> Logits:
        return self._outputs[index]

    def all_logits(self) -> Logits:
        return np.stack([self.logits(index) for index in range(len(self._outputs))])

    def can_trim(self, seq_id: int, length: int) -> bool:
        held = self.length(seq_id)
        if length >= held:
            return length == held
        return self.memory_kind is MemoryKind.FULL_ATTENTION or length == 0

    def trim(self, seq_id: int, length: int) -> bool:
        if not self.can_trim(seq_id, length):
            return False
        del self._sequences[seq_id][length:]
        self._parts.pop(seq_id, None)
        return True

    def rewind(self, seq_id: int, length: int) -> bool:
        if self.memory_kind in CUTTABLE:
            return self.trim(seq_id, length)
        held = self._sequences[seq_id]
        if seq_id in self._parts or not 0 < len(held) - length <= self._num_revocable.pop(seq_id, 0):
            return False
        del held[length:]
        return True

    def clear(self, seq_id: int) -> None:
        self._sequences[seq_id].clear()
        self._parts.pop(seq_id, None)
        self._stretches.pop(seq_id, None)

    def copy(self, source: int, target: int, length: int) -> bool:
        assert not self._sequences[target], "the target of a copy must be empty"
        if not self.can_trim(source, length):
            return False
        self._sequences[target] = self._sequences[source][:length]
        return True

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        held = self.length(seq_id)
        return end == held or (end < held and self.memory_kind is MemoryKind.FULL_ATTENTION)

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        assert self.can_save(seq_id, start, end)
        # A state depends on everything before `end`; the cells of attention hold their own tokens only.
        held = self._sequences[seq_id]
        kept = held[start:end] if self.memory_kind is MemoryKind.FULL_ATTENTION else held[:end]
        return memoryview(np.asarray([start, end, *kept], np.int32).tobytes())

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        return False

    def state_bytes(self, seq_id: int) -> int:
        return 0 if self.memory_kind is MemoryKind.FULL_ATTENTION else 4 * len(self._sequences[seq_id])

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        start, stop, *kept = np.frombuffer(payload, np.int32).tolist()
        held = self._sequences[seq_id]
        if self.refuse_restores or stop != end:
            return False
        assert len(held) == start, f"sequence {seq_id} holds {len(held)} positions, the block begins at {start}"
        if self.memory_kind is MemoryKind.FULL_ATTENTION:
            held.extend(kept)
        else:
            held[:] = kept
        return True

    def restore_shifted(self, seq_id: int, payload: Payload, end: int, wanted: range, shift: int) -> bool:
        assert self.can_shift
        start, stop, *kept = np.frombuffer(payload, np.int32).tolist()
        held = self._sequences[seq_id]
        if self.refuse_restores or stop != end:
            return False
        assert len(held) == wanted.start + shift, "moved cells must begin at the end of the sequence"
        held.extend(SHIFTED + token for token in kept[wanted.start - start : wanted.stop - start])
        return True

    def apply_shift(self) -> None:
        assert self.can_shift

    def length(self, seq_id: int) -> int:
        return self._stretch_at(seq_id).end if seq_id in self._parts else len(self._sequences[seq_id])

    def is_end(self, token: int) -> bool:
        return token == self._end_token

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        logits[next_token(prefix, self.num_vocab)] = 10.0
        return logits


class AsynchronousRunner(FakeRunner):
    """A runner that computes a batch when it is waited for. Until then it lets nobody touch the batch's sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_blocking = False
        self.submitted: Sequence[Slice] | None = None

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        assert self.submitted is None
        if self.refuse_next or len(slices) > self.max_slices:
            self.refuse_next = False
            raise OutOfCells
        self.submitted = [part._replace(tokens=list(part.tokens)) for part in slices]

    def wait(self) -> None:
        assert self.submitted is not None
        slices, self.submitted = self.submitted, None
        super().decode(slices)

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        self.submit(slices, min_tokens)
        self.wait()

    def logits(self, index: int) -> Logits:
        assert self.submitted is None, "the logits of the last batch are gone"
        return super().logits(index)

    def trim(self, seq_id: int, length: int) -> bool:
        self._check_free(seq_id)
        return super().trim(seq_id, length)

    def rewind(self, seq_id: int, length: int) -> bool:
        self._check_free(seq_id)
        return super().rewind(seq_id, length)

    def clear(self, seq_id: int) -> None:
        self._check_free(seq_id)
        super().clear(seq_id)

    def copy(self, source: int, target: int, length: int) -> bool:
        self._check_free(source)
        self._check_free(target)
        return super().copy(source, target, length)

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        self._check_free(seq_id)
        return super().restore(seq_id, payload, end)

    def _check_free(self, seq_id: int) -> None:
        assert all(part.seq_id != seq_id for part in self.submitted or ()), f"sequence {seq_id} is being computed"


def warm_costs(max_batch: int, batch_s: float = 0.0) -> CostModel:
    """Return what a warm-up measures: `batch_s` for a full batch, and at most a millisecond for a token."""
    costs = CostModel(max_batch)
    costs.observe(StepShape.alone(1, 0), min(batch_s, 0.001))
    costs.observe(StepShape.alone(max_batch, 0), batch_s)
    return costs


class FakeClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class FakeTier:
    """A disk without a size limit that writes at once; `lost` keys are found but cannot be read, as if damaged."""

    def __init__(self) -> None:
        self.offered: list[tuple[Block, Importance]] = []
        self.blocks: dict[BlockKey, Block] = {}
        self.lost: set[BlockKey] = set()
        self.num_reads = 0
        self.max_pending_bytes = 0
        self.is_slow = False
        """Whether reads take until this is reset."""
        self._told: dict[BlockKey, Block] = {}  # the blocks whose engine knows that they are here
        self._results: dict[bool, list[DiskResult]] = {False: [], True: []}
        self._reads: list[tuple[BlockKey, bool]] = []

    @property
    def is_stalled(self) -> bool:
        return False

    @property
    def read_bytes_per_s(self) -> float:
        return 0.0

    def take_results(self, max_results: int, *, is_draft: bool = False, timeout_s: float = 0.0) -> list[DiskResult]:
        """Return what happened, and what tests changed in `blocks`."""
        if not self.is_slow:
            for key, each in self._reads:
                self._results[each].append(Loaded(key, self._read(key)))
            self._reads.clear()
        self._results[is_draft], results = [], self._results[is_draft]
        for key, block in tuple(self._told.items()):
            if key not in self.blocks and block.is_draft is is_draft:
                results.append(Gone(key))
                del self._told[key]
        found = [each for key, each in self.blocks.items() if key not in self._told and each.is_draft is is_draft]
        for block in sorted(found, key=lambda block: block.start):
            self._told[block.key] = block
            results.append(Found(block, block.num_bytes))
        return results

    def write(self, block: Block, importance: Importance, *, is_full: bool) -> None:
        assert block.parent == block.root or block.parent in self.blocks, "parents are written first"
        self.offered.append((block, importance))
        self.blocks[block.key] = self._told[block.key] = block
        self._results[block.is_draft].append(Written(block, block.num_bytes))

    def withdraw(self, key: BlockKey) -> None:
        pass

    def raise_importance(self, key: BlockKey, importance: Importance) -> None:
        if key in self.blocks:
            self.offered.append((self.blocks[key], importance))

    def touch(self, keys: Iterable[BlockKey]) -> None:
        pass

    def read(self, key: BlockKey, *, is_draft: bool = False) -> None:
        self._reads.append((key, is_draft))

    def _read(self, key: BlockKey) -> Block | None:
        self.num_reads += 1
        if key in self.lost:
            self.blocks.pop(key, None)
        return self.blocks.get(key)

    def remove(self, key: BlockKey) -> None:
        self.blocks.pop(key, None)
        self._told.pop(key, None)

    def purge(self, root: BlockKey | None, *, is_draft: bool = False) -> None:
        for key in [key for key, block in self.blocks.items() if root in (None, block.root)]:
            self.remove(key)
        self._results[is_draft].append(Purged(root))

    def call_back(self, done: Callable[[], None]) -> None:
        done()

    def hurry(self) -> bool:
        return True

    def close(self) -> None:
        self._told.clear()  # the next process that opens it knows nothing
        self._reads.clear()
        self._results = {False: [], True: []}
