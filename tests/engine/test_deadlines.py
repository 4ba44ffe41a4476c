"""Due times and targets: an engine on a machine whose steps take a known time, over random arrivals."""

from __future__ import annotations

import random
from collections.abc import Sequence as Items
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import FLASH_TILE, CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.scheduler import MAX_STEP_S
from edgeagent.engine.sequence import Rank, Sequence, SequenceSpec
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.router.policy import TARGETS, target_of
from edgeagent.types import GenerateRequest, Tier, TokenPrompt
from tests.engine.support import greedy
from tests.fakes import ALWAYS, FakeClock, FakeRunner, next_token
from tests.integrity import check_integrity

BUDGET_S = 0.1


class Machine(FakeRunner):
    """A runner whose steps take `fixed_s`, `token_s` for each token, and `pair_s` for each pair of attention.

    In steps of at least FLASH_TILE tokens, a pair takes a quarter of `pair_s`, but whole tiles are computed.
    """

    def __init__(self, fixed_s: float, token_s: float, pair_s: float = 0.0) -> None:
        super().__init__(end_token=-1, num_cells=16_384, num_sequences=32, max_batch=512)
        self.clock, self.fixed_s, self.token_s, self.pair_s = FakeClock(), fixed_s, token_s, pair_s
        self.attention_tile = FLASH_TILE if pair_s else 0

    def step_s(self, num_tokens: int, num_pairs: float = 0.0) -> float:
        return self.fixed_s + self.token_s * num_tokens + self.pair_s * num_pairs

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        shape = StepShape.of([(len(part.tokens), part.start) for part in slices], 0)
        num_tokens = max(min_tokens, shape.num_tokens)
        tiled = (shape.num_pairs + shape.num_extra) / 4
        self.clock.advance(self.step_s(num_tokens, shape.num_pairs if num_tokens < FLASH_TILE else tiled))
        super().decode(slices)


class Oracle(NgramDrafter):
    """Drafts what the machine will generate."""

    def find(self, sequence: Sequence, max_tokens: int) -> tuple[tuple[int, ...], int]:
        tokens = sequence.tokens.tolist()
        for _ in range(max_tokens):
            tokens.append(next_token(tokens, 50))
        return tuple(tokens[len(sequence.tokens) :]), 8


class Scene:
    """An engine on a machine, and when each sequence got its tokens."""

    def __init__(
        self,
        *,
        fixed_s: float = 0.02,
        token_s: float = 0.001,
        pair_s: float = 0.0,
        max_running: int = 16,
        drafters: Drafters | None = None,
    ) -> None:
        self.runner = Machine(fixed_s, token_s, pair_s)
        self.clock, costs = self.runner.clock, CostModel(512, self.runner.attention_tile)
        for depth in (0, 300) if pair_s else (0,):
            for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
                pairs = size * depth / (4 if size >= FLASH_TILE else 1)
                costs.observe(StepShape.alone(size, depth), self.runner.step_s(size, pairs))
        prefixes = PrefixStore(self.runner, None, costs, self.clock)
        self.engine = Engine(
            self.runner,
            max_running=max_running,
            itl_budget_s=BUDGET_S,
            drafters=drafters,
            prefixes=prefixes,
            clock=self.clock,
        )
        self.times_s: dict[str, list[float]] = {}
        self.sequences: dict[str, Sequence] = {}

    def add(self, name: str, num_prompt: int, num_output: int = 1, **options: object) -> Sequence:
        """Add a sequence with a prompt that begins like no other one."""
        number = len(self.sequences)
        prompt = [1 + number // 48, 1 + number % 48, *(1 + (7 * number + 3 * each) % 47 for each in range(num_prompt))]
        options.setdefault("target_s", TARGETS[options.get("tier", Tier.INTERACTIVE)].token_s)  # type: ignore[index]
        spec = SequenceSpec(name, prompt[:num_prompt], greedy(), num_output, **options)  # type: ignore[arg-type]
        self.sequences[name] = self.engine.add(spec)
        return self.sequences[name]

    def step(self) -> None:
        for output in self.engine.step():
            assert output.error is None
            self.times_s.setdefault(output.sequence.id, []).extend([self.clock.now_s] * len(output.tokens))

    def run(self, *, until_s: float | None = None) -> None:
        while self.engine.num_live and (until_s is None or self.clock.now_s < until_s):
            self.step()

    def gaps_s(self, name: str) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.times_s[name])]

    def check_answers(self) -> None:
        """Assert that each sequence has exactly the tokens that a plain loop would generate."""
        for sequence in self.sequences.values():
            tokens = list(sequence.spec.prompt)
            while len(tokens) < len(sequence.tokens):
                tokens.append(next_token(tokens, 50))
            assert sequence.tokens.tolist() == tokens, sequence.id


