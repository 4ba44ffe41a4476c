"""Streams of background responses: followed, left, resumed, and replayed from the store."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from edgeagent.api.responses.body import read_create
from edgeagent.api.responses.events import (
    TERMINAL,
    Compacted,
    Compacting,
    ResponseEvents,
    ResponseState,
    events_after,
    last_number,
    new_response,
)
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import compaction_item
from edgeagent.errors import Overloaded, WorkerCrashed
from edgeagent.types import (
    FinishReason,
    GenerateRequest,
    ReasoningDelta,
    SamplingParams,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.api.event_grammar import check_stream
from tests.api.responses.test_stored_routes import NamedKeys, openai
from tests.api.serving import serve, validate_event
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.examples import examples


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def address(backend: FakeBackend) -> AsyncIterator[str]:
    async with serve(backend, keys=NamedKeys()) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[AsyncOpenAI]:
    async with openai(address) as client:
        yield client


async def all_of(stream: Any) -> list[Json]:
    return [event.to_dict() async for event in stream]


def merged(*parts: list[Json]) -> list[tuple[str, str]]:
    """Return what a client has collected from the events: their kinds, with adjacent deltas joined to one text."""
    told: list[tuple[str, str]] = []
    for event in itertools.chain(*parts):
        kind, delta = event["type"], event.get("delta", "")
        if delta and told and told[-1][0] == kind:
            told[-1] = kind, told[-1][1] + delta
        else:
            told.append((kind, delta))
    return told


def logprobs_of(events: list[Json]) -> list[Json]:
    """Return the log probabilities of all deltas."""
    deltas = (event for event in events if event["type"] == "response.output_text.delta")
    return [logprob for event in deltas for logprob in event["logprobs"]]


def words(_request: GenerateRequest) -> Iterable[Act]:
    yield (Started(3, 0), ReasoningDelta("Hm"), TextDelta("one"))
    yield TextDelta(" two")
    yield (ToolCallStarted(0, "call_1", "f"), ToolCallDelta(0, "{}"))
    yield finished(FinishReason.TOOL_CALLS)


async def test_a_stream_from_its_beginning(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = words
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    events = await all_of(stream)
    check_stream(events)
    for event in events:
        validate_event(event)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert events[0]["response"]["background"] is True
    final = events[-1]["response"]
    assert final["status"] == "completed"
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]
    assert (await client.responses.retrieve(final["id"])).to_dict() == final


async def test_the_first_event_says_where_it_may_run_and_what_has_no_effect(
    client: AsyncOpenAI, backend: FakeBackend
) -> None:
    backend.script = words
    extra = {"edgeagent": {"route": "local_only"}, "dance": 1}
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True, extra_body=extra)
    first = (await all_of(stream))[0]["response"]["edgeagent"]
    assert first["mode"] == "local_only"
    assert "dance" in first["warnings"][0]


async def test_the_clients_own_helper(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = words
    async with client.responses.stream(model="fake", input="x", background=True) as stream:
        final = await stream.get_final_response()
    assert final.output_text == "one two"
    async with client.responses.stream(response_id=final.id, starting_after=8) as again:
        assert (await again.get_final_response()).output_text == "one two"


async def test_a_stream_that_is_left_goes_on_and_is_gone_on_with(client: AsyncOpenAI, backend: FakeBackend) -> None:
    first, second = Gate(), Gate()
    backend.script = lambda _: (TextDelta("one"), first, TextDelta(" two"), second, TextDelta(" three"), finished())
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    seen: list[Json] = []
    async for event in stream:
        seen.append(event.to_dict())
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await first.reached.wait()
    first.opened.set()
    await second.reached.wait()
    response_id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    assert (await client.responses.retrieve(response_id)).status == "in_progress"
    rest: list[Json] = []
    async for event in await client.responses.retrieve(response_id, stream=True, starting_after=number):
        rest.append(event.to_dict())
        second.opened.set()
    assert rest[0]["delta"] == " two"
    check_stream(seen + rest)
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "one two three"
    assert backend.closed == []


async def test_several_follow_one_response(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("one"), gate, TextDelta(" two"), finished())
    made = await client.responses.create(model="fake", input="x", background=True)
    await gate.reached.wait()
    streams = [await client.responses.retrieve(made.id, stream=True) for _ in range(3)]
    gate.opened.set()
    told = [merged(await all_of(stream)) for stream in streams]
    assert told[0] == told[1] == told[2]
    assert ("response.output_text.delta", "one two") in told[0]


async def test_a_response_that_is_over_is_told_from_any_number_on(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = words
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    events = await all_of(stream)
    response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
    for number in range(last + 1):
        seen = [event for event in events if event["sequence_number"] <= number]
        rest = await all_of(await client.responses.retrieve(response_id, stream=True, starting_after=number))
        assert all(event["sequence_number"] > number for event in rest)
        if number in {event["sequence_number"] for event in events}:
            check_stream(seen + rest)
    whole = await all_of(await client.responses.retrieve(response_id, stream=True))
    assert merged(whole) == merged(events)
    assert whole[-1] == events[-1]


async def test_a_response_is_told_after_a_restart(backend: FakeBackend, tmp_path: Path) -> None:
    backend.script = words
    async with serve(backend, keys=NamedKeys(), store=tmp_path / "r") as address, openai(address) as client:
        stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
        events = await all_of(stream)
    async with serve(FakeBackend(), keys=NamedKeys(), store=tmp_path / "r") as address, openai(address) as client:
        response_id = events[0]["response"]["id"]
        for index in range(0, len(events), 3):
            number = events[index]["sequence_number"]
            rest = await all_of(await client.responses.retrieve(response_id, stream=True, starting_after=number))
            check_stream(events[: index + 1] + rest)
            assert rest[-1] == events[-1]


async def test_nobody_else_can_follow(address: str, client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("one"), gate, finished())
    made = await client.responses.create(model="fake", input="x", background=True)
    await gate.reached.wait()
    async with openai(address, "bob") as bob:
        for _ in range(2):
            for number in (0, 4, 99):
                with pytest.raises(NotFoundError) as caught:
                    await bob.responses.retrieve(made.id, stream=True, starting_after=number)
                assert made.id in caught.value.message
            gate.opened.set()
            await backend.until(lambda backend: backend.num_live == 0)


async def test_what_is_wrong_is_named(address: str, client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="x", background=True)
    events = await all_of(await client.responses.retrieve(made.id, stream=True))
    last = events[-1]["sequence_number"]
    assert await all_of(await client.responses.retrieve(made.id, stream=True, starting_after=last)) == []
    with pytest.raises(BadRequestError, match=f"the last event so far is {last}") as caught:
        await client.responses.retrieve(made.id, stream=True, starting_after=last + 1)
    assert caught.value.param == "starting_after"
    plain = await client.responses.create(model="fake", input="x")
    with pytest.raises(BadRequestError, match="only a background response") as caught:
        await client.responses.retrieve(plain.id, stream=True)
    assert caught.value.param == "stream"
    with pytest.raises(NotFoundError):
        await client.responses.retrieve("resp_none", stream=True)
    async with httpx.AsyncClient(headers={"authorization": "Bearer alice"}) as raw:
        for query, param in (
            ("starting_after=0", "starting_after"),
            ("stream=true&starting_after=-1", "starting_after"),
            ("stream=true&starting_after=x", "starting_after"),
            ("stream=true&starting_after=%D9%A1", "starting_after"),
            ("stream=maybe", "stream"),
        ):
            reply = await raw.get(f"http://{address}/v1/responses/{made.id}?{query}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), query


@pytest.mark.parametrize("before", [(), (TextDelta("ye"),)])
@pytest.mark.parametrize("error", [WorkerCrashed("signal 9"), Overloaded("full"), RuntimeError("secret")])
async def test_a_failure_is_the_streams_end(
    client: AsyncOpenAI, backend: FakeBackend, error: Exception, before: tuple[Act, ...]
) -> None:
    backend.script = lambda _: (*before, error)
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    events = await all_of(stream)
    check_stream(events)
    assert events[-1]["type"] == "response.failed"
    assert "secret" not in json.dumps(events)
    again = await all_of(await client.responses.retrieve(events[0]["response"]["id"], stream=True))
    assert merged(again) == merged(events)


async def test_a_cancel_ends_the_stream(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
    events: list[dict[str, Any]] = []
    async for event in stream:
        events.append(event.to_dict())
        if event.type == "response.output_text.delta":
            await client.responses.cancel(events[0]["response"]["id"])
    check_stream(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")


async def test_who_has_seen_the_end_may_continue(client: AsyncOpenAI) -> None:
    for _ in range(20):
        stream = await client.responses.create(model="fake", input="x", background=True, stream=True)
        async for event in stream:
            if event.type == "response.completed":
                await client.responses.create(model="fake", input="y", previous_response_id=event.response.id)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCORED = TEXTS.map(lambda text: TextDelta(text, tuple(TokenLogprob(1, char.encode(), -0.5) for char in text)))
ITEMS: Any = st.one_of(
    st.lists(SCORED, min_size=1, max_size=4),
    st.lists(st.builds(ReasoningDelta, TEXTS), min_size=1, max_size=4),
    st.lists(TEXTS, max_size=3).map(
        lambda texts: [ToolCallStarted(0, "call_1", "f"), *(ToolCallDelta(0, text) for text in texts)]
    ),
)
COMPACTION = [[Compacting("cmp_1"), Compacted(compaction_item("cmp_1", "before"))]]
REASONS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED)
ENDS: Any = st.sampled_from([*map(finished, REASONS), WorkerCrashed("x")])


def made_from(steps: list[Any], end: Any, looks: list[bool]) -> tuple[ResponseEvents, list[list[Json]]]:
    """Return a response built from these steps, and the events that two clients read before its end.

    The first client reads at each step, the second where `looks` is true.
    """
    count = itertools.count(1)
    echo = read_create({"input": "hi"}).echo(SamplingParams()) | {"background": True}
    events = ResponseEvents(
        new_response("resp_1", "fake", echo, 1_700_000_000),
        make_id=lambda prefix: f"{prefix}_{next(count)}",
        clock=lambda: 1_700_000_001.5,
    )
    events.created(is_queued=True)
    seen: list[list[Json]] = [[], []]
    for index in range(len(steps) + 1):
        for each, is_looking in zip(seen, (True, looks[index]), strict=True):
            if is_looking:
                each += events_after(events.state, each[-1]["sequence_number"] if each else -1)
        events.in_progress()
        if index < len(steps):
            events.step((steps[index],))
        elif isinstance(end, WorkerCrashed):
            events.fail(end)
        else:
            events.step((end,))
    return events, seen


@settings(max_examples=examples(300))
@given(st.sampled_from([[], COMPACTION]), st.lists(ITEMS, max_size=4), ENDS, st.data())
def test_any_pace_tells_the_same(
    compaction: list[list[Any]], items: list[list[Any]], end: Any, data: st.DataObject
) -> None:
    steps = list(itertools.chain(*compaction, *items))
    if not data.draw(st.booleans()):  # a request asks for the log probabilities of all its text or of none
        steps = [TextDelta(step.text) if isinstance(step, TextDelta) else step for step in steps]
    size = len(steps) + 1
    events, seen = made_from(steps, end, data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    stored = json.loads(json.dumps(events.response))
    whole = events_after(ResponseState(stored, stored["output"]), -1)
    check_stream(whole)
    for event in whole:
        validate_event(event)
    assert whole[-1]["type"] in TERMINAL
    assert whole[-1]["sequence_number"] == last_number(events.state)
    for each in seen:
        number = each[-1]["sequence_number"] if each else -1
        rest = events_after(events.state, number)
        assert rest == events_after(ResponseState(stored, stored["output"]), number)
        check_stream(each + rest)
        assert merged(each, rest) == merged(whole)
        assert logprobs_of(each + rest) == logprobs_of(whole)
