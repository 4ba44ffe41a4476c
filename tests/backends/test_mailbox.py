"""The mailbox: order, one end, and a slow reader, for which it keeps a bounded number of steps and all text."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.backends.local import Mailbox, merge_steps
from edgeagent.errors import WorkerCrashed
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


async def test_a_slow_reader_gets_fewer_larger_steps() -> None:
    mailbox = Mailbox(max_steps=4)
    for index in range(1000):
        mailbox.put(Step((TextDelta(f"{index} "),), (index,)))
        assert len(mailbox) <= 4
    mailbox.put(Step((END,)))
    steps: list[Step] = []
    while not steps or steps[-1].deltas[-1] != END:
        steps.append(await mailbox.next())
    assert len(steps) <= 4
    assert flatten(steps)[:-1] == [("text", character) for index in range(1000) for character in f"{index} "]
    assert [token for step in steps for token in step.tokens] == list(range(1000))


async def test_an_error_comes_after_what_was_pending() -> None:
    mailbox = Mailbox()
    mailbox.put(Step((TextDelta("a"),)))
    mailbox.fail(WorkerCrashed("x"))
    assert await mailbox.next() == Step((TextDelta("a"),))
    with pytest.raises(WorkerCrashed):
        await mailbox.next()


async def test_nothing_follows_an_end() -> None:
    mailbox = Mailbox()
    mailbox.put(Step((END,)))
    mailbox.fail(WorkerCrashed("too late"))
    mailbox.put(Step((TextDelta("too late"),)))
    assert await mailbox.next() == Step((END,))
    assert len(mailbox) == 0


async def test_a_waiting_reader_is_woken_by_a_step_and_by_an_error() -> None:
    mailbox = Mailbox()
    reader = asyncio.ensure_future(mailbox.next())
    await asyncio.sleep(0)
    mailbox.put(Step((TextDelta("a"),)))
    mailbox.put(Step((TextDelta("b"),)))
    assert (await reader).deltas == (TextDelta("a"),)
    assert (await mailbox.next()).deltas == (TextDelta("b"),)
    reader = asyncio.ensure_future(mailbox.next())
    await asyncio.sleep(0)
    mailbox.fail(WorkerCrashed("x"))
    with pytest.raises(WorkerCrashed):
        await reader
