"""One answer for several clients: random schedules of steps, joins, leaves, cancels and clients that fail."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from edgeagent.answers.shared import SharedAnswer
from edgeagent.errors import EdgeAgentError, WorkerCrashed
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    Queued,
    Sink,
    Started,
    Step,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.backends.fake import finished


class Client(Sink):
    """Records what it gets. It fails at its step number `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.deltas: list[Delta] = []
        self.ends: list[Exception | None] = []
        self.fails_at = fails_at
        self.num_steps = 0

    def put(self, step: Step) -> None:
        assert not self.ends, "nothing comes after the end"
        self.num_steps += 1
        if self.num_steps == self.fails_at:
            raise ConnectionResetError("its socket is closed")
        self.deltas += step.deltas

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def end(self) -> Finished | None:
        return next((delta for delta in self.deltas if isinstance(delta, Finished)), None)


def script(num_words: int) -> Iterator[Step]:
    yield Step((Started(8, 4),))
    for index in range(num_words):
        yield Step((TextDelta(f" {index}"),), (index,), at_s=float(index))
    yield Step((finished(output=num_words),))


@pytest.mark.parametrize("seed", range(200))
def test_each_gets_the_whole_answer_whatever_the_others_do(seed: int) -> None:
    chance = random.Random(seed)
    num_words = chance.choice((1, 5, 70, 200))
    whole = "".join(f" {index}" for index in range(num_words))
    answer = SharedAnswer(lambda: 0.0)
    there: dict[str, Client] = {}
    gone: dict[str, tuple[Client, str]] = {}

    def join() -> None:
        name = f"client-{len(there) + len(gone)}"
        client = there[name] = Client(chance.choice((None, None, 1 + chance.randrange(5))))
        answer.join(name, client, client.ends.append)

    join()
    for step in script(num_words):
        for _ in range(chance.randrange(3)):
            match chance.randrange(4):
                case 0 if answer.is_open:
                    join()
                case 1 if len(there) > 1:
                    name = chance.choice(sorted(there))
                    answer.leave(name)
                    gone[name] = there.pop(name), "left"
                case 2 if answer.num_followers > 1:
                    name = chance.choice(sorted(name for name in there if not there[name].ends))
                    assert answer.cancel(name)
                    gone[name] = there.pop(name), "cancelled"
        answer.put(step)
        assert answer.num_followers == sum(not client.ends for client in there.values()) or answer.finished
    for client in there.values():
        if client.fails_at is None:
            assert (client.text, client.ends, client.end is not None) == (whole, [None], True)
            assert [type(delta) for delta in client.deltas].count(Started) == 1
        elif client.ends != [None]:
            assert isinstance(client.ends[0], ConnectionResetError) and len(client.ends) == 1
    for client, how in gone.values():
        assert whole.startswith(client.text)
        if how == "cancelled" and client.fails_at is None:
            assert client.end is not None and client.end.reason is FinishReason.CANCELLED and client.ends == [None]
        elif how == "left":
            assert client.end is None or client.ends
    assert not answer.is_open and answer.num_followers == 0


def test_one_that_joins_late_gets_all_at_once_and_goes_on_live() -> None:
    now_s = 10.0
    answer = SharedAnswer(lambda: now_s)
    first, late = Client(), Client()
    answer.join("a", first, first.ends.append)
    steps = list(script(100))
    for step in steps[:90]:
        answer.put(step)
    now_s = 12.5
    answer.join("b", late, late.ends.append)
    assert late.num_steps == 1 and late.text == first.text
    for step in steps[90:]:
        answer.put(step)
    assert late.text == first.text and late.num_steps == 1 + len(steps[90:])
    assert first.end is not None and first.end.timings.origin is None
    assert late.end is not None and late.end.timings.origin is not None
    assert (late.end.timings.origin.kind, late.end.timings.origin.age_s) == ("joined", 2.5)


def test_the_record_of_a_long_answer_stays_short() -> None:
    answer = SharedAnswer(lambda: 0.0)
    client = Client()
    answer.join("a", client, client.ends.append)
    for step in script(5000):
        answer.put(step)
    assert len(answer.steps) < 160
    assert "".join(delta.text for step in answer.steps for delta in step.deltas if isinstance(delta, TextDelta)) == (
        client.text
    )
    assert sum(len(step.tokens) for step in answer.steps) == 5000


def test_calls_are_whole_for_one_that_joins_in_the_middle_of_one() -> None:
    answer = SharedAnswer(lambda: 0.0)
    first, late = Client(), Client()
    answer.join("a", first, first.ends.append)
    answer.put(Step((Started(1, 0), ToolCallStarted(0, "call_1", "look"), ToolCallDelta(0, '{"a"'))))
    answer.join("b", late, late.ends.append)
    answer.put(Step((ToolCallDelta(0, ":1}"), finished(FinishReason.TOOL_CALLS))))
    parts = [delta for delta in late.deltas if isinstance(delta, ToolCallDelta)]
    assert "".join(delta.arguments for delta in parts) == '{"a":1}'


def test_one_that_joins_a_request_that_waits_is_told_so() -> None:
    answer = SharedAnswer(lambda: 0.0)
    first, late, later = Client(), Client(), Client()
    answer.join("a", first, first.ends.append)
    answer.put(Step((Queued(2),)))
    answer.join("b", late, late.ends.append)
    assert late.deltas == [Queued(2)]
    answer.put(Step((Started(1, 0),)))
    answer.join("c", later, later.ends.append)
    assert later.deltas == [Started(1, 0)]


def test_an_error_ends_all() -> None:
    answer = SharedAnswer(lambda: 0.0)
    clients = [Client(), Client()]
    for index, client in enumerate(clients):
        answer.join(str(index), client, client.ends.append)
    answer.put(Step((Started(1, 0),)))
    error: EdgeAgentError = WorkerCrashed("signal 9")
    answer.end(error)
    assert [client.ends for client in clients] == [[error], [error]] and not answer.is_open


def test_the_last_one_cancels_the_generation_itself() -> None:
    answer = SharedAnswer(lambda: 0.0)
    client = Client()
    answer.join("a", client, client.ends.append)
    assert not answer.cancel("a") and not answer.is_open and not client.ends
    answer.put(Step((finished(FinishReason.CANCELLED),)))
    assert client.end is not None and client.ends == [None]