SIZES = st.lists(st.integers(8, 600), min_size=1, max_size=8)


@settings(max_examples=10, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_whatever_can_be_in_time_is_in_time(sizes: list[int], seed: int) -> None:
    """Of prompts that wait together, each is in time if there is any order in which each is."""
    scene, rng = Scene(), random.Random(seed)
    ends_s = list(accumulate(scene.runner.step_s(size) * 1.1 for size in sizes))
    jobs = list(zip(sizes, ends_s, strict=True))
    rng.shuffle(jobs)
    for number, (size, end_s) in enumerate(jobs):
        scene.add(f"{number}", size, due_s=end_s, tier=Tier.INTERACTIVE)
    scene.run()
    for number, (_, end_s) in enumerate(jobs):
        # A chunk of the next prompt may be in the step that ends a prompt.
        assert scene.times_s[f"{number}"][0] <= end_s + scene.runner.step_s(512)


def test_one_that_is_not_due_delays_none_that_can_be_in_time() -> None:
    scene = Scene()
    scene.add("late", 3000)
    scene.add("second", 400, due_s=1.5)
    scene.add("first", 400, due_s=0.9)
    scene.run()
    assert scene.times_s["first"][0] < 0.9 and scene.times_s["second"][0] < 1.5 < scene.times_s["late"][0]


def test_of_late_ones_the_first_that_was_due_is_first() -> None:
    scene = Scene(max_running=1)
    scene.add("b", 400, due_s=0.02)
    scene.add("a", 400, due_s=0.01)
    scene.run()
    assert scene.times_s["a"] < scene.times_s["b"]


def test_a_deadline_before_the_tiers_target_is_due_first() -> None:
    scene = Scene(max_running=1)
    for name, deadline_s in (("two seconds", 2.0), ("one second", 1.0)):
        asked = GenerateRequest(name, "m", TokenPrompt(()), timeout_s=deadline_s)
        scene.add(name, 400, due_s=target_of(asked, TARGETS).first_token_s)
    scene.run()
    assert scene.times_s["one second"] < scene.times_s["two seconds"]


def test_an_answer_that_goes_on_keeps_its_turn_when_it_is_late() -> None:
    scene = Scene()
    resumed = scene.add("resumed", 400, 9, due_s=-5.0, delivered=(3, 4))
    scene.add("new", 400, due_s=10.0)
    scene.step()
    assert resumed.num_computed > 0


def test_a_client_with_short_due_times_does_not_push_out_another_one() -> None:
    scene = Scene()
    for number in range(5):
        scene.add(f"hasty {number}", 200, due_s=2.0 + number, partition="hasty")
    scene.add("patient", 200, due_s=100.0, partition="patient")
    scene.run()
    assert scene.times_s["hasty 0"] == scene.times_s["patient"] < scene.times_s["hasty 1"]


class TestStreams:
    """Streams, each with its target."""

    def test_a_chunk_fits_the_shortest_target(self) -> None:
        for targets_s, most_s in (((0.3, 0.06), 0.06), ((0.3, 0.3), 0.3), ((None, 0.3), BUDGET_S)):
            scene = Scene()
            for number, target_s in enumerate(targets_s):
                scene.add(f"{number}", 10, 1000, token_s=target_s)
            scene.step()
            scene.add("long", 3000)
            while "long" not in scene.times_s:
                scene.step()
            gaps_s = [gap_s for name in ("0", "1") for gap_s in scene.gaps_s(name)]
            assert 0.7 * most_s < max(gaps_s) <= most_s + 0.001

    @pytest.mark.parametrize("tier", [Tier.BATCH, None])
    def test_beside_batch_streams_alone_a_chunk_is_a_whole_batch(self, tier: Tier | None) -> None:
        scene = Scene()
        if tier is not None:
            scene.add("batch", 10, 1000, tier=tier)
            scene.step()
        long = scene.add("long", 3000)
        scene.step()
        assert long.num_computed >= 511

    def test_a_realtime_prompt_takes_longer_steps(self) -> None:
        longest_s = {}
        for target_s in (None, BUDGET_S):
            scene = Scene()
            scene.add("stream", 10, 1000, token_s=target_s)
            scene.step()
            scene.add("now", 700, tier=Tier.REALTIME)
            while "now" not in scene.times_s:
                scene.step()
            longest_s[target_s] = max(scene.gaps_s("stream"))
        assert 0.15 < longest_s[None] <= 0.201, "twice the usual budget"
        assert longest_s[BUDGET_S] <= BUDGET_S + 0.001, "the stream asked for its target"

    def test_where_no_target_can_be_kept_a_realtime_prompt_takes_one_step(self) -> None:
        """As a small model on one slow core: 80 ms for eight streams, 240 ms with a smallest chunk."""
        gaps_s = {}
        for target_s in (None, BUDGET_S):
            scene = Scene(fixed_s=0.0, token_s=0.01)
            for number in range(8):
                scene.add(f"{number}", 4, 1000, token_s=target_s)
            scene.run(until_s=1.0)
            other = scene.add("other", 300)
            scene.step()
            num_computed = other.num_computed
            now = scene.add("now", 64, due_s=scene.clock.now_s + 0.5, tier=Tier.REALTIME)
            scene.step()
            assert (now.num_output == 1) == (target_s is None)
            assert other.num_computed == num_computed, "the longer step is for the realtime prompt alone"
            scene.step()
            gaps_s[target_s] = scene.gaps_s("0")[-1]
        assert 0.6 < gaps_s[None] < 0.75 and 0.2 < gaps_s[BUDGET_S] < 0.25

    def test_beside_a_realtime_prompt_nothing_is_drafted(self) -> None:
        """As SmolLM2 on two cores: 24 accepted drafts of eight streams made two steps of 266 ms before the token."""
        scene = Scene(token_s=0.006, drafters=Drafters(ngrams=Oracle(), planning_share=ALWAYS))
        streams = [scene.add(f"{number}", 4, 3000) for number in range(8)]
        scene.run(until_s=3.0)
        assert streams[0].num_accepted > streams[0].num_output / 2
        for number in range(10):
            now = scene.add(f"now {number}", 40, tier=Tier.REALTIME)
            while not now.num_output:
                before = [stream.num_output for stream in streams]
                scene.step()
                for stream, num_output in zip(streams, before, strict=True):
                    assert stream.num_output <= num_output + 1
            num_accepted = streams[0].num_accepted
            scene.run(until_s=scene.clock.now_s + 1.0)
            assert streams[0].num_accepted > num_accepted
        scene.check_answers()

    @settings(max_examples=15, deadline=None)
    @given(
        num_streams=st.integers(1, 8),
        size=st.integers(20, 300),
        token_s=st.floats(0.0003, 0.004),
        pair_s=st.sampled_from([0.0, 1e-6, 4e-6]),
    )
    def test_a_realtime_prompt_takes_twice_its_time_alone_at_most(
        self, num_streams: int, size: int, token_s: float, pair_s: float
    ) -> None:
        """The streams wait longer than 0.2 s only where they must wait for all of it."""
        scene = Scene(fixed_s=0.015, token_s=token_s, pair_s=pair_s)
        streams = [scene.add(f"{number}", 300, 2000) for number in range(num_streams)]
        while streams[-1].num_output < 20:
            scene.step()
        alone_s, streams_s = scene.runner.step_s(size), scene.gaps_s("0")[-1]
        begun_s = scene.clock.now_s
        now = scene.add("now", size, tier=Tier.REALTIME)
        while not now.num_output:
            scene.step()
        scene.run(until_s=scene.clock.now_s + 0.5)
        assert scene.times_s["now"][0] - begun_s <= 2 * alone_s * 1.05
        at = next(at for at, time_s in enumerate(scene.times_s["0"]) if time_s > begun_s)
        longest_s = max(scene.gaps_s("0")[at - 1 :])
        assert longest_s <= max(0.2, alone_s + streams_s) * 1.1
        scene.check_answers()

    def test_a_realtime_prompt_is_no_part_of_a_step_whose_tile_has_the_cells_of_all(self) -> None:
        """As SmolLM2 on two cores: 70 tokens take 330 ms with the streams, and 111 ms without."""
        scene = Scene(fixed_s=0.015, token_s=0.0015, pair_s=4e-6)
        for number in range(8):
            scene.add(f"{number}", 400, 1000)
        while "7" not in scene.times_s:
            scene.step()
        scene.run(until_s=scene.clock.now_s + 1.0)
        begun_s, num_before = scene.clock.now_s, scene.sequences["0"].num_output
        now, other = scene.add("now", 64, tier=Tier.REALTIME), scene.add("other", 500)
        scene.step()
        assert now.num_output == 1 and scene.clock.now_s - begun_s <= 0.12
        assert scene.sequences["0"].num_output == num_before and other.num_computed <= 1
        scene.step()
        assert scene.sequences["0"].num_output == num_before + 1 and scene.gaps_s("0")[-1] <= 0.2

    def test_beside_a_realtime_prompt_no_other_prompt_is_computed(self) -> None:
        scene = Scene()
        others = [scene.add(f"other {number}", 400) for number in range(3)]
        now = scene.add("now", 64, tier=Tier.REALTIME)
        scene.step()
        assert now.num_output == 1 and all(other.num_computed <= 1 for other in others)
        scene.step()
        assert sum(other.num_computed for other in others) > 500

    def test_a_realtime_prompt_interrupts_realtime_streams_but_no_realtime_prompt(self) -> None:
        scene = Scene(fixed_s=0.05)
        scene.add("stream", 10, 100, tier=Tier.REALTIME)
        seen: list[bool] = []
        decode = scene.runner.decode

        def watched(slices: Items[Slice], min_tokens: int = 0) -> None:
            seen.append(scene.engine.current_step.gives_way_to(Rank.REALTIME))
            decode(slices, min_tokens)

        scene.runner.decode = watched  # type: ignore[method-assign]
        scene.step()
        scene.step()
        assert seen == [False, True]

    def test_between_long_steps_of_a_realtime_prompt_the_streams_have_theirs(self) -> None:
        """A slow machine, where no target can be kept."""
        scene = Scene(fixed_s=0.02, token_s=0.01)
        for number in range(8):
            scene.add(f"{number}", 10, 1000)
        scene.run(until_s=3.0)
        now = scene.add("now", 900, tier=Tier.REALTIME)
        while not now.num_output:
            scene.step()
        scene.step()
        assert max(scene.gaps_s("0")[10:]) <= MAX_STEP_S + 0.2
        assert scene.times_s["now"][0] - now.advanced_s <= MAX_STEP_S + 0.001

    def test_a_step_without_streams_takes_no_turn_of_theirs(self) -> None:
        """Such as the embeddings of an image, which are computed in a step of their own."""
        scene = Scene(fixed_s=0.02, token_s=0.01)
        for number in range(8):
            scene.add(f"{number}", 10, 1000)
        scene.run(until_s=3.0)
        now = scene.add("now", 900, tier=Tier.REALTIME)
        while not now.num_computed:
            scene.step()
        scheduler, streams = scene.engine._scheduler, [scene.sequences[f"{number}"] for number in range(8)]
        scheduler.plan([scene.add("image", 64)], {})
        scheduler.record_overhead(0.0)
        assert scheduler.choose([*streams, now]) == streams

    @settings(max_examples=5, deadline=None)
    @given(seed=st.integers(0, 10_000))
    def test_targets_are_kept_and_no_token_is_lost_over_random_arrivals(self, seed: int) -> None:
        """The machine can keep the targets: the streams take less than half of them, and a smallest chunk fits."""
        scene, rng = Scene(max_running=6), random.Random(seed)
        arrivals_s = sorted(rng.random() * 6 for _ in range(14))
        targets_s: dict[str, float] = {}
        while scene.engine.num_live or arrivals_s:
            if arrivals_s and arrivals_s[0] <= scene.clock.now_s:
                arrivals_s.pop(0)
                name, tier = f"{len(targets_s)}", rng.choice([*Tier, Tier.BATCH])
                target_s = rng.choice((None, 0.07, 0.25))
                is_ahead = rng.random() < 0.1
                options = {"tier": tier, "due_s": scene.clock.now_s + rng.random() * 3, "is_ahead": is_ahead}
                scene.add(name, rng.randrange(5, 900), rng.randrange(1, 60), token_s=target_s, **options)
                # A realtime prompt in a hurry may take a step of 0.2 s beside a stream that asked for no target.
                is_free = tier is Tier.BATCH or is_ahead
                targets_s[name] = 1000.0 if is_free else target_s or 0.2
            elif not scene.engine.num_live:
                scene.clock.advance(arrivals_s[0] - scene.clock.now_s)
                continue
            parked = {name for name, each in scene.sequences.items() if each.num_output and each.seq_id is None}
            scene.step()
            check_integrity(scene.engine)
            for name in parked:
                targets_s[name] = 1000.0  # it gave way
        scene.check_answers()
        for name, target_s in targets_s.items():
            assert len(scene.times_s[name]) == scene.sequences[name].max_length - scene.sequences[name].num_prompt
            assert max(scene.gaps_s(name), default=0.0) <= target_s + 0.01


class TestBatch:
    """Sequences of the tier BATCH beside more urgent ones."""

    def test_streams_keep_their_target_where_batch_streams_would_exceed_it(self) -> None:
        """Five streams take 95 ms for a step, and 140 ms with three batch streams at their share of the rate."""
        scene = Scene(fixed_s=0.02, token_s=0.015)
        batch = [scene.add(f"batch {number}", 10, 2000, tier=Tier.BATCH) for number in range(3)]
        scene.run(until_s=10.0)
        alone = batch[0].num_output / 10.0
        for number in range(5):
            scene.add(f"stream {number}", 10, 2000)
        while batch[0].num_output == 0 or "stream 4" not in scene.times_s:
            scene.step()
        num_before, begun_s = batch[0].num_output, scene.clock.now_s
        scene.run(until_s=begun_s + 20.0)
        rate = (batch[0].num_output - num_before) / 20.0
        assert 0.28 <= rate / alone <= 0.5
        gaps_s = scene.gaps_s("stream 0")
        assert sum(gap_s <= BUDGET_S for gap_s in gaps_s) / len(gaps_s) >= 0.4
        assert scene.engine._running.keys() >= {"batch 0", "batch 1", "batch 2"}, "a pause, no preemption"

    def test_a_batch_prompt_gets_its_share_beside_prompts_that_never_end(self) -> None:
        scene = Scene()
        scene.add("stream", 10, 5000)
        scene.add("batch", 3000, tier=Tier.BATCH)
        number = 0
        while "batch" not in scene.times_s:
            if not any(name.startswith("next") and not each.num_output for name, each in scene.sequences.items()):
                number += 1
                scene.add(f"next {number}", 400)
            scene.step()
        alone_s = sum(scene.runner.step_s(512) for _ in range(6))
        assert scene.clock.now_s <= 2 * alone_s / 0.3, "chunks beside a stream are smaller, so they take longer"

    def test_a_batch_prompt_s_share_comes_in_short_steps(self) -> None:
        scene = Scene()
        batch = scene.add("batch", 5000, tier=Tier.BATCH)
        scene.step()
        new = scene.add("new", 2000)
        longest_s, num_before = 0.0, batch.num_computed
        while not new.num_output:
            begun_s, num_new = scene.clock.now_s, new.num_computed
            scene.step()
            if new.num_computed == num_new:
                longest_s = max(longest_s, scene.clock.now_s - begun_s)
        assert batch.num_computed > num_before and 0.0 < longest_s <= BUDGET_S + 0.001

    def test_a_realtime_prompt_waits_for_no_batch_token(self) -> None:
        scene = Scene()
        scene.add("batch", 3000, tier=Tier.BATCH)
        scene.add("batch stream", 10, 500, tier=Tier.BATCH)
        scene.step()
        now = scene.add("now", 900, tier=Tier.REALTIME)
        before = [scene.sequences[name].num_computed for name in ("batch", "batch stream")]
        while not now.num_output:
            scene.step()
        assert [scene.sequences[name].num_computed for name in ("batch", "batch stream")] == before


@pytest.mark.parametrize("fixed_s", [0.02, 0.5, 1.0])
def test_batch_gets_its_share_beside_a_stream_on_a_slow_machine(fixed_s: float) -> None:
    """Also where its shortest step takes longer than what may be saved up at once."""
    scene = Scene(fixed_s=fixed_s, token_s=0.02)
    scene.add("stream", 10, 5000)
    scene.step()
    batch, begun_s = scene.add("batch", 200, 100, tier=Tier.BATCH), scene.clock.now_s
    scene.run(until_s=begun_s + 50)
    assert batch.rank is Rank.BATCH and batch.num_output > 0
    scene.check_answers()


class TestAhead:
    """Sequences that are computed ahead of a request use only time that no other sequence uses."""

    def test_alone_it_is_computed_in_short_steps(self) -> None:
        scene = Scene()
        ahead = scene.add("ahead", 400, 5, is_ahead=True)
        scene.step()
        assert ahead.num_computed > 100 and scene.clock.now_s <= 0.201
        scene.run()
        assert ahead.num_output == 5 and scene.clock.now_s < 1.0

    def test_nothing_is_drafted_for_it(self) -> None:
        for is_ahead in (False, True):
            scene = Scene(drafters=Drafters(ngrams=Oracle(), planning_share=ALWAYS))
            sequence = scene.add("a", 10, 100, is_ahead=is_ahead)
            scene.run()
            assert (sequence.num_accepted == 0) == is_ahead
            scene.check_answers()

    @pytest.mark.parametrize("tier", list(Tier))
    def test_beside_any_prompt_it_waits(self, tier: Tier) -> None:
        scene = Scene()
        ahead = scene.add("ahead", 400, 5, is_ahead=True)
        other = scene.add("other", 1200, tier=tier)
        while not other.num_output:
            scene.step()
        assert ahead.num_computed == 0

    def test_beside_streams_it_stays_within_their_target(self) -> None:
        for tier in (Tier.INTERACTIVE, Tier.BATCH):
            scene = Scene()
            scene.add("stream", 10, 100, tier=tier)
            scene.step()
            ahead = scene.add("ahead", 600, 50, is_ahead=True)
            scene.run()
            assert ahead.num_output == 50 and max(scene.gaps_s("stream")) <= BUDGET_S + 0.001

    def test_where_streams_need_the_whole_step_it_waits_for_a_minute(self) -> None:
        """Then it gets the share of the tier BATCH, since its client may wait for its end."""
        scene = Scene(fixed_s=0.02, token_s=0.05)
        scene.add("a", 10, 1000)
        scene.add("b", 10, 1000)
        scene.step()
        ahead = scene.add("ahead", 60, 5, is_ahead=True, prefill_only=True)
        scene.run(until_s=55.0)
        assert ahead.num_computed <= 1, "its first token is that of another prompt"
        scene.run(until_s=85.0)
        assert ahead.num_computed == 60 and ahead.rank is Rank.BATCH

    def test_one_that_a_request_waits_for_becomes_as_urgent(self) -> None:
        scene = Scene()
        ahead = scene.add("ahead", 2000, 5, is_ahead=True)
        scene.step()
        prompt = [*ahead.spec.prompt, 7]
        follower = scene.engine.add(SequenceSpec("follower", prompt, greedy(), 1, tier=Tier.REALTIME, due_s=3.0))
        scene.step()
        assert follower.awaited_prefill is not None and (ahead.rank, ahead.due_s) == (Rank.REALTIME, 3.0)
        scene.run()
        assert scene.runner.num_tokens_computed < 2020, "the follower goes on from what was computed ahead"


def test_a_prompt_is_urgent_only_until_it_has_what_an_urgent_one_waits_for() -> None:
    """A batch prompt with the same instructions as a realtime one does not stay realtime behind them."""
    scene = Scene()
    batch = scene.add("batch", 6000, tier=Tier.BATCH)
    scene.step()
    prompt = [*batch.spec.prompt[:1500], 7, 8]
    realtime = scene.engine.add(SequenceSpec("realtime", prompt, greedy(), 1, tier=Tier.REALTIME, due_s=9.0))
    scene.step()
    assert (batch.rank, batch.due_s) == (Rank.REALTIME, 9.0)
    while not realtime.num_output:
        scene.step()
    other = scene.add("other", 1000)
    scene.step()
    assert batch.num_computed < 3000 and batch.due_s > 9.0
    before = batch.num_computed
    while not other.num_output:
        scene.step()
    assert batch.num_computed - before < 800, "it gets the share of the tier BATCH"


@pytest.mark.parametrize(
    ("fixed_s", "token_s", "pair_s", "itl_s"),
    [
        pytest.param(0.015, 0.0012, 0.0, BUDGET_S, id="quick"),
        pytest.param(0.008, 0.003, 2e-6, 0.2, id="attention in tiles, as SmolLM2 on two cores"),
    ],
)
def test_realtime_requests_beside_streams_and_batch_jobs(
    fixed_s: float, token_s: float, pair_s: float, itl_s: float
) -> None:
    """A realtime request every two seconds beside eight streams and four batch jobs, on a machine that can do it."""
    alone_s = Scene(fixed_s=fixed_s, token_s=token_s).runner.step_s(64)

    def batch_rate(scene: Scene, seconds: float) -> float:
        begun_s, jobs = scene.clock.now_s, list[Sequence]()
        next_s = begun_s + 1.0
        while scene.clock.now_s < begun_s + seconds:
            while sum(not job.num_output for job in jobs) < 4:
                jobs.append(scene.add(f"job {len(jobs)}", 1500, 20, tier=Tier.BATCH))
            if scene.clock.now_s >= next_s and "stream 0" in scene.sequences:
                due_s = scene.clock.now_s + 0.5
                scene.add(f"now {due_s}", 64, 16, tier=Tier.REALTIME, due_s=due_s)
                next_s += 2.0
            scene.step()
        return sum(job.farthest for job in jobs) / seconds

    rate_alone = batch_rate(Scene(fixed_s=fixed_s, token_s=token_s, pair_s=pair_s), 10.0)
    scene = Scene(fixed_s=fixed_s, token_s=token_s, pair_s=pair_s)
    for number in range(8):
        scene.add(f"stream {number}", 20, 5000)
    scene.step()
    assert batch_rate(scene, 20.0) >= 0.3 * rate_alone
    gaps_s = sorted(gap_s for number in range(8) for gap_s in scene.gaps_s(f"stream {number}"))
    assert gaps_s[int(0.95 * len(gaps_s))] <= itl_s
    firsts_s = [
        scene.times_s[name][0] - (sequence.due_s - 0.5)
        for name, sequence in scene.sequences.items()
        if name.startswith("now") and name in scene.times_s
    ]
    # The request that arrives within a step waits for half of it, or interrupts it.
    assert len(firsts_s) >= 8 and max(firsts_s) + BUDGET_S / 2 <= 2 * alone_s
    scene.check_answers()
