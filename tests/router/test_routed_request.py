"""A failed request goes to another place: once, whole, reported truly, and never where it is not allowed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from prometheus_client import Counter, Histogram

from edgeagent import metrics
from edgeagent.backends.base import Estimate
from edgeagent.errors import (
    ContextLengthExceeded,
    EdgeAgentError,
    Forbidden,
    InternalError,
    InvalidRequest,
    LocalUnavailable,
    ModelNotFound,
    NotSupported,
    Overloaded,
    RemoteUnavailable,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.router.policy import strictest
from edgeagent.router.router import Router
from edgeagent.types import (
    AnswerSoFar,
    CachePolicy,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Handover,
    Interrupted,
    JsonObjectFormat,
    OutputFormat,
    Permit,
    Placement,
    ReasoningDelta,
    RouteMode,
    Started,
    Step,
    Target,
    TextDelta,
    TextFormat,
    Tier,
    ToolCallStarted,
    replace,
)
from tests.backends.fake import FakeBackend, Gate, finished
from tests.backends.reading import steps_of
from tests.fakes import FakeClock
from tests.worker.support import request

WORDS = ("one", " two", " three", " four")
LOST = RemoteUnavailable("the connection was lost", served_by="remote:gpu")
CRASH = WorkerCrashed("signal 9", served_by="local")
Act = Delta | Gate | EdgeAgentError


class Place(FakeBackend):
    """A place that answers with WORDS, or continues them after the given text; each of `acts` replaces one answer."""

    def __init__(self, name: str, *acts: Sequence[Act], knows: bool = True, **estimate: Any) -> None:
        super().__init__(models=("fake",) if knows else ("other",))
        self.name = name
        self.acts = list(acts)
        self.expects = Estimate(name, 0, **estimate)
        self.permits: list[Permit | None] = []
        self.so_fars: list[AnswerSoFar | None] = []
        self.num_asked = 0

    def estimate(self, request: GenerateRequest) -> Estimate:
        self.num_asked += 1
        self.find(request.model)
        return self.expects

    async def play(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        self.permits.append(permit)
        self.so_fars.append(so_far)
        num_words = len(so_far.text.split()) if so_far is not None else 0
        num_before = so_far.num_tokens if so_far is not None else 0
        acts = self.acts.pop(0) if self.acts else None
        rest = [TextDelta(word) for word in WORDS[num_words:]]
        self.script = lambda _: acts if acts is not None else (Started(7, 3), *rest, finished(output=num_before + 4))
        async with aclosing(super().play(request, permit, so_far)) as steps:
            async for step in steps:
                tokens = (1,) * sum(isinstance(delta, TextDelta | ReasoningDelta) for delta in step.deltas)
                yield replace(step, tokens=tokens)


class Answer:
    """What a client received."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.num_tokens = 0
        self.error: EdgeAgentError | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def end(self) -> Finished:
        (end,) = [delta for delta in self.deltas if isinstance(delta, Finished)]
        assert self.deltas[-1] is end
        return end

    @property
    def told(self) -> list[Placement | None]:
        return [delta.placement for delta in self.deltas if isinstance(delta, Started)]


async def run(
    places: Sequence[Place], mode: RouteMode = RouteMode.PREFER_LOCAL, wanted: GenerateRequest | None = None
) -> Answer:
    router = places if isinstance(places, Router) else Router(places, machine_mode=lambda: mode)
    answer = Answer()
    try:
        async for step in steps_of(router.generate, wanted or request("", model="fake")):
            answer.deltas += step.deltas
            answer.num_tokens += len(step.tokens)
    except EdgeAgentError as error:
        answer.error = error
    assert not any(isinstance(delta, Interrupted) for delta in answer.deltas)
    return answer


@pytest.mark.parametrize("error", [Overloaded("full"), CRASH, InternalError("?"), ContextLengthExceeded("long")])
async def test_before_the_first_content_another_place_is_tried(error: EdgeAgentError) -> None:
    local, gpu = Place("local", (Started(1, 0), error)), Place("remote:gpu")
    answer = await run([local, gpu])
    assert answer.text == "one two three four"
    assert answer.told == [Placement("remote:gpu", "fake", "local_failed")]
    assert answer.end.timings.handovers == (Handover("local", "remote:gpu", 0, error.code),)
    assert gpu.permits == [Permit("r1", "gpu", RouteMode.PREFER_LOCAL, "local_failed")]
    assert gpu.so_fars == [None]


