"""The sink: order, and a slow client, for which it keeps a bounded number of steps and all text."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.service.client_sink import MAX_HELD_STEPS, MAX_JOINED_LOGPROBS, ClientSink, merge_steps, start_now
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

END = Finished(FinishReason.STOP, Usage(), Timings())
DELTAS = st.one_of(
    st.builds(TextDelta, st.text(max_size=3), st.just(()) | st.just((TokenLogprob(1, b"x", -0.5),))),
    st.builds(ReasoningDelta, st.text(max_size=3)),
    st.builds(ToolCallStarted, st.integers(0, 1), st.just("c"), st.just("f")),
    st.builds(ToolCallDelta, st.integers(0, 1), st.text(max_size=3)),
    st.just(Started(1, 0)),
)
STEPS = st.lists(
    st.builds(Step, st.lists(DELTAS, max_size=3).map(tuple), st.lists(st.integers(), max_size=3).map(tuple)), min_size=1
)


def flatten(steps: list[Step]) -> list[object]:
    """Return what a reader collects from steps: the characters of each channel in order, and all other deltas."""
    flat: list[object] = []
    for delta in (delta for step in steps for delta in step.deltas):
        match delta:
            case TextDelta(text, logprobs):
                flat += [("text", character) for character in text]
                flat += [("logprob", logprob) for logprob in logprobs]
            case ReasoningDelta(text):
                flat += [("reasoning", character) for character in text]
            case ToolCallDelta(index, arguments):
                flat += [("arguments", index, character) for character in arguments]
            case other:
                flat.append(other)
    return flat


@given(STEPS)
def test_merging_changes_nothing_for_a_reader(steps: list[Step]) -> None:
    merged = merge_steps(steps)
    logprobs_apart = [item for item in flatten([merged]) if not is_logprob(item)]
    assert logprobs_apart == [item for item in flatten(steps) if not is_logprob(item)]
    assert [item for item in flatten([merged]) if is_logprob(item)] == [i for i in flatten(steps) if is_logprob(i)]
    assert merged.tokens == tuple(token for step in steps for token in step.tokens)


def is_logprob(item: object) -> bool:
    return isinstance(item, tuple) and item[0] == "logprob"


def test_neighbours_of_a_kind_are_joined() -> None:
    deltas: tuple[Delta, ...] = (TextDelta("a"), TextDelta("b"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}"))
    other = (ToolCallDelta(1, "["), TextDelta("c"), END)
    merged = merge_steps([Step(deltas, (1,), 5.0), Step(other, (2, 3), 9.0)])
    assert merged == Step(
        (TextDelta("ab"), ToolCallDelta(0, "{}"), ToolCallDelta(1, "["), TextDelta("c"), END), (1, 2, 3), 5.0
    )


def test_text_with_many_log_probabilities_stays_apart() -> None:
    step = Step((TextDelta("x", (TokenLogprob(1, b"x", -0.5),)),), (1,))
    merged = merge_steps([step] * 1000)
    assert [len(delta.logprobs) for delta in merged.deltas if isinstance(delta, TextDelta)] == [MAX_JOINED_LOGPROBS] * 5


class Client:
    """Takes what a sink delivers. While `is_slow`, each step waits for `read`."""

    def __init__(self) -> None:
        self.got: list[Step] = []
        self.is_slow = False
        self.arrived = asyncio.Event()
        self.sink = ClientSink(self._deliver, self.arrived)
        self._read = asyncio.Event()

    async def _deliver(self, step: Step) -> None:
        self.got.append(step)
        if self.is_slow:
            self._read.clear()
            await self._read.wait()

    async def read(self) -> None:
        """Let the waiting step go, and those that wait behind it follow."""
        self.let_go()
        await settle()

    def let_go(self) -> None:
        """End the wait of the step that is being delivered, in the next turn of the event loop."""
        self._read.set()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_open_sink_passes_each_step_on_in_the_same_call() -> None:
    client, before = Client(), asyncio.all_tasks()
    client.sink.put(Step((TextDelta("a"),)))
    assert (client.got, client.sink.first) == ([], Step((TextDelta("a"),)))
    client.sink.open()
    assert (client.got, client.sink.first) == ([Step((TextDelta("a"),))], None)
    client.sink.put(Step((END,)))
    assert client.got == [Step((TextDelta("a"),)), Step((END,))]
    await client.sink.room()
    assert asyncio.all_tasks() == before


async def test_a_slow_client_gets_fewer_larger_steps() -> None:
    client = Client()
    client.is_slow = True
    client.sink.open()
    for index in range(1000):
        client.sink.put(Step((TextDelta(f"{index} "),), (index,)))
    client.sink.put(Step((END,)))
    assert len(client.got) == 1
    client.is_slow = False
    await client.read()
    assert len(client.got) <= MAX_HELD_STEPS + 2 and client.got[-1].deltas[-1] == END
    assert flatten(client.got)[:-1] == [("text", character) for index in range(1000) for character in f"{index} "]
    assert [token for step in client.got for token in step.tokens] == list(range(1000))


async def test_it_has_room_once_nothing_waits() -> None:
    client = Client()
    client.is_slow = True
    waiting = asyncio.ensure_future(client.sink.room())
    for index in range(3):
        client.sink.put(Step((), (index,)))
    await settle()
    assert not waiting.done(), "it is not open"
    client.sink.open()
    for num_delivered in (1, 2, 3):
        assert len(client.got) == num_delivered and not waiting.done()
        await client.read()
    await waiting
    assert [step.tokens for step in client.got] == [(0,), (1,), (2,)]


async def test_it_has_room_when_the_last_delivery_has_just_ended() -> None:
    client, is_time = Client(), asyncio.Event()
    client.is_slow = True
    client.sink.open()
    client.sink.put(Step((), (1,)))

    async def wait() -> None:
        await is_time.wait()
        await client.sink.room()

    waiting = asyncio.ensure_future(wait())
    await settle()
    # Both go on in the same turn of the event loop, the delivery first.
    client.let_go()
    is_time.set()
    await waiting


async def test_steps_are_delivered_in_the_context_of_the_client() -> None:
    whose: ContextVar[str] = ContextVar("whose", default="worker")
    whose.set("client")
    seen: list[str] = []
    event = asyncio.Event()

    async def deliver(step: Step) -> None:
        seen.append(whose.get())
        await event.wait()
        seen.append(whose.get())

    sink = ClientSink(deliver)
    sink.open()
    for _ in range(2):
        Context().run(sink.put, Step(()))
    event.set()
    await sink.room()
    assert seen == ["client"] * 4


async def test_a_closed_one_delivers_nothing_more_and_leaves_no_task() -> None:
    client, before = Client(), asyncio.all_tasks()
    client.is_slow = True
    client.sink.open()
    client.sink.put(Step((), (1,)))
    client.sink.put(Step((), (2,)))
    assert asyncio.all_tasks() != before
    await client.sink.close()
    client.sink.put(Step((), (3,)))
    assert asyncio.all_tasks() == before
    assert [step.tokens for step in client.got] == [(1,)]


async def test_the_first_step_is_announced_before_it_is_opened() -> None:
    client = Client()
    assert not client.arrived.is_set()
    client.sink.put(Step((), (1,)))
    assert client.arrived.is_set()


class TestStartNow:
    async def test_what_does_not_wait_has_ended(self) -> None:
        done: list[str] = []

        async def work() -> None:
            await asyncio.Event().wait() if not done else None

        done.append("x")
        assert start_now(work()) is None

    async def test_what_waits_goes_on_in_a_task(self) -> None:
        events, done = (asyncio.Event(), asyncio.Event()), []

        async def work() -> None:
            for event in events:
                await event.wait()
                done.append(event)

        rest = start_now(work())
        assert rest is not None and not done
        for event in events:
            event.set()
            await settle()
        assert done == list(events) and rest.done()

    async def test_a_cancel_reaches_it(self) -> None:
        ends: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        rest = start_now(work())
        assert rest is not None
        await settle()
        rest.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rest
        assert ends == ["cancelled"]

    async def test_an_error_is_raised_at_once_or_by_the_task(self) -> None:
        async def work(*waits: asyncio.Event) -> None:
            for event in waits:
                await event.wait()
            raise LookupError("gone")

        with pytest.raises(LookupError):
            start_now(work())
        event = asyncio.Event()
        rest = start_now(work(event))
        assert rest is not None
        event.set()
        with pytest.raises(LookupError):
            await rest
