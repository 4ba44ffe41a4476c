"""The measurements that a generation adds to the registry, for every way to end."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from edgeagent.metrics import REGISTRY
from edgeagent.metrics.meter import Meter
from edgeagent.service.client_sink import Ending
from edgeagent.types import FinishReason, Handover, Placement, Started, Step, TextDelta, Usage, replace
from tests.backends.fake import finished

models = (f"meter-{number}" for number in itertools.count())


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return next(models)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"edgeagent_{name}", labels) or 0.0


def live(model: str) -> tuple[float, float]:
    return sample("live_requests", model=model, state="waiting"), sample("live_requests", model=model, state="running")


def test_a_whole_generation(model: str) -> None:
    meter = Meter(lambda: model, Ending())
    assert live(model) == (1, 0)
    meter.put(Step((Started(8, 4),), at_s=1.0))
    assert live(model) == (0, 1)
    meter.put(Step((TextDelta("a"),), (1,), at_s=1.5))
    meter.put(Step((), (2,), at_s=1.52))
    meter.put(Step((TextDelta("b"), finished(output=4)), (3, 4), at_s=1.6))
    assert meter.end() == "stop"
    assert live(model) == (0, 0)
    assert sample("generations_total", model=model, end="stop") == 1
    assert sample("first_token_seconds_count", model=model) == 1
    assert sample("generation_seconds_count", model=model) == 1
    assert sample("inter_token_seconds_count", model=model) == 2
    assert sample("inter_token_seconds_sum", model=model) == pytest.approx(0.1)
    assert sample("prefill_tokens_total", model=model) == 4
    assert sample("prefix_cache_hit_tokens_total", model=model) == 4
    assert sample("decode_tokens_total", model=model) == 4
    assert sample("stage_seconds_count", stage="queue") > 0


@pytest.mark.parametrize(("served_by", "count"), [("local", 0), ("remote:{}", 1)])
def test_the_first_token_of_a_remote(model: str, served_by: str, count: int) -> None:
    meter = Meter(lambda: model, Ending())
    placement = Placement(served_by.format(model), "m", "queue_full")
    meter.put(Step((Started(8, 0, placement=placement),), at_s=1.0))
    meter.put(Step((TextDelta("a"),), (1,), at_s=1.5))
    meter.end()
    assert sample("first_token_seconds_count", model=model) == 1
    assert sample("remote_first_token_seconds_count", remote=model) == count


def test_the_end_is_no_output(model: str) -> None:
    meter = Meter(lambda: model, Ending())
    meter.put(Step((Started(8, 8),), at_s=1.0))
    meter.put(Step((finished(FinishReason.CANCELLED, output=0),)))
    assert meter.end() == "cancelled"
    assert sample("first_token_seconds_count", model=model) == 0
    assert sample("inter_token_seconds_count", model=model) == 0


def test_what_was_delivered_before_a_failure_counts(model: str) -> None:
    refused = sample("refused_total", reason="worker_crashed")
    meter = Meter(lambda: model, Ending())
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
    meter = Meter(lambda: model, Ending())
    assert meter.end("queue_full") == "queue_full"
    assert sample("refused_total", reason="queue_full") == refused + 1
    assert sample("generation_seconds_count", model=model) == 0
    assert live(model) == (0, 0)


def test_a_client_that_leaves_is_not_refused(model: str) -> None:
    refused = sample("refused_total", reason="abandoned")
    assert Meter(lambda: model, Ending()).end() == "abandoned"
    assert sample("refused_total", reason="abandoned") == refused


def test_a_name_that_nobody_serves_is_no_label(model: str) -> None:
    unknown = sample("generations_total", model="unknown", end="model_not_found")
    Meter(lambda: model, Ending()).end("model_not_found")
    assert sample("generations_total", model="unknown", end="model_not_found") == unknown + 1
    assert sample("generations_total", model=model, end="model_not_found") == 0


@pytest.mark.parametrize(
    "why", [{"handovers": (Handover("local", "local", 2, "worker_killed"),)}, {"route": "remote:cluster"}], ids=str
)
def test_stages_that_are_not_known_are_not_counted(model: str, why: dict[str, Any]) -> None:
    meter, stages = Meter(lambda: model, Ending()), ("queue", "prefill", "decode")
    before = {stage: sample("stage_seconds_count", stage=stage) for stage in stages}
    end = finished(output=4)
    meter.put(Step((replace(end, timings=replace(end.timings, **why)),)))
    meter.end()
    counts = [sample("stage_seconds_count", stage=stage) - before[stage] for stage in stages]
    assert counts == [0, 0, 1]