async def test_a_mistake_of_the_request_is_told_at_once() -> None:
    gpu = Place("remote:gpu")
    answer = await run([Place("local", [InvalidRequest("bad schema")]), gpu])
    assert isinstance(answer.error, InvalidRequest) and gpu.permits == []
    answer = await run([Place("local", [RequestTimeout("late")]), gpu])
    assert isinstance(answer.error, RequestTimeout) and gpu.permits == []


async def test_what_one_remote_refuses_is_tried_here_and_at_no_other_remote() -> None:
    gpu, other, local = Place("remote:gpu", [InvalidRequest("no such field")]), Place("remote:other"), Place("local")
    answer = await run([local, gpu, other], RouteMode.PREFER_REMOTE)
    assert answer.text == "one two three four" and other.permits == []
    assert (answer.end.timings.route, answer.end.timings.reason) == ("local", "remote_failed")


async def test_what_a_place_cannot_do_is_told_only_where_none_could() -> None:
    lacking = Place("remote:gpu", [NotSupported("no logprobs")])
    answer = await run([Place("local", [Overloaded("full", retry_after_s=3.0)]), lacking])
    assert isinstance(answer.error, Overloaded) and answer.error.retry_after_s == 3.0
    lacking.acts = [[NotSupported("no logprobs")]]
    answer = await run([Place("local", [NotSupported("no echo")]), lacking])
    assert isinstance(answer.error, NotSupported)


async def test_where_a_remotes_context_is_too_short_and_this_machine_is_full_that_is_told() -> None:
    short = ContextLengthExceeded("remote:gpu: its context is 256 tokens", served_by="remote:gpu")
    gpu = Place("remote:gpu", [short])
    local = Place("local", obstacle="", strain="")
    local.expects = replace(local.expects, num_live=100, is_full=True, retry_after_s=4.0)
    answer = await run([local, gpu])
    assert isinstance(answer.error, Overloaded) and answer.error.retry_after_s == 4.0
    assert "100 requests are running" in answer.error.message and "256 tokens" in answer.error.message
    crashed = await run([Place("local", [CRASH]), Place("remote:gpu", [short])], RouteMode.PREFER_REMOTE)
    assert isinstance(crashed.error, WorkerCrashed), "it would have fitted here"
    alone = await run([Place("remote:gpu", [short])], RouteMode.REMOTE_ONLY)
    assert isinstance(alone.error, ContextLengthExceeded)
    known = await run([Place("remote:gpu", obstacle="context")], RouteMode.REMOTE_ONLY)
    assert isinstance(known.error, ContextLengthExceeded), "without asking it"


@pytest.mark.parametrize("num_words", range(1, 4))
@pytest.mark.parametrize("names", [("local", "remote:gpu"), ("remote:gpu", "remote:b"), ("remote:gpu", "local")])
async def test_an_answer_goes_on_behind_what_was_delivered(names: tuple[str, str], num_words: int) -> None:
    first = Place(names[0], (Started(7, 3), *map(TextDelta, WORDS[:num_words]), replace_error(names[0])))
    second = Place(names[1], first_token_s=1.0)
    mode = RouteMode.PREFER_LOCAL if names[0] == "local" else RouteMode.PREFER_REMOTE
    answer = await run([first, second], mode)
    assert answer.text == "one two three four" and answer.num_tokens == 4
    assert second.so_fars == [AnswerSoFar("".join(WORDS[:num_words]), "", num_words)]
    assert answer.end.usage.num_output_tokens == num_words + 4
    assert len(answer.told) == 1
    reason = "worker_crashed" if names[0] == "local" else "remote_unavailable"
    assert answer.end.timings.handovers == (Handover(*names, num_words, reason),)
    assert answer.end.timings.route == names[1]
    # For the place that gave the first token, these times are unknown.
    assert (answer.end.timings.queue_ms, answer.end.timings.prefill_ms) == (0.0, 0.0)
    assert answer.end.timings.placement is not None and answer.end.timings.placement.served_by == names[1]


def replace_error(name: str) -> EdgeAgentError:
    return WorkerCrashed("signal 9", served_by="local") if name == "local" else RemoteUnavailable("cut", served_by=name)


