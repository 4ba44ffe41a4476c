"""Live requests: each request ends once, whatever workers send or do, in any order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgeagent.errors import BackendUnavailable, WorkerCrashed
from edgeagent.types import (
    AnswerSoFar,
    Finished,
    FinishReason,
    Handover,
    Started,
    Step,
    TextDelta,
    Tier,
    Timings,
    TokenLogprob,
    Usage,
    replace,
)
from edgeagent.worker.parent.supervision.model_requests import EndKind, ModelRequests
from edgeagent.worker.protocol import Delivered, Failed, ProtocolError, StepItem, StepResult
from tests.examples import examples
from tests.worker.support import request

END = Finished(FinishReason.STOP, Usage(), Timings())


class Keeper:
    """A sink that counts ends and refuses anything after one."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.num_starts = 0
        self.ends: list[object] = []

    def put(self, step: Step) -> None:
        assert not self.ends, "a step after the end"
        self.tokens += step.tokens
        self.num_starts += sum(isinstance(delta, Started) for delta in step.deltas)
        self.ends += [delta for delta in step.deltas if isinstance(delta, Finished)]

    def fail(self, error: Exception) -> None:
        assert not self.ends, "a failure after the end"
        self.ends.append(error)


class LedgerMachine(RuleBasedStateMachine):
    """Clients and workers act in random turns; a model beside the requests records what is still to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = ModelRequests()
        self.keepers: dict[str, Keeper] = {}
        self.given: dict[str, list[int]] = {}
        self.ended_here: set[str] = set()
        self.worker: dict[str, int] = {}  # id → the number of its tokens, as this worker knows it
        self.suspects: set[str] = set()
        self.marked: set[str] = set()
        self.num_deaths: Counter[str] = Counter()
        self.is_up = False

    def pick(self, data: st.DataObject, ids: object) -> str:
        return data.draw(st.sampled_from(sorted(ids)))  # type: ignore[call-overload, no-any-return]

    @rule()
    def accept(self) -> None:
        request_id = f"r{len(self.keepers)}"
        self.keepers[request_id], self.given[request_id] = Keeper(), []
        self.requests.add(request("", request_id), self.keepers[request_id], 0.0)
        self.send()

    def send(self) -> None:
        if self.is_up:
            for live in self.requests.sendable():
                live.is_sent = True
                self.worker[live.request.id] = len(live.tokens)

    @precondition(lambda self: not self.is_up)
    @rule()
    def bring_up(self) -> None:
        self.is_up = True
        self.send()

    @precondition(lambda self: self.is_up)
    @rule(kind=st.sampled_from(EndKind))
    def die(self, kind: EndKind) -> None:
        self.is_up = False
        if kind is not EndKind.REPLACED:
            self.num_deaths.update(self.worker.keys())
        is_crash = kind in (EndKind.CRASHED, EndKind.HUNG)
        self.marked |= {name for name in self.worker if is_crash or self.num_deaths[name] > 2}
        self.suspects |= self.marked & self.worker.keys()
        self.worker.clear()
        self.requests.on_worker_end("test", kind)

    @precondition(lambda self: self.worker)
    @rule(data=st.data(), num=st.integers(1, 3))
    def step(self, data: st.DataObject, num: int) -> None:
        request_id = self.pick(data, self.worker)
        done = self.worker[request_id]
        tokens = tuple(range(done, done + num))
        deltas = (TextDelta("x"),) if done else (Started(1, 0), TextDelta("x"))
        self.requests.on_steps(StepResult(0.0, (StepItem(request_id, deltas, tokens),)))
        self.worker[request_id] += num
        self.suspects.discard(request_id)
        self.send()
        if request_id not in self.ended_here:
            self.given[request_id] += tokens

    @precondition(lambda self: self.worker)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        request_id = self.pick(data, self.worker)
        del self.worker[request_id]
        if fails:
            self.requests.on_failed(Failed(request_id, "internal_error", "x"))
        else:
            self.requests.on_steps(StepResult(0.0, (StepItem(request_id, (END,)),)))
        with pytest.raises(ProtocolError):
            self.requests.on_steps(StepResult(0.0, (StepItem(request_id, (), (1,)),)))
        self.suspects.discard(request_id)
        self.send()

    @precondition(lambda self: self.worker)
    @rule(data=st.data())
    def part(self, data: st.DataObject) -> None:
        request_id = self.pick(data, self.worker)
        if len(self.requests._live[request_id].pending_deltas) == 4:
            with pytest.raises(ProtocolError, match="parts"):
                self.requests.on_steps(StepResult(0.0, (StepItem(request_id, (TextDelta("x"),), is_part=True),)))
            return
        self.requests.on_steps(StepResult(0.0, (StepItem(request_id, (TextDelta("x"),), is_part=True),)))

    @precondition(lambda self: self.keepers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.requests.cancel(self.pick(data, self.keepers), 0.0)

    @precondition(lambda self: self.keepers)
    @rule(data=st.data())
    def cancel_without_the_worker(self, data: st.DataObject) -> None:
        request_id = self.pick(data, self.keepers)
        if not self.keepers[request_id].ends:
            self.ended_here.add(request_id)
        self.requests.cancel(request_id, 0.0)
        self.requests.end_cancelled(request_id)

    @rule()
    def give_up(self) -> None:
        self.is_up = False
        self.worker.clear()
        self.requests.on_worker_end("test", EndKind.CRASHED)
        self.requests.fail_all(lambda: BackendUnavailable("test"))
        assert len(self.requests) == 0

    @invariant()
    def each_request_is_owed_an_end_or_has_it(self) -> None:
        for request_id, keeper in self.keepers.items():
            assert len(keeper.ends) <= 1
            if request_id not in self.ended_here:
                assert bool(keeper.ends) != (request_id in self.requests)

    @invariant()
    def tokens_are_neither_lost_nor_repeated(self) -> None:
        for request_id, keeper in self.keepers.items():
            assert keeper.tokens == self.given[request_id] == list(range(len(keeper.tokens)))
            assert keeper.num_starts <= 1

    @invariant()
    def the_worker_has_what_the_ledger_says(self) -> None:
        assert self.requests.num_sent() == len(self.worker)
        assert len(self.suspects & self.worker.keys()) <= 1


LedgerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


def test_a_next_worker_is_told_what_came_in_which_steps() -> None:
    requests = ModelRequests()
    live = requests.add(request(""), Keeper(), 0.0)
    held_logprobs = (TokenLogprob(5, b"x", -1.0),)
    for tokens in ((1,), (2, 3, 4), (), (5,)):
        live.is_sent = True
        requests.on_steps(
            StepResult(
                0.0, (StepItem("r1", (TextDelta("x"),), tokens, held_logprobs=held_logprobs if 5 in tokens else ()),)
            )
        )
        requests.on_worker_end("test", EndKind.REPLACED)
    assert live.delivered == Delivered((1, 2, 3, 4, 5), (1, 3, 1), held_logprobs)


def test_a_crash_tells_how_much_was_delivered() -> None:
    requests, keeper = ModelRequests(), Keeper()
    live = requests.add(request(""), keeper, 0.0)
    live.is_sent = True
    requests.on_steps(StepResult(0.0, (StepItem("r1", (), (5, 6)),)))
    requests.on_worker_end("SIGSEGV", EndKind.CRASHED)
    live.is_sent = True
    requests.on_worker_end("SIGSEGV", EndKind.CRASHED)
    (error,) = keeper.ends
    assert isinstance(error, WorkerCrashed)
    assert (error.num_delivered_tokens, error.served_by) == (2, "local")
    assert error.retry_after_s is not None


@pytest.mark.parametrize("num_delivered", [0, 2])
def test_the_stages_before_a_first_token_are_of_the_worker_that_gave_it(num_delivered: int) -> None:
    requests, keeper = ModelRequests(), Keeper()
    live = requests.add(request(""), keeper, 10.0)
    live.is_sent = True
    requests.on_steps(StepResult(11.0, (StepItem("r1", (Started(5, 2),), (1,) * num_delivered),)))
    requests.on_worker_end("SIGSEGV", EndKind.CRASHED)
    live.is_sent = True
    requests.on_steps(StepResult(14.0, (StepItem("r1", (TextDelta("x"),), (1,)),)))
    stages = Timings(queue_ms=500.0, load_ms=400.0, render_ms=1.0, cache_ms=2.0, prefill_ms=3000.0, first_token_ms=9.0)
    last = replace(END, usage=Usage(5, 5, 3), timings=stages)
    requests.on_steps(StepResult(15.0, (StepItem("r1", (last,)),)))
    (end,) = keeper.ends
    assert isinstance(end, Finished)
    assert end.usage == Usage(5, 2, 3), "the second worker found what the first had left"
    first_token_ms = 1000.0 if num_delivered else 4000.0
    assert (end.timings.first_token_ms, end.timings.decode_ms) == (first_token_ms, 5000.0 - first_token_ms)
    before = (end.timings.queue_ms, end.timings.load_ms, end.timings.render_ms, end.timings.cache_ms)
    assert (*before, end.timings.prefill_ms) == ((0.0,) * 5 if num_delivered else (500.0, 400.0, 1.0, 2.0, 3000.0))


def test_a_cancel_between_two_workers_tells_of_the_first() -> None:
    requests, keeper = ModelRequests(), Keeper()
    live = requests.add(request(""), keeper, 0.0)
    live.is_sent = True
    requests.on_steps(StepResult(1.5, (StepItem("r1", (Started(7, 3),), (1, 2)),)))
    requests.on_worker_end("SIGSEGV", EndKind.CRASHED)
    requests.cancel("r1", 2.0)
    handed_over = Timings(first_token_ms=1500.0, handovers=(Handover("local", "local", 2, EndKind.CRASHED),))
    assert keeper.ends == [Finished(FinishReason.CANCELLED, Usage(7, 3, 2), handed_over)]


def test_of_those_a_worker_died_under_the_most_urgent_goes_first() -> None:
    requests = ModelRequests()
    tiers = {"later": Tier.BATCH, "first": Tier.REALTIME, "next": Tier.INTERACTIVE}
    for name, tier in tiers.items():
        requests.add(request("", name, tier=tier), Keeper(), 0.0).is_sent = True
    requests.on_worker_end("SIGSEGV", EndKind.CRASHED)
    requests.add(request("", "fresh"), Keeper(), 0.0)
    order = []
    while sendable := requests.sendable():
        order.append([live.request.id for live in sendable])
        for live in sendable:
            live.is_sent = True
        requests.on_steps(StepResult(0.0, (StepItem(sendable[0].request.id, (), (1,)),)))
    assert order == [["first", "fresh"], ["next"], ["later"]]


def test_nothing_is_owed_to_an_unsent_request() -> None:
    requests = ModelRequests()
    requests.add(request(""), Keeper(), 0.0)
    with pytest.raises(ProtocolError, match="r1"):
        requests.on_steps(StepResult(0.0, (StepItem("r1", (TextDelta("x"),)),)))
    with pytest.raises(ProtocolError, match="r1"):
        requests.on_failed(Failed("r1", "internal_error", "x"))


def test_the_end_of_a_cancel_that_the_worker_does_not_end_has_the_times_of_the_tokens() -> None:
    requests, keeper = ModelRequests(), Keeper()
    live = requests.add(request(""), keeper, 0.0)
    live.is_sent = True
    for at_s, token in ((1.5, 1), (1.75, 2), (2.0, 3)):
        requests.on_steps(StepResult(at_s, (StepItem("r1", (Started(7, 3),) if token == 1 else (), (token,)),)))
    requests.cancel("r1", 2.25)
    requests.end_cancelled("r1")
    timings = Timings(first_token_ms=1500.0, decode_ms=500.0)
    assert keeper.ends == [Finished(FinishReason.CANCELLED, Usage(7, 3, 3), timings)]
    assert timings.stages_before_first_token_ms == {}, "they are unknown"
    requests.on_steps(StepResult(3.0, (StepItem("r1", (END,)),)))
    assert len(keeper.ends) == 1 and not len(requests), "the worker's end frees the id"


def test_what_another_machine_gave_counts_as_delivered() -> None:
    requests, keeper = ModelRequests(), Keeper()
    so_far = AnswerSoFar("before", "", 7)
    live = requests.add(request(""), keeper, 0.0, so_far)
    assert live.delivered == Delivered(so_far=so_far)
    live.is_sent = True
    requests.on_steps(StepResult(1.0, (StepItem("r1", (Started(5, 2),), (1, 2)),)))
    assert live.delivered == Delivered((1, 2), (2,), (), so_far)
    requests.on_worker_end("signal 9", EndKind.KILLED)
    assert live.handovers == (Handover("local", "local", 9, "worker_killed"),)
    requests.cancel("r1", 2.0)
    (end,) = keeper.ends
    assert isinstance(end, Finished) and end.usage.num_output_tokens == 9


def test_what_this_machine_gave_ahead_continues_from_its_tokens() -> None:
    requests, keeper = ModelRequests(), Keeper()
    ahead = AnswerSoFar("It is", num_tokens=3, tokens=(1, 2, 3), step_lengths=(2, 1))
    live = requests.add(request(""), keeper, 0.0, ahead)
    assert live.delivered == Delivered((1, 2, 3), (2, 1))
    live.is_sent = True
    requests.on_steps(StepResult(1.0, (StepItem("r1", (Started(5, 2),), (4,)),)))
    requests.on_worker_end("signal 9", EndKind.KILLED)
    assert live.delivered == Delivered((1, 2, 3, 4), (2, 1, 1))
    assert keeper.tokens == [4]
