"""What a batch holds: decoding first, then prompts by urgency within the latency budget."""

from __future__ import annotations

from array import array

from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.sampling import ResolvedSampling, Sampler
from edgeagent.engine.scheduler import MIN_CHUNK, Scheduler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.types import Tier


def sequence(
    name: str,
    num_prompt: int,
    num_computed: int = 0,
    num_output: int = 0,
    tier: Tier = Tier.INTERACTIVE,
    order: int = 0,
    prefill_only: bool = False,
) -> Sequence:
    spec = SequenceSpec(name, [1] * num_prompt, Sampler(ResolvedSampling(), 10), tier=tier, prefill_only=prefill_only)
    tokens = array("i", [1] * (num_prompt + num_output))
    return Sequence(spec, tokens, num_prompt, num_prompt + 100, order, seq_id=order, num_computed=num_computed)


def decoding(name: str, order: int = 0) -> Sequence:
    return sequence(name, 10, num_computed=10, num_output=1, order=order)


def summary(works: list) -> list[tuple[str, int, int]]:  # type: ignore[type-arg]
    return [(work.sequence.id, work.num_tokens, work.num_logits) for work in works]


def test_alone_a_prompt_fills_the_batch() -> None:
    plan = Scheduler(512, 0.1, CostModel(512)).plan([sequence("a", 600)], {})
    assert summary(plan) == [("a", 512, 0)]


def test_the_last_chunk_gives_logits_unless_nothing_is_to_be_sampled() -> None:
    scheduler = Scheduler(512, 0.1, CostModel(512))
    assert summary(scheduler.plan([sequence("a", 600, num_computed=512)], {})) == [("a", 88, 1)]
    assert summary(scheduler.plan([sequence("a", 20, prefill_only=True)], {})) == [("a", 20, 0)]


def test_what_is_left_of_a_prompt_is_not_less_than_its_smallest_chunk() -> None:
    scheduler = Scheduler(512, 0.1, CostModel(512))
    prompts = [sequence("one left", 513), sequence("as many as fit", 512), sequence("two left", 514)]
    for prompt, num_tokens in zip(prompts, (511, 512, 512), strict=True):
        prompt.min_prompt_chunk = 2
        (work,) = scheduler.plan([prompt], {})
        assert work.num_tokens == num_tokens
    assert scheduler.plan([sequence("anyhow", 513)], {})[0].num_tokens == 512


def test_output_is_computed_again_in_the_batches_that_gave_it() -> None:
    again = sequence("a", 100, num_output=6)
    again.batch_ends = [100, 101, 104, 105]
    scheduler = Scheduler(512, 0.1, CostModel(512))
    sizes = []
    while again.num_computed < 106:
        (work,) = scheduler.plan([again], {})
        assert work.num_logits == (again.num_computed == 105)
        sizes.append(work.num_tokens)
        again.num_computed += work.num_tokens
    assert sizes == [100, 1, 3, 1, 1]


def test_what_is_computed_again_is_not_left_alone_where_it_was_not() -> None:
    again = sequence("a", 513, num_output=40)
    again.min_prompt_chunk = 2
    again.batch_ends = [513, 514, 547, 552]
    scheduler = Scheduler(512, 0.1, CostModel(512))
    sizes = []
    while again.num_computed < 553:
        (work,) = scheduler.plan([again], {}, 32 if again.num_computed > 500 else None)
        sizes.append(work.num_tokens)
        again.num_computed += work.num_tokens
    assert sizes == [511, 2, 1, 31, 2, 5, 1]


def test_no_stop_leaves_a_prompts_last_token_alone() -> None:
    prompt = sequence("a", 100)
    prompt.min_prompt_chunk = 2
    for position in (40, 98, 99):
        prompt.add_stop(position)
    assert prompt.stops == [40, 98]


def test_beside_a_stream_a_prompt_is_cut_to_the_budget() -> None:
    costs = CostModel(512)
    for size in (32, 64, 128, 256, 512):
        costs.observe(size, 10, size / 1000)  # a millisecond a token
    works = Scheduler(512, 0.130, costs).plan([decoding("a"), sequence("b", 600, order=1)], {})
    assert summary(works) == [("a", 1, 1), ("b", 127, 0)]


def test_nothing_known_means_the_smallest_chunk() -> None:
    works = Scheduler(512, 0.1, CostModel(512)).plan([decoding("a"), sequence("b", 600, order=1)], {})
    assert summary(works) == [("a", 1, 1), ("b", MIN_CHUNK, 0)]


def test_prompts_go_by_tier_and_then_arrival() -> None:
    running = [
        sequence("batch", 100, tier=Tier.BATCH, order=0),
        sequence("second", 30, order=2),
        sequence("first", 30, order=1),
        sequence("now", 30, tier=Tier.REALTIME, order=3),
    ]
    works = Scheduler(100, 0.1, CostModel(100)).plan(running, {})
    assert summary(works) == [("now", 30, 1), ("first", 30, 1), ("second", 30, 1), ("batch", 10, 0)]


def test_drafts_fit_the_batch_and_leave_every_stream_its_token() -> None:
    running = [decoding("a", 0), decoding("b", 1), decoding("c", 2)]
    works = Scheduler(6, 0.1, CostModel(6)).plan(running, {"a": (1, 2), "c": (3, 4, 5)})
    assert [(work.sequence.id, work.drafts, work.num_logits) for work in works] == [
        ("a", (1, 2), 3),
        ("b", (), 1),
        ("c", (3,), 2),
    ]