async def test_it_goes_on_more_than_once() -> None:
    gpu = Place("remote:gpu", (Started(7, 0), ReasoningDelta("hm"), TextDelta("one"), LOST))
    other = Place("remote:b", (Started(7, 0), TextDelta(" two"), TextDelta(" three"), LOST), first_token_s=1.0)
    local = Place("local")
    answer = await run([local, gpu, other], RouteMode.PREFER_REMOTE)
    assert answer.text == "one two three four"
    assert local.so_fars == [AnswerSoFar("one two three", "hm", 4)]
    moves = [(move.source, move.target, move.num_tokens) for move in answer.end.timings.handovers]
    assert moves == [("remote:gpu", "remote:b", 2), ("remote:b", "local", 4)]


@pytest.mark.parametrize(
    ("fields", "deltas"),
    [
        ({"logprobs": 1}, [TextDelta("one")]),
        ({"echo": True}, [TextDelta("one")]),
        ({}, [TextDelta("one"), ToolCallStarted(0, "call_1", "now")]),
    ],
)
async def test_what_cannot_go_on_exactly_ends_in_one_error_with_the_count(
    fields: dict[str, object], deltas: list[Delta]
) -> None:
    gpu = Place("remote:gpu")
    wanted = replace(request("", model="fake"), **fields)
    crash = WorkerCrashed("signal 9", served_by="local")
    answer = await run([Place("local", (Started(7, 3), *deltas, crash)), gpu], wanted=wanted)
    assert answer.error is crash and crash.num_delivered_tokens == 1
    assert gpu.permits == []


async def test_where_no_other_place_goes_on_the_break_itself_is_told() -> None:
    lost = RemoteUnavailable("cut", served_by="remote:gpu")
    gpu = Place("remote:gpu", (Started(7, 3), TextDelta("one"), lost))
    others = [Place("remote:b", [NotSupported("does not continue")]), Place("local", [Overloaded("full")])]
    answer = await run([gpu, *others], RouteMode.PREFER_REMOTE)
    assert answer.error is lost and lost.num_delivered_tokens == 1
    assert len(others[0].permits) == len(others[1].permits) == 1


async def test_an_answer_that_has_all_its_tokens_ends_without_another_place() -> None:
    gpu, local = Place("remote:gpu", (Started(7, 3), TextDelta("one"), TextDelta(" two"), LOST)), Place("local")
    wanted = replace(request("", model="fake"), max_tokens=2)
    answer = await run([gpu, local], RouteMode.PREFER_REMOTE, wanted)
    assert (answer.end.reason, answer.end.usage.num_output_tokens) == (FinishReason.LENGTH, 2)
    assert local.permits == []


