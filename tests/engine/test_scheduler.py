"""What a batch holds: decoding sequences first, then prompts by urgency, within the latency budget."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable

import pytest

from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.media_tokens import media_tokens
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.scheduler import (
    MAX_SCORED,
    MAX_STEP_S,
    MIN_CHUNK,
    MIN_CHUNK_WITH_STREAMS,
    MIN_ROWS_WITH_STREAMS,
    MIN_SLOW_CHUNK,
    Scheduler,
)
from edgeagent.engine.sequence import BatchEnds, Sequence, SequenceSpec
from edgeagent.router.policy import TARGETS
from edgeagent.serving_order import by_share
from edgeagent.types import Tier
from tests.engine.support import FakeEmbeddings
from tests.fakes import rows_of, warm_costs


def sequence(
    name: str,
    num_prompt: int,
    num_computed: int = 0,
    num_output: int = 0,
    tier: Tier = Tier.INTERACTIVE,
    order: int = 0,
    prefill_only: bool = False,
    client: str = "",
) -> Sequence:
    sampler = Sampler(ResolvedSampling(), 10)
    spec = SequenceSpec(name, [1] * num_prompt, sampler, tier=tier, prefill_only=prefill_only, partition=client)
    tokens = array("i", [1] * (num_prompt + num_output))
    return Sequence(spec, tokens, num_prompt, num_prompt + 100, order, seq_id=order, num_computed=num_computed)


def decoding(name: str, order: int = 0, budget_s: float = 0.1, tier: Tier = Tier.INTERACTIVE) -> Sequence:
    stream = sequence(name, 10, num_computed=10, num_output=1, order=order, tier=tier)
    stream.budget_s, stream.target_s = budget_s, TARGETS[tier].token_s
    return stream


def summary(parts: list) -> list[tuple[str, int, int]]:  # type: ignore[type-arg]
    return [(part.sequence.id, part.num_tokens, part.num_logits) for part in parts]


def test_alone_a_prompt_fills_the_batch() -> None:
    plan = Scheduler(512, 0.1, warm_costs(512)).plan([sequence("a", 600)], {})
    assert summary(plan) == [("a", 512, 0)]


def test_the_last_chunk_gives_logits_unless_nothing_is_to_be_sampled() -> None:
    scheduler = Scheduler(512, 0.1, warm_costs(512))
    assert summary(scheduler.plan([sequence("a", 600, num_computed=512)], {})) == [("a", 88, 1)]
    assert summary(scheduler.plan([sequence("a", 20, prefill_only=True)], {})) == [("a", 20, 0)]


def test_what_is_left_of_a_prompt_is_not_less_than_its_smallest_chunk() -> None:
    scheduler = Scheduler(512, 0.1, warm_costs(512))
    prompts = [sequence("one left", 513), sequence("as many as fit", 512), sequence("two left", 514)]
    for prompt, num_tokens in zip(prompts, (511, 512, 512), strict=True):
        prompt.min_prompt_chunk = 2
        (part,) = scheduler.plan([prompt], {})
        assert part.num_tokens == num_tokens
    assert scheduler.plan([sequence("anyhow", 513)], {})[0].num_tokens == 512


def test_output_is_computed_again_in_the_batches_that_gave_it() -> None:
    again = sequence("a", 100, num_output=6)
    again.batch_ends = BatchEnds([100, 101, 104, 105])
    scheduler = Scheduler(512, 0.1, warm_costs(512))
    sizes = []
    while again.num_computed < 106:
        (part,) = scheduler.plan([again], {})
        assert part.num_logits == (again.num_computed == 105)
        sizes.append(part.num_tokens)
        again.num_computed += part.num_tokens
    assert sizes == [100, 1, 3, 1, 1]


def test_what_is_computed_again_is_not_left_alone_where_it_was_not() -> None:
    again = sequence("a", 513, num_output=40)
    again.min_prompt_chunk = 2
    again.batch_ends = BatchEnds([513, 514, 547, 552])
    large, small = (Scheduler(size, 0.1, warm_costs(size)) for size in (512, 32))
    sizes = []
    while again.num_computed < 553:
        (part,) = (small if again.num_computed > 500 else large).plan([again], {})
        sizes.append(part.num_tokens)
        again.num_computed += part.num_tokens
    assert sizes == [511, 2, 1, 31, 2, 5, 1]


def test_no_stop_leaves_a_prompts_last_token_alone() -> None:
    prompt = sequence("a", 100)
    prompt.min_prompt_chunk = 2
    for position in (40, 98, 99):
        prompt.add_chunk_end(position)
    assert prompt.chunk_ends == [40, 98]


def test_beside_a_stream_a_prompt_is_cut_to_the_budget() -> None:
    costs = CostModel(512)
    for size in (32, 64, 128, 256, 512):
        costs.observe(StepShape.alone(size, 10), size / 1000)  # one millisecond per token
    parts = Scheduler(512, 0.1, costs).plan([decoding("a", budget_s=0.130), sequence("b", 600, order=1)], {})
    assert summary(parts) == [("a", 1, 1), ("b", 127, 0)]


def test_an_answer_that_waits_to_go_on_takes_longer_steps_than_a_new_prompt() -> None:
    costs = CostModel(512)
    for size in (32, 64, 128, 256, 512):
        costs.observe(StepShape.alone(size, 10), size / 1000)  # one millisecond per token
    resuming = sequence("b", 600, order=1)
    resuming.spec = dataclasses.replace(resuming.spec, delivered=(1,))
    sizes = []
    for budget_s in (0.130, 0.400):
        for prompt in (sequence("b", 600, order=1), resuming):
            _, part = Scheduler(512, 0.1, costs).plan([decoding("a", budget_s=budget_s), prompt], {})
            sizes.append(part.num_tokens)
    assert sizes[0] < sizes[1] <= 200, "the target of the tier"
    assert sizes[2] == sizes[3] > 200, "the owner's budget is larger"


@pytest.mark.parametrize(("tier", "delivered"), [(Tier.REALTIME, ()), (Tier.INTERACTIVE, (1,))])
def test_a_prompt_that_hurries_takes_short_steps_while_another_waits(tier: Tier, delivered: tuple[int, ...]) -> None:
    costs = CostModel(512)
    for size in (32, 64, 128, 256, 512):
        costs.observe(StepShape.alone(size, 10), size / 1000)  # one millisecond per token
    prompt, waiting = sequence("a", 600, tier=tier), sequence("b", 40, tier=tier, order=1)
    prompt.spec = dataclasses.replace(prompt.spec, delivered=delivered)
    (part,) = Scheduler(512, 0.1, costs).plan([prompt], {}, others=[waiting])
    assert 100 <= part.num_tokens <= 200


def test_nothing_known_means_the_smallest_chunk() -> None:
    parts = Scheduler(512, 0.1, CostModel(512)).plan([decoding("a"), sequence("b", 600, order=1)], {})
    assert summary(parts) == [("a", 1, 1), ("b", MIN_CHUNK, 0)]


def test_prompts_go_by_tier_and_then_arrival() -> None:
    running = [
        sequence("batch", 100, tier=Tier.BATCH, order=0),
        sequence("second", 30, order=2),
        sequence("first", 30, order=1),
        sequence("now", 30, tier=Tier.REALTIME, order=3),
    ]
    parts = Scheduler(100, 0.1, warm_costs(100)).plan(running, {})
    assert summary(parts) == [("now", 30, 1), ("first", 30, 1), ("second", 30, 1), ("batch", 10, 0)]


def test_clients_take_turns_within_a_tier() -> None:
    waiting = [sequence(f"greedy {index}", 10, order=index, client="greedy") for index in range(4)]
    waiting += [sequence(f"polite {index}", 10, order=10 + index, client="polite") for index in range(2)]
    waiting += [sequence("batch", 10, order=20, tier=Tier.BATCH, client="other")]
    names = [each.id for each in by_share(waiting)]
    assert names == ["greedy 0", "polite 0", "greedy 1", "polite 1", "greedy 2", "greedy 3", "batch"]
    running = [sequence("running", 10, client="polite"), sequence("running too", 10, client="polite")]
    assert [each.id for each in by_share(waiting, running)][:4] == ["greedy 0", "greedy 1", "greedy 2", "polite 0"]


def test_beside_a_batch_prompt_in_the_side_context_others_of_its_tier_wait_for_it() -> None:
    prompts = [sequence(name, 100, tier=Tier.BATCH) for name in ("aside", "other")]
    streams = [decoding("now"), decoding("later", tier=Tier.BATCH)]
    scheduler = Scheduler(64, 10.0, warm_costs(64))
    assert scheduler.choose([*streams, prompts[1]], aside=prompts[0]) == streams
    assert scheduler.choose([*streams, prompts[1]]) == [*streams, prompts[1]]


def test_drafts_fit_the_batch_and_leave_every_stream_its_token() -> None:
    running = [decoding("a", 0), decoding("b", 1), decoding("c", 2)]
    parts = Scheduler(6, 0.1, CostModel(6)).plan(running, {"a": (1, 2), "c": (3, 4, 5)})
    assert [(part.sequence.id, part.drafts, part.num_logits) for part in parts] == [
        ("a", (1, 2), 3),
        ("b", (), 1),
        ("c", (3,), 2),
    ]


def chunks(num_prompt: int, step_s: Callable[[int], float], *, num_warm: int | None) -> list[int]:
    """Return the chunk sizes of a lone prompt on a machine where a step takes `step_s(tokens)` seconds."""
    costs = CostModel(512)
    if num_warm is not None:
        costs.observe(StepShape.alone(num_warm, 0), step_s(num_warm))
    scheduler, prompt, sizes = Scheduler(512, 0.1, costs), sequence("a", num_prompt), list[int]()
    while prompt.num_pending:
        (part,) = scheduler.plan([prompt], {})
        costs.observe(StepShape.alone(part.num_tokens, prompt.num_computed), step_s(part.num_tokens))
        sizes.append(part.num_tokens)
        prompt.num_computed += part.num_tokens
    return sizes


@pytest.mark.parametrize("tokens_per_s", [2, 5, 17, 60, 200])
@pytest.mark.parametrize("overhead_s", [0.0, 0.5])
def test_on_a_slow_machine_no_step_is_long(tokens_per_s: int, overhead_s: float) -> None:
    def step_s(num_tokens: int) -> float:
        return overhead_s + num_tokens / tokens_per_s

    sizes = chunks(2000, step_s, num_warm=4)
    longest_s = max(MAX_STEP_S, step_s(MIN_SLOW_CHUNK))
    assert all(step_s(size) <= 2 * longest_s for size in sizes), "a size that is tried for the first time"
    assert sum(step_s(size) > longest_s for size in sizes) <= 2
    # Nor are they shorter than necessary.
    assert step_s(sizes[2]) >= MAX_STEP_S / 2 - overhead_s


def test_on_a_quick_machine_a_warm_up_is_enough_for_full_batches() -> None:
    assert chunks(1400, lambda num_tokens: 0.01 + num_tokens / 500, num_warm=32) == [512, 512, 376]


def test_of_an_unknown_machine_the_first_step_is_small() -> None:
    assert chunks(600, lambda num_tokens: num_tokens / 1000, num_warm=None) == [MIN_CHUNK, 512, 56]


def test_beside_a_stream_too_no_step_is_long_on_a_slow_machine() -> None:
    costs = CostModel(512)
    for size in (1, 4, 8, 32):
        costs.observe(StepShape.alone(size, 10), size / 2)
    parts = Scheduler(512, 0.1, costs).plan([decoding("a"), sequence("b", 600, order=1)], {})
    assert summary(parts) == [("a", 1, 1), ("b", 4, 0)]


@pytest.mark.parametrize(("target_s", "num_tokens"), [(0.001, MIN_ROWS_WITH_STREAMS), (0.018, 8), (0.02, 16)])
def test_beside_a_stream_a_medium_gets_what_its_target_leaves_or_a_few_embeddings(
    target_s: float, num_tokens: int
) -> None:
    chunk = media_tokens(b"a", 100, is_whole=False)
    shown = sequence("image", 0)
    shown.spec = dataclasses.replace(shown.spec, media=[MediaSpan(0, 100, FakeEmbeddings(rows_of(chunk)))])
    shown.tokens, shown.num_prompt = array("i", [*chunk, 1]), 101
    stream = decoding("stream", budget_s=target_s)
    parts = Scheduler(512, 0.1, warm_costs(512, 0.512)).plan([stream, shown], {})
    assert summary(parts) == [("stream", 1, 1), ("image", num_tokens, 0)]


def test_rows_of_logits_count_while_somebody_decodes() -> None:
    """A scored prompt's steps are no longer than those of another prompt, apart from a few rows that it always gets."""

    def num_scored(row_cost: float, *others: Sequence) -> int:
        scored = sequence("scored", 600, order=1)
        scored.spec = dataclasses.replace(scored.spec, num_prompt_logprobs=1)
        # A token takes one millisecond, so the budget allows MIN_CHUNK_WITH_STREAMS tokens.
        plan = Scheduler(512, 0.001, warm_costs(512, 0.512), row_cost=row_cost).plan([*others, scored], {})
        return next(part.num_scored for part in plan if part.sequence is scored)

    assert num_scored(0.5) == num_scored(64.0) == MAX_SCORED
    stream = decoding("stream", budget_s=0.001)
    assert num_scored(0.0, stream) == MIN_CHUNK_WITH_STREAMS
    assert num_scored(1.0, stream) == MIN_CHUNK_WITH_STREAMS // 2
    assert num_scored(64.0, stream) == 4


