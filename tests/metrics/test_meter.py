"""The measurements that a generation adds to the registry, for every way to end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from edgeagent.metrics import REGISTRY
from edgeagent.metrics.meter import NO_TARGET, Meter, late_stage
from edgeagent.service.client_sink import Ending
from edgeagent.types import (
    AnswerSoFar,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Handover,
    Placement,
    ReasoningDelta,
    Sink,
    Started,
    Step,
    Target,
    TextDelta,
    TextPrompt,
    Tier,
    Timings,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    Verdict,
    replace,
)
from tests.backends.fake import finished

TARGET = Target(first_token_s=60.0, token_s=0.2)
ALWAYS_LATE = Target(first_token_s=-1.0, token_s=0.2)
models = (f"meter-{number}" for number in itertools.count())


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return next(models)


def measure(model: str, target: Target = TARGET, sink: Sink | None = None, **fields: Any) -> Meter:
    request = GenerateRequest("r", model, TextPrompt("one"), **fields)
    return Meter(lambda: model, sink or Ending(), request, target)


def answer(model: str) -> dict[str, str]:
    """Return the labels of an answer of this machine."""
    return {"model": model, "tier": "interactive", "served_by": "local"}


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"edgeagent_{name}", labels) or 0.0


def live(model: str) -> tuple[float, float]:
    return sample("live_requests", model=model, state="waiting"), sample("live_requests", model=model, state="running")


def test_a_whole_generation(model: str) -> None:
    meter = measure(model)
    assert live(model) == (1, 0)
    meter.put(Step((Started(8, 4),), at_s=1.0))
    assert live(model) == (0, 1)
    meter.put(Step((TextDelta("a"),), (1,), at_s=1.5))
    meter.put(Step((), (2,), at_s=1.52))
    meter.put(Step((TextDelta("b"), finished(output=4)), (3, 4), at_s=1.6))
    assert meter.end() == "stop"
    assert live(model) == (0, 0)
    assert sample("generations_total", model=model, end="stop") == 1
    assert sample("first_token_seconds_count", **answer(model)) == 1
    assert sample("generation_seconds_count", **answer(model)) == 1
    assert sample("inter_token_seconds_count", **answer(model)) == 2
    assert sample("inter_token_seconds_sum", **answer(model)) == pytest.approx(0.1)
    assert sample("prefill_tokens_total", model=model) == 4
    assert sample("prefix_cache_hit_tokens_total", model=model) == 4
    assert sample("decode_tokens_total", model=model) == 4
    assert sample("stage_seconds_count", stage="queue", tier="interactive", served_by="local") > 0


def test_an_answer_counts_by_its_tier_and_where_it_runs(model: str) -> None:
    meter = measure(model, tier=Tier.REALTIME)
    meter.put(Step((Started(8, 0, placement=Placement("remote:gpu", "m", "queue_full")),), at_s=1.0))
    meter.put(Step((TextDelta("a"),), (1,), at_s=1.5))
    meter.put(Step((finished(),), at_s=1.5))
    meter.end()
    labels = {"model": model, "tier": "realtime", "served_by": "remote:gpu"}
    for name in ("first_token_seconds_count", "usable_seconds_count", "generation_seconds_count"):
        assert sample(name, **labels) == 1, name
    assert sample("answers_total", **labels, outcome="met") == 1


def test_the_end_is_no_output(model: str) -> None:
    meter = measure(model)
    meter.put(Step((Started(8, 8),), at_s=1.0))
    meter.put(Step((finished(FinishReason.CANCELLED, output=0),)))
    assert meter.end() == "cancelled"
    assert sample("first_token_seconds_count", **answer(model)) == 0
    assert sample("inter_token_seconds_count", **answer(model)) == 0


def test_what_was_delivered_before_a_failure_counts(model: str) -> None:
    refused = sample("refused_total", reason="worker_crashed")
    meter = measure(model)
    meter.put(Step((Started(8, 2), TextDelta("a")), (1, 2), at_s=1.0))
    assert meter.usage == Usage(8, 2, 2)
    assert meter.end("worker_crashed") == "worker_crashed"
    assert sample("generations_total", model=model, end="worker_crashed") == 1
    assert sample("prefill_tokens_total", model=model) == 6
    assert sample("decode_tokens_total", model=model) == 2
    assert sample("refused_total", reason="worker_crashed") == refused
    assert live(model) == (0, 0)


def test_a_refusal_is_no_generation_s_time(model: str) -> None:
    refused = sample("refused_total", reason="queue_full")
    meter = measure(model)
    assert meter.end("queue_full") == "queue_full"
    assert sample("refused_total", reason="queue_full") == refused + 1
    assert sample("generation_seconds_count", **answer(model)) == 0
    assert live(model) == (0, 0)


def test_a_client_that_leaves_is_not_refused(model: str) -> None:
    refused = sample("refused_total", reason="abandoned")
    assert measure(model).end() == "abandoned"
    assert sample("refused_total", reason="abandoned") == refused


def test_a_name_that_nobody_serves_is_no_label(model: str) -> None:
    unknown = sample("generations_total", model="unknown", end="model_not_found")
    measure(model).end("model_not_found")
    assert sample("generations_total", model="unknown", end="model_not_found") == unknown + 1
    assert sample("generations_total", model=model, end="model_not_found") == 0


@pytest.mark.parametrize(
    "why", [{"handovers": (Handover("local", "local", 2, "worker_killed"),)}, {"route": "remote:cluster"}], ids=str
)
def test_stages_that_are_not_known_are_not_counted(model: str, why: dict[str, Any]) -> None:
    meter, stages = measure(model), ("queue", "prefill", "decode")
    labels = {"tier": "interactive", "served_by": "local"}
    before = {stage: sample("stage_seconds_count", stage=stage, **labels) for stage in stages}
    end = finished(output=4)
    meter.put(Step((replace(end, timings=replace(end.timings, **why)),)))
    meter.end()
    counts = [sample("stage_seconds_count", stage=stage, **labels) - before[stage] for stage in stages]
    assert counts == [0, 0, 1]


STAGES = Timings(queue_ms=100.0, load_ms=200.0, render_ms=10.0, cache_ms=20.0, prefill_ms=300.0)
CRASHED = (Handover("local", "local", 2, "worker_killed"),)
FROM_REMOTE = (Handover("remote:gpu", "local", 0, "unreachable"),)


@pytest.mark.parametrize(
    ("timings", "first_s", "delivery_s", "late_tokens_s", "stage"),
    [
        (STAGES, 1.0, 0.0, 0.0, ""),
        (STAGES, 1.1, 0.0, 0.0, "queue"),  # 0.1 s of the stage, and 0.47 s that no stage accounts for
        (STAGES, 1.1, 0.4, 0.0, "delivery"),
        (replace(STAGES, queue_ms=500.0), 1.13, 0.0, 0.0, "queue"),
        (replace(STAGES, load_ms=700.0), 1.13, 0.0, 0.0, "load"),
        (replace(STAGES, render_ms=700.0), 1.32, 0.0, 0.0, "render"),
        (replace(STAGES, cache_ms=700.0), 1.31, 0.0, 0.0, "cache"),
        (replace(STAGES, prefill_ms=700.0), 1.03, 0.0, 0.0, "prefill"),
        (STAGES, 0.5, 0.0, 0.1, "decode"),
        (replace(STAGES, prefill_ms=700.0), 1.2, 0.0, 0.1, "prefill"),  # both are late: the larger excess counts
        (replace(STAGES, prefill_ms=700.0), 1.2, 0.0, 0.3, "decode"),
        (Timings(route="remote:gpu"), 1.2, 0.01, 0.0, "remote"),
        (Timings(route="remote:gpu"), 0.2, 0.0, 0.1, "remote"),
        (replace(STAGES, handovers=FROM_REMOTE), 4.0, 0.0, 0.0, "remote"),  # it was asked first
        (replace(STAGES, handovers=FROM_REMOTE, prefill_ms=3000.0), 4.0, 0.0, 0.0, "prefill"),
        (Timings(handovers=CRASHED), 4.0, 0.0, 0.0, "unknown"),
        (Timings(handovers=CRASHED), 0.5, 0.0, 3.0, "decode"),
    ],
)
def test_the_stage_that_broke_the_target(
    timings: Timings, first_s: float, delivery_s: float, late_tokens_s: float, stage: str
) -> None:
    assert late_stage(timings, Target(1.0, 0.2), first_s, delivery_s, late_tokens_s) == stage


def test_the_wait_before_a_remote_was_asked_is_not_the_remote_s() -> None:
    timings = Timings(route="remote:gpu")
    for waited_s, stage in ((0.0, "remote"), (2.5, "queue")):
        assert late_stage(timings, Target(1.0, 0.2), 4.0, 0.0, 0.0, waited_s) == stage


def test_the_wait_of_what_is_not_judged_counts_too(model: str) -> None:
    meter = measure(model, prefill_only=True, waited_s=3.0)
    meter.put(Step((finished(output=0),)))
    assert meter.finished is not None and meter.verdict is None
    timings = finished().timings
    assert meter.finished.timings == replace(timings, queue_ms=timings.queue_ms + 3000)


class Last(Sink):
    """Keeps the terminal delta, as a wire gets it."""

    verdict: Verdict | None = None

    def put(self, step: Step) -> None:
        if step.deltas and isinstance(step.deltas[-1], Finished):
            self.verdict = step.deltas[-1].timings.verdict


def stream(model: str, gaps_s: list[float], target: Target = TARGET, **fields: Any) -> Verdict | None:
    """Return the verdict on an answer of one token a step, with these times between the tokens."""
    meter = measure(model, target, last := Last(), **fields)
    meter.put(Step((Started(8, 0),), at_s=1.0))
    for at_s in itertools.accumulate(gaps_s, initial=2.0):
        meter.put(Step((TextDelta("a"),), (1,), at_s=at_s))
    meter.put(Step((finished(),)))
    meter.end()
    return last.verdict


def test_a_stream_is_late_if_one_token_in_twenty_is(model: str) -> None:
    assert stream(model, [0.01] * 39 + [3.0]) == Verdict(Tier.INTERACTIVE, TARGET)
    assert stream(model, [0.01] * 18 + [0.21]) == Verdict(Tier.INTERACTIVE, TARGET, "decode")
    assert sample("answers_total", **answer(model), outcome="decode") == 1
    whole = stream(model, [0.3] * 9, is_whole=True)  # its client waits for no token
    assert whole is not None and whole.late_stage == "" and whole.target.token_s == float("inf")
    late = stream(model, [], ALWAYS_LATE)
    assert late is not None and late.late_stage == "prefill"  # the longest of finished()'s


def test_the_end_of_an_answer_without_tokens_is_its_first_token(model: str) -> None:
    for target, stage in ((TARGET, ""), (ALWAYS_LATE, "prefill")):
        meter = measure(model, target, last := Last())
        meter.put(Step((Started(8, 0), finished(output=0)), at_s=1.0))
        meter.end()
        assert last.verdict == Verdict(Tier.INTERACTIVE, target, stage)
    assert [sample("answers_total", **answer(model), outcome=outcome) for outcome in ("met", "prefill")] == [1, 1]
    assert sample("first_token_seconds_count", **answer(model)) == 2
    assert sample("usable_seconds_count", **answer(model)) == 0


def test_only_what_was_due_is_judged(model: str) -> None:
    def outcomes() -> dict[str, float]:
        names = ("met", "failed", "unknown", "queue", "prefill")
        return {name: found for name in names if (found := sample("answers_total", **answer(model), outcome=name))}

    cancelled = Step((finished(FinishReason.CANCELLED, output=0),))
    for meter in (measure(model), measure(model, ALWAYS_LATE, prefill_only=True)):
        meter.put(cancelled)
        meter.end()
    measure(model).end()  # its client left at once
    measure(model).end("queue_full")
    assert outcomes() == {}
    late = measure(model, ALWAYS_LATE)
    late.put(cancelled)
    late.end()
    measure(model, ALWAYS_LATE).end()
    unfinished = measure(model, ALWAYS_LATE)
    unfinished.put(Step((TextDelta("a"),), (1,), at_s=1.0))
    unfinished.end()
    broken, left = measure(model), measure(model)
    for meter in (broken, left):
        meter.put(Step((TextDelta("a"),), (1,), at_s=1.0))
    broken.end("worker_crashed")
    left.end()
    assert outcomes() == {"prefill": 1, "queue": 1, "unknown": 1, "failed": 1, "met": 1}


def test_what_the_daemon_asks_itself_has_no_latency(model: str) -> None:
    assert stream(model, [0.3], NO_TARGET) is None
    names = ("first_token_seconds_count", "usable_seconds_count", "generation_seconds_count")
    assert [sample(name, **answer(model)) for name in names] == [0, 0, 0]
    assert sample("answers_total", **answer(model), outcome="met") == 0
    assert sample("generations_total", model=model, end="stop") == 1


def test_a_part_of_another_request_is_an_answer_only_if_it_fails(model: str) -> None:
    assert stream(model, [0.3], is_part=True) is None
    left, broken = measure(model, is_part=True), measure(model, is_part=True)
    for meter in (left, broken):
        meter.put(Step((TextDelta("a"),), (1,), at_s=1.0))
    left.end()
    broken.end("worker_crashed")
    counted = {name: sample("answers_total", **answer(model), outcome=name) for name in ("met", "decode", "failed")}
    assert counted == {"met": 0, "decode": 0, "failed": 1}
    assert sample("first_token_seconds_count", **answer(model)) == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize(("target", "outcome"), [(TARGET, ""), (ALWAYS_LATE, "unknown")])
def test_who_leaves_during_a_part_has_waited_for_nothing(
    model: str, is_cancelled: bool, target: Target, outcome: str
) -> None:
    meter = measure(model, target, is_part=True)
    meter.put(Step((Started(8, 4), TextDelta("a")), (1,), at_s=1.0))
    if is_cancelled:
        meter.put(Step((finished(FinishReason.CANCELLED),), at_s=1.1))
    meter.end()
    counted = {name: sample("answers_total", **answer(model), outcome=name) for name in ("met", "unknown", "failed")}
    assert counted == {"met": 0, "unknown": int(outcome == "unknown"), "failed": 0}


def test_the_client_has_what_was_generated_ahead_from_the_beginning(model: str) -> None:
    meter = measure(model, so_far=AnswerSoFar("It is. ", num_tokens=3, tokens=(1, 2, 3)))
    for name in ("first_token_seconds_count", "usable_seconds_count"):
        assert sample(name, **answer(model)) == 1
    meter.put(Step((Started(8, 8),), at_s=meter.began_s + 50.0))
    meter.put(Step((TextDelta("So"),), (4,), at_s=meter.began_s + 100.0))
    meter.put(Step((finished(output=4),)))
    meter.end()
    assert sample("inter_token_seconds_sum", **answer(model)) == pytest.approx(100.0, abs=1.0)
    assert sample("first_token_seconds_count", **answer(model)) == 1
    assert sample("decode_tokens_total", model=model) == 1
    assert meter.verdict == Verdict(Tier.INTERACTIVE, TARGET, "decode")


CALL = (ToolCallStarted(0, "c", "f"), ToolCallDelta(0, "{}"))


@pytest.mark.parametrize(
    ("deltas", "number"),
    [
        (["It is 3", ".", "14", ".", " And", " more"], 4),
        (["Dr", ". ", "No", "! ", "Yes. "], 3),
        (["e.g", ". this", " is it.", "\n"], 3),
        (["\n", "\n1. ", "First", "\n", "2. "], 3),
        (['She said "', "no.", '"', " Then"], 3),
        (["はい", "。"], 1),
        (["no end"], 1),  # the end of the answer
        ([ReasoningDelta("First. Then. "), "It is", " so. "], 2),
        ([*CALL], 2),
        ([*CALL, ToolCallStarted(1, "d", "g"), ToolCallDelta(1, "{}")], 2),
        (["I call", *CALL], 1),
        ([*CALL, "x"], 2),
    ],
)
def test_the_first_usable_answer(model: str, deltas: list[str | Delta], number: int) -> None:
    meter = measure(model)
    for index, delta in enumerate((*deltas, finished())):
        meter.put(Step((TextDelta(delta) if isinstance(delta, str) else delta,), (1,), at_s=1.0 + index))
        assert (meter.usable_s is not None) == (index >= number), index
    meter.end()
    assert sample("usable_seconds_count", **answer(model)) == 1


def test_a_cancelled_beginning_is_not_usable(model: str) -> None:
    meter = measure(model)
    meter.put(Step((TextDelta("It was"),), (1,), at_s=1.0))
    meter.put(Step((finished(FinishReason.CANCELLED),)))
    meter.end()
    assert sample("usable_seconds_count", **answer(model)) == 0