class TestAWorkerThatDied:
    """A new worker continues the requests of the dead one, unless a remote can do so sooner."""

    def dying(self, **estimate: Any) -> Place:
        rest = (TextDelta(" two"), TextDelta(" three"), TextDelta(" four"), finished(output=4))
        return Place("local", (Started(7, 3), TextDelta("one"), Interrupted("worker_killed"), *rest), **estimate)

    async def test_a_warm_remote_takes_over(self) -> None:
        local, gpu = self.dying(), Place("remote:gpu", first_token_s=0.1)
        local.expects = replace(local.expects, first_token_s=0.05)
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL)
        answer = Answer()
        async for step in steps_of(router.generate, request("", model="fake")):
            answer.deltas += step.deltas
            local.expects = replace(local.expects, first_token_s=2.0, strain="loading")
        assert answer.text == "one two three four"
        assert answer.end.timings.handovers == (Handover("local", "remote:gpu", 1, "worker_lost"),)
        assert local.closed == ["r1"]

    async def test_a_remote_that_takes_over_has_what_is_left_of_the_requests_time(self) -> None:
        now = FakeClock()
        local, gpu = self.dying(), Place("remote:gpu", first_token_s=0.1)
        local.expects = replace(local.expects, first_token_s=0.05)
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL, clock=now)
        async for step in steps_of(router.generate, replace(request("", model="fake"), timeout_s=10.0)):
            if step.tokens and not gpu.requests:
                now.advance(4.0)
                local.expects = replace(local.expects, first_token_s=2.0, strain="loading")
        assert [each.timeout_s for each in gpu.requests] == [6.0]

    @pytest.mark.parametrize(
        "remote",
        [{"first_token_s": 0.5}, {"first_token_s": 0.01, "obstacle": "budget"}],
    )
    async def test_its_successor_is_sooner(self, remote: dict[str, Any]) -> None:
        gpu = Place("remote:gpu", **remote)
        answer = await run([self.dying(first_token_s=0.2), gpu])
        assert answer.text == "one two three four" and gpu.permits == []
        assert answer.end.timings.route == "local"

    async def test_a_remote_that_is_removed_before_it_takes_over_leaves_it_to_the_successor(self) -> None:
        class Left(Place):
            """A place that closes slowly; meanwhile the owner removes the remote."""

            async def play(self, *args: Any) -> AsyncGenerator[Step, None]:
                try:
                    async with aclosing(super().play(*args)) as steps:
                        async for step in steps:
                            yield step
                finally:
                    router._backends.pop("remote:gpu", None)

        rest = (Started(7, 3), TextDelta("one"), Interrupted("worker_killed"), Gate())
        local, gpu = Left("local", rest, first_token_s=0.05), Place("remote:gpu", first_token_s=0.1)
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL)
        answer = Answer()
        async for step in steps_of(router.generate, request("", model="fake")):
            answer.deltas += step.deltas
            local.expects = replace(local.expects, first_token_s=2.0, strain="loading")
        assert answer.text == "one two three four" and gpu.permits == []
        moves = [(move.source, move.target, move.reason) for move in answer.end.timings.handovers]
        assert moves == [
            ("local", "remote:gpu", "worker_lost"),
            ("remote:gpu", "local", "remote_unavailable"),
        ]

    @pytest.mark.parametrize(
        ("began", "output"), [(TextDelta("one"), JsonObjectFormat()), (ReasoningDelta("one"), TextFormat())]
    )
    async def test_what_no_remote_can_continue_is_left_to_the_successor(
        self, began: Delta, output: OutputFormat
    ) -> None:
        rest = (Started(7, 3), began, Interrupted("worker_killed"), TextDelta(" two"), finished(output=2))
        local, gpu = Place("local", rest, first_token_s=0.05), Place("remote:gpu", first_token_s=0.1)
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL)
        answer = Answer()
        async for step in steps_of(router.generate, replace(request("", model="fake"), format=output)):
            answer.deltas += step.deltas
            local.expects = replace(local.expects, first_token_s=2.0, strain="loading")
        assert answer.text.endswith(" two") and gpu.permits == []
        assert answer.end.timings.handovers == ()

    async def test_it_may_not_leave(self) -> None:
        gpu = Place("remote:gpu", first_token_s=0.01)
        answer = await run([self.dying(first_token_s=9.0), gpu], RouteMode.LOCAL_ONLY)
        assert answer.text == "one two three four" and (gpu.num_asked, gpu.permits) == (0, [])


FAILURES = [Overloaded("full"), CRASH, LOST, ContextLengthExceeded("long"), ModelNotFound("none"), InternalError("?")]


@pytest.mark.parametrize("machine", RouteMode)
@pytest.mark.parametrize("asked", [None, *RouteMode])
@pytest.mark.parametrize("delivered", [(), (Started(7, 3),), (Started(7, 3), TextDelta("one"))])
async def test_what_is_local_only_asks_no_remote_whatever_fails(
    machine: RouteMode, asked: RouteMode | None, delivered: tuple[Delta, ...]
) -> None:
    """No remote is even asked for an estimate; the strictest mode applies."""
    order = list(RouteMode)
    is_kept = RouteMode.LOCAL_ONLY in (machine, asked)
    for error in FAILURES:
        local, gpu = Place("local", (*delivered, type(error)(error.message))), Place("remote:gpu")
        answer = await run([local, gpu], machine, replace(request("", model="fake"), route=asked))
        assert (gpu.num_asked == 0) == is_kept
        assert (gpu.permits == []) == is_kept
        if is_kept:
            assert answer.error is not None
        else:
            assert answer.text == "one two three four"
            expected = min([machine, asked or machine], key=order.index)
            assert {permit.mode for permit in gpu.permits if permit is not None} == {expected}


async def test_what_failed_here_and_may_not_leave_says_what_would_have_been_sent() -> None:
    secret = "my secret " * 4
    wanted = replace(request(secret, model="fake"), route=RouteMode.LOCAL_ONLY)
    local = Place("local", [Overloaded("the queue is full", retry_after_s=4.0)])
    answer = await run([local, Place("remote:gpu")], RouteMode.PREFER_LOCAL, wanted)
    error = answer.error
    assert isinstance(error, LocalUnavailable) and (error.retry_after_s, error.served_by) == (4.0, "local")
    assert (
        "the queue is full (queue_full)" in error.message and f"{len(secret)} bytes, about 10 tokens" in error.message
    )
    assert "secret" not in error.message
    answer = await run([Place("local", knows=False), Place("remote:gpu")], RouteMode.LOCAL_ONLY, wanted)
    assert isinstance(answer.error, LocalUnavailable) and "model_not_found" in answer.error.message
    alone = await run([Place("local", [Overloaded("the queue is full")])], RouteMode.LOCAL_ONLY, wanted)
    assert isinstance(alone.error, Overloaded), "nothing would have been sent anywhere"