def test_rows_cost_nothing_where_nothing_is_said_of_them() -> None:
    scored = sequence("scored", 600, order=1)
    scored.spec = dataclasses.replace(scored.spec, num_prompt_logprobs=1)
    _, part = Scheduler(512, 0.1, warm_costs(512, 0.512)).plan([decoding("stream", budget_s=0.001), scored], {})
    assert part.num_scored == MIN_CHUNK_WITH_STREAMS


class Asked(CostModel):
    """A cost model that records the requested depths, and always allows the same number of tokens per step."""

    def __init__(self, within_itl: int) -> None:
        super().__init__(512)
        self.depths: set[int] = set()
        self._within_itl = within_itl

    def predict(self, shape: StepShape) -> float | None:
        return 0.01

    def max_tokens_within(self, seconds: float, shape: StepShape, depth: int, *_: object, **__: object) -> int:
        self.depths.add(depth)
        return 512 if seconds == MAX_STEP_S else self._within_itl - shape.num_tokens


def test_the_deepest_prompt_counts() -> None:
    costs = Asked(100)
    Scheduler(512, 0.1, costs).plan([sequence("a", 600, num_computed=300), sequence("b", 600, num_computed=40)], {})
    assert costs.depths == {300}


def test_a_step_without_prompts_asks_for_no_cost() -> None:
    costs = Asked(100)
    assert Scheduler(512, 0.1, costs).plan([], {}) == []
    assert len(Scheduler(512, 0.1, costs).plan([decoding("s1"), decoding("s2", order=1)], {"s1": (1, 2)})) == 2
    assert costs.depths == set()


