"""Drafts for memories that are a state, on real llama.cpp: with any drafts, answers equal those of a plain loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import make_table
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation import proposals
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.types import replace
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integration.naive import EXACT_FLOOR, FLOOR, Asked, Naive, Recorder, check
from tests.integrity import check_integrity
from tests.nemotron import make_nemotron
from tests.peer.shelf import TWINS, make_model

FAMILIES = ("qwen3.5-0.8b", "lfm2-350m", "nemotron-h")
DEPTH = 4
MAX_TOKENS = 20
F16 = EngineConfig(threads=1, batch=48, parallel=4, ctx=768, flash_attention="on")
EXACT = replace(F16, kv_type_k="f32", kv_type_v="f32", flash_attention="off")
CONFIGS = {"f32": EXACT, "f16": F16}
# Each type of cells and number of streams once; the slow tests have every combination.
_ALWAYS = {("right", "f16", 1), ("mixed", "f32", 4)}
CASES = [
    pytest.param(
        rule,
        CONFIGS[cells],
        parallel,
        id=f"{rule}-{cells}-{parallel}",
        marks=[] if (rule, cells, parallel) in _ALWAYS else [pytest.mark.slow(seconds=3)],
    )
    for rule in ("right", "wrong", "mixed")
    for cells in CONFIGS
    for parallel in (1, 4)
]
SECRET = b"s" * 32
TOKENS = [20 + 7 * i % 200 for i in range(40)]
WRONG = [7] * DEPTH
Row = NDArray[np.float32]


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hybrid") / "m.gguf"
    return make_model(file, TWINS[request.param], "F32") if request.param in TWINS else make_nemotron(file)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    made = Model(path, EXACT)
    yield made
    made.close()


@pytest.fixture
def runner(model: Model) -> Iterator[LlamaRunner]:
    made = LlamaRunner(model, EXACT, max_rewind=DEPTH)
    assert made.max_rewind == DEPTH
    yield made
    made.close()


def feed(runner: LlamaRunner, seq_id: int, start: int, tokens: list[int]) -> Row:
    runner.decode([Slice(seq_id, start, tokens, 1)])
    return runner.logits(0).copy()


def check_same(row: Row, expected: Row) -> None:
    np.testing.assert_allclose(row, expected, atol=EXACT_FLOOR)


class TestRewind:
    """The runner alone."""

    @pytest.mark.parametrize("num_accepted", range(DEPTH + 1))
    def test_any_number_of_drafts_is_taken_back(self, runner: LlamaRunner, num_accepted: int) -> None:
        end = 20 + num_accepted + 1
        feed(runner, 1, 0, TOKENS[:end])
        expected = feed(runner, 1, end, TOKENS[end : end + 1])
        feed(runner, 0, 0, TOKENS[:20])
        drafts = [*TOKENS[21:end], *WRONG][:DEPTH]
        runner.decode([Slice(0, 20, [TOKENS[20], *drafts], 1 + DEPTH, DEPTH)])
        assert num_accepted == DEPTH or runner.rewind(0, end)
        assert runner.length(0) == end
        check_same(feed(runner, 0, end, TOKENS[end : end + 1]), expected)

    def test_nothing_else_is_taken_back(self, runner: LlamaRunner) -> None:
        feed(runner, 0, 0, TOKENS[:20])
        assert not runner.rewind(0, 19), "no drafts"
        runner.decode([Slice(0, 20, [TOKENS[20], *WRONG[:2]], 3, 2)])
        assert not runner.rewind(0, 20), "the token before the drafts has left no state"
        runner.decode([Slice(0, 23, [TOKENS[23], *WRONG[:2]], 3, 2)])
        assert runner.rewind(0, 25)
        assert not runner.rewind(0, 24), "a second time"
        runner.decode([Slice(0, 25, [5, *WRONG[:2]], 3, 2)])
        feed(runner, 1, 0, TOKENS[:3])
        assert not runner.rewind(0, 26), "another batch came between"
        assert runner.length(0) == 28

    def test_what_was_cut_is_copied_saved_and_restored(self, runner: LlamaRunner) -> None:
        feed(runner, 5, 0, TOKENS[:22])
        expected = feed(runner, 5, 22, TOKENS[22:30])
        feed(runner, 0, 0, TOKENS[:20])
        saved = bytes(runner.save(0, 0, 20))
        for action in ("copy", "save", "restore", "go on beside others"):
            for seq_id in range(5):
                runner.clear(seq_id)
            assert runner.restore(0, saved, 20)
            feed(runner, 1, 0, TOKENS[:7])
            runner.decode([Slice(0, 20, [TOKENS[20], TOKENS[21], *WRONG[:2]], 4, 3)])
            assert runner.rewind(0, 22)
            match action:
                case "copy":
                    assert runner.copy(0, 2, 22)
                    check_same(feed(runner, 2, 22, TOKENS[22:30]), expected)
                case "save":
                    payload = bytes(runner.save(0, 20, 22))
                    assert runner.restore(2, saved, 20)
                    assert runner.restore(2, payload, 22)
                    check_same(feed(runner, 2, 22, TOKENS[22:30]), expected)
                case "restore":
                    feed(runner, 3, 0, TOKENS[:30])
                    beyond = bytes(runner.save(3, 22, 30))
                    assert runner.restore(0, beyond, 30)
                    check_same(feed(runner, 0, 30, TOKENS[30:33]), feed(runner, 3, 30, TOKENS[30:33]))
                    continue
                case _:
                    runner.decode([Slice(4, 0, TOKENS[:9], 0), Slice(1, 7, TOKENS[7:20], 0)])
            check_same(feed(runner, 0, 22, TOKENS[22:30]), expected)

    @pytest.mark.parametrize("num_drafts", [(DEPTH, 0, 0), (DEPTH, 1, 1), (1, DEPTH, DEPTH), (2, 2, 2)])
    def test_what_is_computed_behind_drafts_moves_no_state(
        self, runner: LlamaRunner, num_drafts: tuple[int, ...]
    ) -> None:
        """In one call llama.cpp would compute the middle sequence first, and then move its state for the others."""
        for seq_id in range(3):
            feed(runner, seq_id, 0, TOKENS[:10])
        order = dict(zip((1, 0, 2), num_drafts, strict=True))
        runner.decode([Slice(each, 10, [TOKENS[10], *WRONG[:count]], 1, count) for each, count in order.items()])
        for seq_id, count in order.items():
            assert not count or runner.rewind(seq_id, 11)
        rows = [feed(runner, seq_id, 11, TOKENS[11:12]) for seq_id in range(3)]
        expected = feed(runner, 5, 0, TOKENS[:12])
        for row in rows:
            check_same(row, expected)

    def test_drafts_of_different_lengths_beside_prompts(self, runner: LlamaRunner) -> None:
        lengths = {0: 1, 1: 4, 2: 2, 3: 0}
        for seq_id in lengths:
            feed(runner, seq_id, 0, TOKENS[: 10 + seq_id])
        rng = random.Random(1)
        for _ in range(4):
            order = rng.sample(sorted(lengths), len(lengths))
            slices = []
            for seq_id in order:
                start = runner.length(seq_id)
                tokens = [TOKENS[start], *WRONG[: lengths[seq_id]]]
                slices.append(Slice(seq_id, start, tokens, len(tokens), lengths[seq_id]))
            slices.append(Slice(4, runner.length(4), TOKENS[:9], 1))
            runner.decode(slices)
            assert runner.logits(0) is not None
            for part in slices[:-1]:
                assert not part.num_drafts or runner.rewind(part.seq_id, part.start + 1)
        for seq_id in lengths:
            length = runner.length(seq_id)
            assert length == 14 + seq_id
            row = feed(runner, seq_id, length, TOKENS[length : length + 1])
            runner.clear(5)
            check_same(row, feed(runner, 5, 0, TOKENS[: length + 1]))

    def test_rows_are_in_the_order_of_the_batch(self, runner: LlamaRunner) -> None:
        for seq_id in range(3):
            feed(runner, seq_id, 0, TOKENS[: 10 + seq_id])
        slices = [
            Slice(0, 10, TOKENS[10:13], 3, 2),
            Slice(1, 11, TOKENS[11:12], 1),
            Slice(2, 12, TOKENS[12:16], 4, 3),
        ]
        runner.decode(slices)
        rows = [runner.logits(index).copy() for index in range(8)]
        for part in slices:
            for end in range(part.start + 1, part.start + len(part.tokens) + 1):
                runner.clear(5)
                check_same(rows.pop(0), feed(runner, 5, 0, TOKENS[:end]))


class Watched(LlamaRunner):
    """Asserts that every rewind succeeds; otherwise the engine would compute whole prompts again."""

    def rewind(self, seq_id: int, length: int) -> bool:
        was_cut = super().rewind(seq_id, length)
        assert was_cut
        return was_cut


class Oracle:
    """Knows a model's greedy answers, and drafts them right, wrong or mixed."""

    def __init__(self, model: Model, config: EngineConfig, rule: str) -> None:
        self._runner = LlamaRunner(model, config)
        self._rule, self._random = rule, random.Random(3)
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def guess(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Return `count` tokens that may follow a sequence's."""
        prompt = tuple(sequence.tokens[: sequence.num_prompt])
        if prompt not in self._answers:
            self._answers[prompt] = self._answer(list(prompt))
        right = [*self._answers[prompt][sequence.num_output :], *[5] * count][:count]
        rules: dict[str, Callable[[], bool]] = {"right": lambda: True, "wrong": lambda: False}
        is_right = rules.get(self._rule, lambda: self._random.random() < 0.7)
        return tuple(token if is_right() else (token + self._random.randrange(1, 200)) % 250 for token in right)

    def _answer(self, prompt: list[int]) -> list[int]:
        self._runner.clear(0)
        for start in range(0, len(prompt), 32):
            row = feed(self._runner, 0, start, prompt[start : start + 32])
        answer = [int(row.argmax())]
        while len(answer) < MAX_TOKENS:
            answer.append(int(feed(self._runner, 0, self._runner.length(0), answer[-1:]).argmax()))
        return answer

    def close(self) -> None:
        self._runner.close()


class Guesses(DraftModel):
    """Drafts the oracle's tokens."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(FakeRunner(num_vocab=512, num_cells=4096, end_token=-1))
        self._oracle = oracle

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        return {sequence.id: self._oracle.guess(sequence, count) for sequence, count in counts if count}


class Found(NgramDrafter):
    """Finds the oracle's tokens as n-grams, in some steps."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__()
        self._oracle, self._random = oracle, random.Random(5)

    def find(self, sequence: Sequence, max_tokens: int) -> tuple[tuple[int, ...], int]:
        return self._oracle.guess(sequence, self._random.randrange(max_tokens + 1)), 6


@pytest.fixture
def _always_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft in each step, whether or not it pays."""
    monkeypatch.setattr(proposals, "allocate", lambda offers, *_: ([len(offer.chances) for offer in offers], 2.0))
    monkeypatch.setattr(DraftModel, "catch_up_s", lambda self, sequence: 0.0)
    monkeypatch.setattr(DraftModel, "can_draft_now", lambda self, sequence: True)


def run(engine: Engine, model: Model, rng: random.Random, known: list[list[int]], num_steps: int) -> list[Asked]:
    """Run a random schedule of prompts with shared prefixes; return the requests that were not cancelled."""
    known.append([rng.randrange(10, 250) for _ in range(60)])
    asked: dict[str, Asked] = {}
    step = 0
    while step < num_steps or engine.has_work:
        if step < num_steps and rng.random() < 0.2:
            base = rng.choice(known)
            kept = len(base) if rng.random() < 0.6 else rng.randrange(1, len(base) + 1)
            prompt = [*base[:kept], *(rng.randrange(10, 250) for _ in range(rng.randrange(1, 20)))][-300:]
            name = f"s{step}"
            asked[name] = Asked(prompt, rng.randrange(1, MAX_TOKENS), Recorder(model), [])
            engine.add(
                SequenceSpec(name, prompt, asked[name].recorder, max_tokens=asked[name].max_tokens, boundaries=(kept,))
            )
        if asked and rng.random() < 0.03:
            victim = rng.choice(list(asked))
            if engine.cancel(victim) is not None:
                del asked[victim]
        for output in engine.step():
            assert output.error is None
            name = output.sequence.id
            asked[name].output.extend(output.tokens)
            if output.finish_reason is not None:
                known.append([*asked[name].prompt, *asked[name].output][-280:])
        check_integrity(engine)
        step += 1
    return list(asked.values())


@pytest.mark.daily(3, "nemotron-h-mixed-f32-4", seconds=1)
@pytest.mark.usefixtures("_always_draft")
@pytest.mark.parametrize(("rule", "config", "parallel"), CASES)
def test_whatever_is_drafted_the_answers_stay(path: Path, config: EngineConfig, rule: str, parallel: int) -> None:
    """Two engines, one after another, share the blocks that they save and restore."""
    config = replace(config, cache_memory_bytes=300_000)
    model = Model(path, config)
    naive, oracle, below = Naive(model, config), Oracle(model, config, rule), FakeTier()
    known: list[list[int]] = []
    verified = accepted = 0
    for seed in range(2):
        runner = Watched(model, config, max_rewind=DEPTH)
        blocks = make_table(model.memory_kind, config, Keyring(b"", SECRET), below)
        drafters = Drafters(Guesses(oracle), Found(oracle) if rule == "mixed" else None)
        prefixes = PrefixStore(runner, blocks, clock=FakeClock())
        engine = Engine(runner, max_running=parallel, prefixes=prefixes, drafters=drafters, clock=FakeClock())
        asked = run(engine, model, random.Random(17 + seed), known, 100)
        assert len(asked) > 8
        check(asked, naive, EXACT_FLOOR if config is EXACT else FLOOR)
        counts = engine.proposals.tally.counts()
        verified += sum(sum(count.num_verified) for count in counts)
        accepted += sum(sum(count.num_accepted) for count in counts)
        engine.close()
        runner.close()
    assert verified > 50
    assert {"right": accepted > 0.8 * verified, "wrong": accepted == 0, "mixed": 0.4 < accepted / verified < 0.9}[rule]
    assert below.num_reads > 0
    for each in (naive, oracle, model):
        each.close()


class ShortOfCells(LlamaRunner):
    """Has no cells for the drafts of every third batch, after the rest of the batch was computed."""

    num_refused = num_batches = 0

    def submit(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self._is_later = False
        super().submit(slices, min_tokens)

    def _compute(self, num_tokens: int, min_tokens: int) -> int:
        if self._is_later:
            self.num_batches += 1
            if self.num_batches % 3 == 0:
                self.num_refused += 1
                return 1  # llama_decode's code for no cells
        self._is_later = True
        return super()._compute(num_tokens, min_tokens)


@pytest.mark.usefixtures("_always_draft")
def test_a_batch_of_which_only_a_part_was_computed_is_computed_again(path: Path, model: Model) -> None:
    naive, oracle = Naive(model, EXACT), Oracle(model, EXACT, "mixed")
    runner = ShortOfCells(model, EXACT, max_rewind=DEPTH)
    engine = Engine(runner, max_running=4, drafters=Drafters(Guesses(oracle)), clock=FakeClock())
    check(run(engine, model, random.Random(5), [], 100), naive, EXACT_FLOOR)
    assert runner.num_refused > 3
    for each in (naive, oracle, runner):
        each.close()