async def test_consent_that_is_withdrawn_holds_from_the_next_attempt_on() -> None:
    modes = itertools.chain([RouteMode.PREFER_REMOTE] * 2, itertools.repeat(RouteMode.LOCAL_ONLY))
    gpu = Place("remote:gpu", (Started(7, 0), TextDelta("one"), LOST))
    other, local = Place("remote:b", first_token_s=0.9), Place("local")
    router = Router([gpu, other, local], machine_mode=lambda: next(modes))
    answer = Answer()
    async for step in steps_of(router.generate, request("", model="fake")):
        answer.deltas += step.deltas
    assert answer.text == "one two three four"
    assert (answer.end.timings.route, other.permits) == ("local", [])


async def test_a_cancel_between_two_places_ends_politely() -> None:
    gate = Gate()

    class Deaf(Place):
        """A place that fails when it is cancelled, instead of ending."""

        def cancel(self, request_id: str) -> None:
            gate.opened.set()

    deaf, local = Deaf("remote:gpu", (Started(7, 2), TextDelta("one"), gate, LOST)), Place("local")
    router = Router([deaf, local], machine_mode=lambda: RouteMode.PREFER_REMOTE)
    answer = Answer()
    async for step in steps_of(router.generate, request("", model="fake")):
        answer.deltas += step.deltas
        if answer.text:
            router.cancel("r1")
    assert answer.end.reason is FinishReason.CANCELLED
    assert (answer.end.usage.num_prompt_tokens, answer.end.usage.num_output_tokens) == (7, 1)
    assert local.permits == []


