"""Requests with equal answers share a remote's stream while it runs, and share nothing else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from edgeagent import metrics
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import EdgeAgentError, Overloaded, RemoteUnavailable
from edgeagent.remotes import Limits
from edgeagent.remotes.file import add_remote
from edgeagent.router.coalesce import SharedStreams
from edgeagent.router.router import Router
from edgeagent.types import (
    CachePolicy,
    Finished,
    FinishReason,
    GenerateRequest,
    Permit,
    RouteMode,
    SamplingParams,
    Started,
    TextDelta,
    Tier,
    replace,
)
from tests.backends.fake import Gate, finished
from tests.backends.remote.fault_server import Act, faults, half, stream
from tests.backends.remote.streams import ROLE, answer, chunk
from tests.backends.remote.support import until
from tests.router.test_remote_backends import ASKED, remote, router_at
from tests.router.test_routed_request import Answer, Place
from tests.worker.support import request

GREEDY = SamplingParams(temperature=0.0)
FIRST = replace(request("", "r1", "fake"), sampling=GREEDY)
SECOND = replace(FIRST, id="r2")
ALL = "one two three four"


class Asking:
    """A running request."""

    def __init__(self, router: Router, wanted: GenerateRequest) -> None:
        self.answer = Answer()
        self.task = asyncio.create_task(self._run(router, wanted))

    async def _run(self, router: Router, wanted: GenerateRequest) -> None:
        try:
            async for step in router.generate(wanted):
                self.answer.deltas += step.deltas
                self.answer.num_tokens += len(step.tokens)
        except EdgeAgentError as error:
            self.answer.error = error

    async def has(self, text: str) -> None:
        await until(lambda: self.answer.text == text)

    async def whole(self) -> Answer:
        await asyncio.wait_for(self.task, 5)
        return self.answer


def reason(answered: Answer) -> str:
    (told,) = answered.told
    assert told is not None and told == answered.end.timings.placement
    assert told.reason == answered.end.timings.reason
    return told.reason


def gated(gate: Gate) -> Place:
    """Return a remote that sends two words, waits at a gate, and sends two more."""
    begun = (Started(7, 3), TextDelta("one"), TextDelta(" two"))
    return Place("remote:gpu", (*begun, gate, TextDelta(" three"), TextDelta(" four"), finished(output=4)))


def router_of(*places: Place, mode: RouteMode = RouteMode.PREFER_REMOTE) -> Router:
    return Router(places, machine_mode=lambda: mode)


async def test_the_second_gets_all_of_the_first_ones_stream() -> None:
    gate = Gate()
    gpu = gated(gate)
    router = router_of(gpu)
    first = Asking(router, FIRST)
    await first.has("one two")
    second = Asking(router, SECOND)
    await second.has("one two")
    gate.opened.set()
    one, two = await first.whole(), await second.whole()
    assert one.text == two.text == ALL and one.num_tokens == two.num_tokens == 4
    assert (reason(one), reason(two)) == ("prefer_remote", "coalesced")
    assert one.end.usage == two.end.usage
    assert two.end.timings.first_token_ms >= 0.0 and two.end.timings.decode_ms >= 0.0
    assert [asked.id for asked in gpu.requests] == ["r1"]
    # Nothing is kept of an ended stream.
    assert (await Asking(router, replace(FIRST, id="r3")).whole()).text == ALL
    assert [asked.id for asked in gpu.requests] == ["r1", "r3"]


SAME = [
    {"tier": Tier.REALTIME},
    {"route": RouteMode.REMOTE_ONLY},
    {"reports_progress": True},
    {"cache": CachePolicy(lane="other", pin=True)},
]
OTHER = [
    {"client": "kiosk"},
    {"cache": CachePolicy(partition="kiosk")},
    {"cache": CachePolicy(persist=False)},
    {"cache": CachePolicy(read=False)},
    {"cache": CachePolicy(write=False)},
    {"timeout_s": 60.0},
    {"stop": ("x",)},
    {"max_tokens": 9},
    {"logprobs": 0},
    {"prompt": request("else").prompt},
    {"sampling": SamplingParams(temperature=0.0, top_k=1)},
    {"sampling": SamplingParams(temperature=0.0, seed=1)},
]


@pytest.mark.parametrize("fields", [*SAME, *OTHER])
async def test_only_what_would_be_sent_alike_is_shared_and_only_with_the_same_client(fields: dict[str, object]) -> None:
    gates = Gate(), Gate()
    gpu = gated(gates[0])
    gpu.acts.append([Started(7, 3), TextDelta("else"), gates[1], finished(output=4)])
    router = router_of(gpu)
    first = Asking(router, FIRST)
    await first.has("one two")
    second = Asking(router, replace(SECOND, **fields))
    await second.has("one two" if fields in SAME else "else")
    for gate in gates:
        gate.opened.set()
    await first.whole()
    await second.whole()
    assert len(gpu.requests) == (1 if fields in SAME else 2)


@pytest.mark.parametrize(
    ("sampling", "is_shared"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.7), False),
        (SamplingParams(temperature=0.7, seed=7), True),
        (GREEDY, True),
    ],
)
@pytest.mark.parametrize("fields", [{}, {"timeout_s": 60.0}, {"cache": CachePolicy(persist=False)}])
async def test_only_deterministic_requests_are_shared(
    sampling: SamplingParams, fields: dict[str, object], is_shared: bool
) -> None:
    """A request with its own deadline, or one that must not be stored, is shared under the same rule."""
    gate = Gate()
    gpu = gated(gate)
    router = router_of(gpu)
    both = [Asking(router, replace(each, sampling=sampling, **fields)) for each in (FIRST, SECOND)]
    await gate.reached.wait()
    gate.opened.set()
    for asking in both:
        assert (await asking.whole()).text == ALL
    assert len(gpu.requests) == (1 if is_shared and not fields else 2)


async def test_nothing_on_this_machine_is_shared() -> None:
    gate = Gate()
    local = gated(gate)
    local.name, local.expects = "local", replace(local.expects, backend="local", is_local=True)
    router = router_of(local, mode=RouteMode.LOCAL_ONLY)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    await gate.reached.wait()
    gate.opened.set()
    assert [(await asking.whole()).text for asking in both] == [ALL, ALL]
    assert len(local.requests) == 2


@pytest.mark.parametrize("gone", [0, 1])
async def test_a_cancel_ends_one_and_not_the_other(gone: int) -> None:
    gate = Gate()
    gpu = gated(gate)
    router = router_of(gpu)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    for asking in both:
        await asking.has("one two")
    router.cancel(("r1", "r2")[gone])
    ended = await both[gone].whole()
    assert ended.text == "one two" and ended.end.reason is FinishReason.CANCELLED
    assert (ended.end.usage.num_prompt_tokens, ended.end.usage.num_output_tokens) == (7, 2)
    assert gpu.cancelled == [] and gpu.num_live == 1
    gate.opened.set()
    assert (await both[1 - gone].whole()).text == ALL


@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1")])
async def test_the_last_cancel_reaches_the_remote(order: tuple[str, str]) -> None:
    gpu = gated(Gate())
    router = router_of(gpu)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    for asking in both:
        await asking.has("one two")
    for request_id in order:
        router.cancel(request_id)
    # A stream that is being cancelled accepts no more followers.
    late = Asking(router, replace(FIRST, id="r3"))
    for asking in both:
        assert (await asking.whole()).end.reason is FinishReason.CANCELLED
    assert gpu.cancelled == ["r1"]
    assert (await late.whole()).text == ALL and gpu.num_live == 0


async def test_two_cancels_at_once_leave_the_third_its_stream() -> None:
    gate = Gate()
    gpu = gated(gate)
    router = router_of(gpu)
    three = [Asking(router, replace(FIRST, id=name)) for name in ("r1", "r2", "r3")]
    for asking in three:
        await asking.has("one two")
    router.cancel("r1")
    router.cancel("r2")
    assert gpu.cancelled == []
    gate.opened.set()
    assert [(await asking.whole()).text for asking in three] == ["one two", "one two", ALL]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_the_last_client_that_leaves_stops_the_remote(order: tuple[int, int]) -> None:
    gpu = gated(Gate())
    router = router_of(gpu)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    for asking in both:
        await asking.has("one two")
    for index, num_closed in zip(order, (0, 1), strict=True):
        both[index].task.cancel()
        (ended,) = await asyncio.gather(both[index].task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        assert gpu.num_live == 1 - num_closed
    assert gpu.closed == ["r1"]


async def test_a_slow_client_holds_up_nobody() -> None:
    gpu = gated(gate := Gate())
    router = router_of(gpu)
    slow = router.generate(FIRST)
    await anext(slow)
    quick = Asking(router, SECOND)
    await quick.has("one two")
    gate.opened.set()
    assert (await quick.whole()).text == ALL
    rest = [delta async for step in slow for delta in step.deltas]
    assert "".join(delta.text for delta in rest if isinstance(delta, TextDelta)) == ALL
    assert isinstance(rest[-1], Finished) and len(gpu.requests) == 1


async def test_both_go_on_where_the_stream_breaks_and_again_as_one() -> None:
    gate = Gate()
    lost = RemoteUnavailable("cut", served_by="remote:gpu")
    gpu = Place("remote:gpu", (Started(7, 3), TextDelta("one"), TextDelta(" two"), gate, lost))
    other = Place("remote:b", first_token_s=1.0)
    router = router_of(gpu, other)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    for asking in both:
        await asking.has("one two")
    gate.opened.set()
    for asking in both:
        answered = await asking.whole()
        assert answered.text == ALL and answered.num_tokens == 4
        assert [(move.target, move.num_tokens) for move in answered.end.timings.handovers] == [("remote:b", 2)]
    assert len(gpu.requests) == len(other.requests) == 1


async def test_a_failure_is_told_to_each_and_to_nobody_later() -> None:
    gate = Gate()
    gpu = Place("remote:gpu", (gate, Overloaded("full")))
    router = router_of(gpu)
    both = [Asking(router, each) for each in (FIRST, SECOND)]
    await gate.reached.wait()
    await until(lambda: len(router._live) == 2)
    gate.opened.set()
    errors = [(await asking.whole()).error for asking in both]
    assert [type(error) for error in errors] == [Overloaded, Overloaded] and errors[0] is not errors[1]
    assert len(gpu.requests) == 1
    assert (await Asking(router, replace(FIRST, id="r3")).whole()).text == ALL


async def test_the_stream_of_a_remote_that_was_changed_is_followed_by_nobody() -> None:
    old, new, streams = gated(Gate()), Place("remote:gpu"), SharedStreams(time.monotonic)
    permit = Permit("r1", "gpu", RouteMode.PREFER_REMOTE, "prefer_remote")
    first = streams.steps(old, FIRST, permit, None)
    await anext(first)
    assert [step async for step in streams.steps(new, SECOND, permit, None)]
    assert [asked.id for asked in new.requests] == ["r2"]
    await first.aclose()


async def test_a_stream_that_broke_is_followed_by_nobody_while_a_slow_client_reads_it() -> None:
    gpu, streams = Place("remote:gpu", (Started(7, 3), Overloaded("full"))), SharedStreams(time.monotonic)
    permit = Permit("r1", "gpu", RouteMode.PREFER_REMOTE, "prefer_remote")
    slow, quick = (streams.steps(gpu, each, permit, None) for each in (FIRST, SECOND))
    await anext(slow), await anext(quick)
    with pytest.raises(Overloaded):
        await anext(quick)
    late = [step async for step in streams.steps(gpu, replace(FIRST, id="r3"), permit, None)]
    assert isinstance(late[-1].deltas[-1], Finished)
    with pytest.raises(Overloaded):
        await anext(slow)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_follower_is_timed_from_its_own_beginning(is_whole: bool) -> None:
    now_s, gate = [100.0], Gate()
    gpu, streams = gated(gate), SharedStreams(lambda: now_s[0])
    permit = Permit("r1", "gpu", RouteMode.PREFER_REMOTE, "prefer_remote")
    first, second = (streams.steps(gpu, each, permit, None) for each in (FIRST, SECOND))
    for _ in range(3):
        await anext(first)
    await anext(second)
    now_s[0] += 2.0
    assert (await anext(second)).at_s == 102.0
    now_s[0] += 1.0
    await anext(second)
    if is_whole:
        gate.opened.set()
    else:
        streams.cancel(gpu, "r2")
    *_, last = [step async for step in second]
    assert isinstance(end := last.deltas[-1], Finished)
    assert (end.timings.first_token_ms, end.timings.decode_ms) == (2000.0, 1000.0)
    await first.aclose()


async def test_a_stream_that_has_gone_far_takes_no_more_readers() -> None:
    gate = Gate()
    gpu, streams = gated(gate), SharedStreams(time.monotonic, max_kept_steps=2)
    permit = Permit("r1", "gpu", RouteMode.PREFER_REMOTE, "prefer_remote")
    first = streams.steps(gpu, FIRST, permit, None)
    early = streams.steps(gpu, SECOND, permit, None)
    await anext(first), await anext(early)
    for _ in range(2):
        await anext(first)
    late = streams.steps(gpu, replace(FIRST, id="r3"), permit, None)
    await anext(late)
    assert [asked.id for asked in gpu.requests] == ["r1", "r3"]
    gate.opened.set()
    texts = [delta.text async for step in early for delta in step.deltas if isinstance(delta, TextDelta)]
    assert "".join(texts) == ALL
    await first.aclose()
    await late.aclose()
    assert not streams._open and not streams._read


async def test_a_burst_is_counted_exactly(tmp_path: Path) -> None:
    """A stream that is about to start takes up its place, like any other."""
    limits = Limits(max_concurrent=2)
    async with (
        faults(stream(answer("far"))) as far,
        router_at(tmp_path, Place("local"), route="prefer_remote") as router,
    ):
        add_remote(tmp_path, remote(far.url, limits=limits))
        burst = [replace(ASKED, id=f"r{index}", sampling=GREEDY, max_tokens=index + 1) for index in range(5)]
        answers = [await asking.whole() for asking in [Asking(router, each) for each in burst]]
        assert [each.text == "far" for each in answers] == [True, True, False, False, False]
        assert not any(each.end.timings.handovers for each in answers)
        assert len(far.posts) == 2


async def test_one_connection_one_row_and_one_body_for_two_requests(tmp_path: Path) -> None:
    wanted = replace(ASKED, sampling=GREEDY)
    begun = half(ROLE, chunk({"content": "one"}), Act.STALL)
    async with (
        faults(begun, stream(answer("one", " more"))) as far,
        router_at(tmp_path, Place("local", knows=False)) as router,
    ):
        add_remote(tmp_path, remote(far.url))
        both = [Asking(router, replace(wanted, id=name)) for name in ("r1", "r2")]
        for asking in both:
            await asking.has("one")
        assert len(far.posts) == 1
        router.cancel("r1")
        assert (await both[0].whole()).end.reason is FinishReason.CANCELLED
        assert not far.posts[0].left.is_set()
        router.cancel("r2")
        assert (await both[1].whole()).end.reason is FinishReason.CANCELLED
        await asyncio.wait_for(far.posts[0].left.wait(), 5)
        (row,) = read_rows(folder_of(tmp_path))
        assert (row.request, row.outcome) == ("r1", "cancelled")
        again = await Asking(router, replace(wanted, id="r3")).whole()
        assert again.text == "one more" and reason(again) == "model_unknown"
        assert far.posts[0].body == far.posts[1].body


async def test_a_follower_needs_no_place_and_is_counted_as_one() -> None:
    def count(why: str) -> float:
        return float(metrics.placements_total.labels("remote:gpu", why)._value.get())

    gate = Gate()
    gpu = gated(gate)
    router = router_of(gpu, mode=RouteMode.REMOTE_ONLY)
    before = [count(why) for why in ("remote_only", "coalesced")]
    first = Asking(router, FIRST)
    await first.has("one two")
    gpu.expects = replace(gpu.expects, num_live=100, obstacle="budget")
    second, other = Asking(router, SECOND), Asking(router, replace(FIRST, id="r3", max_tokens=9))
    await second.has("one two")
    gate.opened.set()
    answers = [await asking.whole() for asking in (first, second)]
    assert [reason(each) for each in answers] == ["remote_only", "coalesced"]
    assert (await other.whole()).error is not None, "it has nothing to follow"
    assert [count(why) - 1 for why in ("remote_only", "coalesced")] == before
