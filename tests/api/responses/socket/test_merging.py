"""Events that wait for a slow client: text deltas merged, without gaps in the numbers, within the limits of a frame."""

from __future__ import annotations

import json

from edgeagent.api.responses.body import read_create
from edgeagent.api.responses.events import ResponseEvents, new_response
from edgeagent.api.responses.socket.outbox import MAX_MERGED_CHARS, Close, Outbox, Send
from edgeagent.api.responses.socket.steering import Steer, pending
from edgeagent.api.wire.shape import Json
from edgeagent.types import Delta, ReasoningDelta, SamplingParams, TextDelta, TokenLogprob
from tests.backends.fake import finished


async def drain(outbox: Outbox) -> list[Json]:
    """Close an outbox; return the events that waited in it."""
    outbox.push(Close(1000, ""))
    events: list[Json] = []
    while isinstance(entry := outbox.take(), Send):
        events.append(entry.event)
    return events


class Response:
    """One response's events, pushed as a session pushes them."""

    def __init__(self, outbox: Outbox, name: str = "resp_1") -> None:
        self.outbox = outbox
        self.name = name
        self.events = ResponseEvents(new_response(name, "fake", read_create({"input": "hi"}).echo(SamplingParams()), 0))
        self.push(self.events.created())

    def push(self, events: list[Json]) -> None:
        for event in events:
            is_terminal = self.events.is_over and event is events[-1]
            self.outbox.push(Send(event, self.name, 1.0, is_terminal))

    def step(self, *deltas: Delta) -> None:
        self.push(self.events.step(deltas))


async def test_waiting_text_becomes_one_event_and_numbers_have_no_gap() -> None:
    outbox = Outbox()
    response = Response(outbox)
    logprob = TokenLogprob(1, b"b", -1.0)
    response.step(TextDelta("a"), TextDelta("b", (logprob,)))
    response.step(TextDelta("c"))
    response.step(ReasoningDelta("hm"), ReasoningDelta("m"), TextDelta("d"), TextDelta("e"), finished())
    events = await drain(outbox)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [event["delta"] for event in deltas] == ["abc", "de"]
    assert [entry["token"] for entry in deltas[0]["logprobs"]] == ["b"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_what_was_taken_is_not_merged_into() -> None:
    outbox = Outbox()
    response = Response(outbox)
    response.step(TextDelta("a"))
    for _ in range(5):
        entry = outbox.take()
    response.step(TextDelta("b"))
    assert isinstance(entry, Send)
    assert entry.event["delta"] == "a"
    assert [event["delta"] for event in await drain(outbox)] == ["b"]


async def test_lanes_are_numbered_apart() -> None:
    outbox = Outbox()
    first, second = Response(outbox, "resp_1"), Response(outbox, "resp_2")
    for text in ("a", "b", "c"):
        first.step(TextDelta(text))
        first.step(TextDelta(text))
        second.step(TextDelta(text))
    first.step(finished())
    second.step(finished())
    numbers: dict[str, list[int]] = {"resp_1": [], "resp_2": []}
    outbox.push(Close(1000, ""))
    while isinstance(entry := outbox.take(), Send):
        numbers[entry.request_id].append(entry.event["sequence_number"])
    assert len(numbers["resp_1"]) < len(numbers["resp_2"]) + 3
    for sequence in numbers.values():
        assert sequence == list(range(len(sequence)))


async def test_an_event_after_the_end_is_numbered_without_a_gap_and_nothing_is_kept_for_ever() -> None:
    outbox = Outbox()
    for name in ("resp_1", "resp_2", "resp_3"):
        response = Response(outbox, name)
        response.step(TextDelta("a"))
        response.step(TextDelta("b"))
        response.step(finished())
        for note in response.events.numbered(pending(Steer("steer_1", name, "x", ()), [])):
            outbox.push(Send(note, name))
        events = await drain(outbox)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len(outbox._num_merged) == 1


async def test_merged_events_stay_below_a_frame() -> None:
    outbox = Outbox()
    response = Response(outbox)
    for _ in range(10):
        response.step(TextDelta("x" * (MAX_MERGED_CHARS // 2)))
    deltas = [event["delta"] for event in await drain(outbox) if "delta" in event]
    assert len("".join(deltas)) == 5 * MAX_MERGED_CHARS
    assert max(map(len, deltas)) <= 2 * MAX_MERGED_CHARS


async def test_events_with_log_probabilities_stay_below_a_frame() -> None:
    outbox = Outbox()
    response = Response(outbox)
    rivals = tuple(TokenLogprob(index, b"rival", -2.0) for index in range(20))
    for _ in range(2000):
        response.step(TextDelta("word ", (TokenLogprob(1, b"word ", -1.0, rivals),)))
    assert outbox.is_full
    response.step(finished())
    events = await drain(outbox)
    assert max(len(json.dumps(event)) for event in events) < 1 << 20
    tokens = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert len(tokens) == 2000