class TestALateMachine:
    """A machine that exceeds its patience is left for a remote, and only then."""

    wanted = replace(request("", model="fake"), tier=Tier.REALTIME)
    hurry = dict.fromkeys(Tier, Target(0.0, 1.0))
    """With these targets, a machine that expects its first token at once has no time at all."""

    def router(self, *places: Place, modes: Sequence[RouteMode] = (RouteMode.PREFER_LOCAL,)) -> Router:
        return Router(places, machine_mode=lambda: modes[-1], targets=self.hurry)

    async def test_a_remote_answers_and_that_is_told(self) -> None:
        local, gpu = Place("local", (Started(7, 3), Gate()), first_token_s=0.0), Place("remote:gpu", first_token_s=1.0)
        answer = await run(self.router(local, gpu), wanted=self.wanted)  # type: ignore[arg-type]
        assert answer.text == "one two three four"
        assert answer.told == [Placement("remote:gpu", "fake", "local_late")]
        assert [permit and permit.reason for permit in gpu.permits] == ["local_late"]
        assert local.closed == ["r1"] and local.num_live == 0
        assert answer.end.timings.handovers == (Handover("local", "remote:gpu", 0, "local_late"),)

    async def test_where_the_remote_fails_this_machine_has_all_the_time(self) -> None:
        local, gpu = Place("local", (Started(7, 3), Gate()), first_token_s=0.0), Place("remote:gpu", [LOST])
        gpu.expects = replace(gpu.expects, first_token_s=1.0)
        answer = await run(self.router(local, gpu), wanted=self.wanted)  # type: ignore[arg-type]
        assert answer.text == "one two three four"
        assert answer.told == [Placement("local", "fake", "remote_failed")]

    async def test_an_answer_that_has_begun_may_take_its_time(self) -> None:
        gate = Gate()
        rest = (Started(7, 3), TextDelta("one"), gate, TextDelta(" two"), finished())
        local, gpu = Place("local", rest, first_token_s=0.0), Place("remote:gpu", first_token_s=1.0)
        router = Router(
            [local, gpu],
            machine_mode=lambda: RouteMode.PREFER_LOCAL,
            targets=dict.fromkeys(Tier, Target(3600.0, 1.0)),
        )
        running = asyncio.create_task(run(router, wanted=self.wanted))  # type: ignore[arg-type]
        await gate.reached.wait()
        gate.opened.set()
        assert (await running).text == "one two" and gpu.permits == []

    @pytest.mark.parametrize("change", ["removed", "forbidden", "full", "unreachable"])
    async def test_without_another_place_it_is_waited_for(self, change: str) -> None:
        gate, modes = Gate(), [RouteMode.PREFER_LOCAL]
        local = Place("local", (Started(7, 3), gate, TextDelta("one"), finished()), first_token_s=0.0)
        gpu = Place("remote:gpu", first_token_s=1.0)
        router = self.router(local, gpu, modes=modes)
        running = asyncio.create_task(run(router, wanted=self.wanted))  # type: ignore[arg-type]
        await local.until(lambda backend: backend.num_live == 1)
        match change:
            case "removed":
                del router._backends["remote:gpu"]
            case "forbidden":
                modes.append(RouteMode.LOCAL_ONLY)
            case "full":
                gpu.expects = replace(gpu.expects, is_full=True)
            case _:
                gpu.expects = replace(gpu.expects, obstacle="unreachable", is_last_resort=True)
        await gate.reached.wait()
        gate.opened.set()
        answer = await running
        assert answer.text == "one" and gpu.permits == []
        assert answer.told == [Placement("local", "fake", "prefer_local")]

    async def test_a_successor_that_does_not_come_is_not_waited_for(self) -> None:
        acts = (Started(7, 3), TextDelta("one"), Interrupted("worker_killed"), Gate())
        local, gpu = Place("local", acts, first_token_s=0.0), Place("remote:gpu", first_token_s=1.0)
        targets = dict.fromkeys(Tier, Target(3600.0, 1.0))
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL, targets=targets)
        answer = Answer()
        async for step in steps_of(router.generate, self.wanted):
            answer.deltas += step.deltas
            targets.update(self.hurry)
        assert answer.text == "one two three four"
        assert answer.end.timings.handovers == (Handover("local", "remote:gpu", 1, "local_late"),)

    @pytest.mark.parametrize("delivered", [(), (Started(7, 3),), (Started(7, 3), TextDelta("one"))])
    async def test_a_model_whose_file_has_gone_is_found_elsewhere(self, delivered: tuple[Delta, ...]) -> None:
        gone = ModelNotFound("/models/m.gguf does not exist; check the path", served_by="local")
        local, gpu = Place("local", (*delivered, gone)), Place("remote:gpu")
        router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL)
        answer = await run(router, wanted=self.wanted)  # type: ignore[arg-type]
        assert answer.text == "one two three four" and len(gpu.permits) == 1


async def test_an_answer_whose_beginning_the_client_gave_goes_on_behind_both() -> None:
    """The text that the client gave does not count as tokens of this answer."""
    gpu = Place("remote:gpu", (Started(7, 3), TextDelta(" two"), LOST))
    local = Place("local")
    wanted = replace(request("", model="fake"), so_far=AnswerSoFar("one", "hm"))
    answer = await run([gpu, local], RouteMode.PREFER_REMOTE, wanted)
    assert gpu.so_fars == [AnswerSoFar("one", "hm")] and local.so_fars == [AnswerSoFar("one two", "hm", 1)]
    assert answer.text == " two three four"


async def test_progress_is_told_as_it_comes_though_the_answer_may_move() -> None:
    gate = Gate()
    local = Place("local", (Started(7, 3), gate, TextDelta("one"), finished()))
    router = Router([local, Place("remote:gpu")], machine_mode=lambda: RouteMode.PREFER_LOCAL)
    told = steps_of(router.generate, replace(request("", model="fake"), reports_progress=True))
    assert isinstance((await anext(told)).deltas[0], Started)
    assert not gate.opened.is_set()
    await told.aclose()


async def test_a_conversation_stays_where_it_runs_until_its_reason_has_gone_for_good() -> None:
    local, gpu = Place("local", strain="memory"), Place("remote:gpu")
    router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL)
    wanted = replace(request("", model="fake"), cache=CachePolicy(lane="talk"))
    reasons = []
    for fields in ({}, {"strain": "", "first_token_s": 2.0}, {"first_token_s": 0.1}):
        local.expects = replace(local.expects, **fields)
        end = (await run(router, wanted=wanted)).end  # type: ignore[arg-type]
        reasons.append((end.timings.route, end.timings.reason))
    assert reasons == [("remote:gpu", "memory"), ("remote:gpu", "conversation"), ("local", "prefer_local")]