def test_drafts_and_streams_take_from_a_prompt_s_budget() -> None:
    scheduler = Scheduler(512, 0.1, Asked(100))
    streams = [decoding("s1"), decoding("s2", order=1)]
    (*_, prompt) = scheduler.plan([*streams, sequence("p", 600, order=2)], {"s1": (1, 2, 3), "s2": (4,)})
    assert prompt.num_tokens == 100 - 2 - 4


def test_drafts_never_exceed_the_batch() -> None:
    parts = Scheduler(8, 0.1, Asked(8)).plan(
        [decoding("s1"), decoding("s2", order=1)], {"s1": (1,) * 5, "s2": (2,) * 5}
    )
    assert [(part.num_tokens, len(part.drafts), part.num_logits) for part in parts] == [(1, 5, 6), (1, 1, 2)]


def test_nothing_is_planned_for_who_gets_no_tokens() -> None:
    parts = Scheduler(512, 0.1, Asked(512)).plan([sequence("a", 512), sequence("b", 512, order=1)], {})
    assert summary(parts) == [("a", 512, 1)]


def scoring(name: str, num_prompt: int, order: int = 0) -> Sequence:
    scored = sequence(name, num_prompt, order=order)
    scored.spec = dataclasses.replace(scored.spec, num_prompt_logprobs=0)
    return scored


def test_rows_that_others_sample_from_are_not_taken_for_scoring() -> None:
    """Of ten rows, the stream and its drafts use three, and each prompt keeps one to sample from."""
    scheduler = Scheduler(512, 0.1, Asked(512), max_outputs=10)
    running = [decoding("s"), scoring("a", 600, order=1), sequence("b", 600, order=2)]
    parts = scheduler.plan(running, {"s": (1, 2)})
    assert summary(parts)[:2] == [("s", 1, 3), ("a", 5, 5)]
    assert (parts[1].num_scored, parts[0].num_scored) == (5, 0)


def test_two_that_score_share_the_rows() -> None:
    parts = Scheduler(512, 0.1, Asked(512), max_outputs=30).plan([scoring("a", 20), scoring("b", 600, order=1)], {})
    assert summary(parts) == [("a", 20, 20), ("b", 8, 8)]
    assert [part.num_scored for part in parts] == [19, 8]


def test_a_smallest_chunk_is_given_up_for_nothing_smaller() -> None:
    prompt = sequence("a", 3)
    prompt.min_prompt_chunk = 2
    (part,) = Scheduler(2, 0.1, Asked(2)).plan([prompt], {})
    assert part.num_tokens == 2, "one token alone would be no better"