def counted(metric: Counter | Histogram, **labels: str) -> float:
    """Return the sum of a metric's values so far."""
    samples = [sample for family in metric.collect() for sample in family.samples]
    return sum(each.value for each in samples if each.name.endswith(("_total", "_sum")) and each.labels == labels)


async def test_an_answer_counts_once_as_placed_where_its_first_content_came_from() -> None:
    """The prediction is compared with the time since that place was asked, whatever earlier places took."""

    class Timed(Place):
        """A place that waits before its first step."""

        takes_s = 0.0

        async def play(self, *args: Any) -> AsyncGenerator[Step, None]:
            now.advance(self.takes_s)
            async with aclosing(super().play(*args)) as steps:
                async for step in steps:
                    yield step

    now = FakeClock()
    local, gpu = Timed("local", (Started(7, 3), CRASH)), Timed("remote:placed", first_token_s=0.25)
    local.takes_s, gpu.takes_s = 100.0, 2.0
    router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL, clock=now)
    reason = "local_failed"
    before = counted(metrics.placements_total, served_by="remote:placed", reason=reason)
    missed_s = counted(metrics.prediction_error_seconds, served_by="remote:placed")
    here = counted(metrics.placements_total, served_by="local", reason="prefer_local")
    assert (await run(router)).text == "one two three four"  # type: ignore[arg-type]
    assert counted(metrics.placements_total, served_by="remote:placed", reason=reason) == before + 1
    assert counted(metrics.prediction_error_seconds, served_by="remote:placed") == pytest.approx(missed_s + 1.75)
    assert counted(metrics.placements_total, served_by="local", reason="prefer_local") == here


@pytest.mark.parametrize(("taken_s", "left_s"), [(3.0, 7.0), (10.0, None)])
async def test_the_next_place_has_what_is_left_of_the_requests_time(taken_s: float, left_s: float | None) -> None:
    class Slow(Place):
        def estimate(self, request: GenerateRequest) -> Estimate:
            now.advance(taken_s)
            return super().estimate(request)

    now = FakeClock()
    local, gpu = Slow("local", [Overloaded("full")]), Place("remote:gpu")
    router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL, clock=now)
    answer = await run(router, wanted=replace(request("", model="fake"), timeout_s=10.0))  # type: ignore[arg-type]
    assert [each.timeout_s for each in local.requests] == [10.0]
    assert [each.timeout_s for each in gpu.requests] == ([] if left_s is None else [left_s])
    assert isinstance(answer.error, RequestTimeout) == (left_s is None)


async def test_a_deadline_that_passes_between_two_places_is_the_error() -> None:
    """The error is the deadline, not the first place's failure, and it states what was delivered."""
    now = FakeClock()
    local, gpu = Place("local", (Started(7, 3), TextDelta("one"), CRASH)), Place("remote:gpu")
    router = Router([local, gpu], machine_mode=lambda: RouteMode.PREFER_LOCAL, clock=now)
    wanted = replace(request("", model="fake"), timeout_s=10.0)
    with pytest.raises(RequestTimeout) as caught:
        async for step in steps_of(router.generate, wanted):
            now.advance(10.0 * bool(step.tokens))
    assert (caught.value.num_delivered_tokens, gpu.requests) == (1, [])


async def test_prompt_tokens_are_those_of_the_place_that_began() -> None:
    """The next place counts the delivered part as prompt, or the rest of the prompt alone."""
    gpu, local = Place("remote:gpu", (Started(42, 3), TextDelta("one"), LOST)), Place("local")
    answer = await run([gpu, local], RouteMode.PREFER_REMOTE)
    assert (answer.end.usage.num_prompt_tokens, answer.end.usage.num_cached_tokens) == (42, 3)


def asking(mode: RouteMode | None, **fields: Any) -> GenerateRequest:
    return replace(request("", model="fake"), route=mode, asked_route=mode, **fields)


@pytest.mark.parametrize("machine", [RouteMode.LOCAL_ONLY, RouteMode.PREFER_LOCAL, RouteMode.PREFER_REMOTE])
@pytest.mark.parametrize("asked", [None, RouteMode.LOCAL_ONLY, RouteMode.PREFER_LOCAL, RouteMode.PREFER_REMOTE])
async def test_a_mode_that_does_not_apply_is_told(machine: RouteMode, asked: RouteMode | None) -> None:
    answer = await run([Place("local"), Place("remote:gpu")], machine, asking(asked))
    order = list(RouteMode)
    is_overruled = asked is not None and order.index(asked) > order.index(machine)
    (told,) = answer.told
    assert told is not None and (machine.value in told.overruled) == is_overruled
    assert answer.end.timings.placement == told


FAILING = [LOST], [Overloaded("full")], [InvalidRequest("no such field")], (Started(1, 0), TextDelta("one"), LOST)


@pytest.mark.parametrize("machine", RouteMode)
@pytest.mark.parametrize("kind", [{}, {"choices": ("a", "b")}, {"prefill_only": True}, {"is_ahead": True}])
async def test_a_request_for_remotes_alone_is_never_computed_here(machine: RouteMode, kind: dict[str, Any]) -> None:
    """Whatever the machine, a token, the backends and the kind of the request are. And no mode is exceeded."""
    tokens = (None, *RouteMode)
    locals_: tuple[dict[str, Any] | None, ...] = (
        *({}, {"strain": "memory"}, {"obstacle": "failed"}, {"first_token_s": 99.0}),
        None,
    )
    remotes: tuple[Any, ...] = ({}, {"obstacle": "unreachable"}, *FAILING, None)
    for token, local, remote in itertools.product(tokens, locals_, remotes):
        case = (token, local, remote)
        route = strictest(token, RouteMode.LOCAL_ONLY if kind else None, RouteMode.REMOTE_ONLY)
        acts, estimate = ((), remote) if isinstance(remote, dict) else ((remote,), {})
        gpu = None if remote is None else Place("remote:gpu", *acts, **estimate)
        here = None if local is None else Place("local", **local)
        wanted = replace(asking(RouteMode.REMOTE_ONLY, **kind), route=route)
        answer = await run([place for place in (here, gpu) if place is not None], machine, wanted)
        assert here is None or here.requests == [], case
        mode = strictest(machine, route)
        if gpu is None or mode is RouteMode.LOCAL_ONLY:
            assert answer.error is not None and (gpu is None or gpu.requests == []), case
        elif mode is RouteMode.PREFER_LOCAL and local == {}:
            assert isinstance(answer.error, Forbidden) and gpu.requests == [], case
        elif remote == {}:
            assert answer.error is None and answer.text == "one two three four", case
        else:
            assert answer.error is not None and not isinstance(answer.error, Forbidden), case


@pytest.mark.parametrize(
    ("wanted", "machine", "why"),
    [
        (asking(RouteMode.REMOTE_ONLY), RouteMode.LOCAL_ONLY, "this machine's mode is local_only"),
        (asking(RouteMode.REMOTE_ONLY), RouteMode.PREFER_LOCAL, "mode is prefer_local, and this machine can serve it"),
        (replace(asking(RouteMode.REMOTE_ONLY), route=RouteMode.LOCAL_ONLY), RouteMode.PREFER_REMOTE, "its token"),
        (
            replace(asking(RouteMode.REMOTE_ONLY, choices=("a", "b")), route=RouteMode.LOCAL_ONLY),
            RouteMode.PREFER_REMOTE,
            "choices are computed on this machine alone",
        ),
    ],
)
async def test_a_refusal_says_which_rule_holds(wanted: GenerateRequest, machine: RouteMode, why: str) -> None:
    answer = await run([Place("local"), Place("remote:gpu")], machine, wanted)
    assert isinstance(answer.error, Forbidden) and answer.error.param == "edgeagent.route"
    assert why in answer.error.message


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFound("none", served_by="remote:gpu"),
        RemoteUnavailable("down", served_by="remote:gpu"),
        Overloaded("429"),
    ],
)
async def test_a_full_machine_says_that_it_is_full_whatever_the_remote_says(error: EdgeAgentError) -> None:
    local = Place("local")
    local.expects = replace(local.expects, num_live=100, is_full=True, retry_after_s=4.0)
    answer = await run([local, Place("remote:gpu", [error])])
    assert isinstance(answer.error, Overloaded)


async def test_a_model_that_exists_nowhere_is_not_found() -> None:
    there = ModelNotFound("it does not have the model", served_by="remote:gpu")
    answer = await run([Place("local", knows=False), Place("remote:gpu", [there])])
    assert isinstance(answer.error, ModelNotFound)
    answer = await run([Place("local", knows=False), Place("remote:gpu", knows=False)])
    assert isinstance(answer.error, ModelNotFound)
