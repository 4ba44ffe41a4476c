"""Automatic compaction: a conversation over its threshold is summarized first, and continues from the summary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from edgeagent.api.responses.events import TERMINAL
from edgeagent.conversation.compaction import INSTRUCTION, INTRODUCTION, EarlySummaries
from edgeagent.conversation.items import CallOutputItem
from edgeagent.errors import ContextLengthExceeded
from edgeagent.metrics import REGISTRY
from edgeagent.service.live_service import LiveService
from edgeagent.types import ChatPrompt, GenerateRequest, Message, Need, RouteMode, TextDelta, Tier
from tests.api.serving import check_golden, serve, validate_event
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.worker.support import eventually

LONG = "word " * 200
SPOKEN: Any = [{"role": "user", "content": LONG}, {"role": "user", "content": "more"}]
MANAGED: Any = [{"type": "compaction", "compact_threshold": 500}]


def messages_of(request: GenerateRequest) -> tuple[Message, ...]:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt.messages


def script(request: GenerateRequest) -> Iterator[Act]:
    yield TextDelta("They spoke." if messages_of(request)[-1].content == INSTRUCTION else "yes")
    yield finished()


@pytest.fixture
async def backend() -> FakeBackend:
    return FakeBackend(script)


@pytest.fixture
async def client(backend: FakeBackend) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serve(backend) as address,
        AsyncOpenAI(
            base_url=f"http://{address}/v1", api_key="unused", max_retries=0, _strict_response_validation=True
        ) as client,
    ):
        yield client


def num_answers() -> float:
    """Return how many answers the daemon has judged by their latency targets."""
    samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
    return sum(sample.value for sample in samples if sample.name == "edgeagent_answers_total")


async def test_a_long_chain_is_compacted_under_way(client: AsyncOpenAI, backend: FakeBackend) -> None:
    first = await client.responses.create(
        model="fake", input=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": LONG}]
    )
    num_before = num_answers()
    second = await client.responses.create(
        model="fake", input="more", previous_response_id=first.id, context_management=MANAGED
    )
    assert num_answers() == num_before + 1, "the summary is a part of the answer"
    assert [item.type for item in second.output] == ["compaction", "message"]
    assert second.output_text == "yes"
    summarizing, answering = backend.requests[1:]
    assert [message.content for message in messages_of(summarizing)] == ["Be brief.", LONG, "yes", INSTRUCTION]
    short = (Message("system", f"Be brief.\n\n{INTRODUCTION}\nThey spoke."), Message("user", "more"))
    assert messages_of(answering) == short
    assert summarizing.id == answering.id == second.id
    # The chain continues from the summary, and is now short enough.
    await client.responses.create(
        model="fake", input="again", previous_response_id=second.id, context_management=MANAGED
    )
    assert messages_of(backend.requests[-1]) == (*short, Message("assistant", "yes"), Message("user", "again"))
    items = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in items] == ["compaction", "message"]
    assert items[0].id == second.output[0].id


async def test_what_is_too_long_to_be_counted_is_summarized(
    client: AsyncOpenAI, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(name: str, query: object) -> object:
        raise ContextLengthExceeded(f"{name} does not count {query}")

    monkeypatch.setattr(backend, "ask", refuse)
    made = await client.responses.create(model="fake", input=SPOKEN, context_management=MANAGED)
    assert [item.type for item in made.output] == ["compaction", "message"]


async def test_a_summary_is_part_of_the_time_of_its_request(client: AsyncOpenAI, backend: FakeBackend) -> None:
    limits = {"edgeagent": {"deadline_ms": 90_000, "ttft_ms": 60_000, "max_prompt_tokens": 1000}}
    await client.responses.create(model="fake", input=SPOKEN, context_management=MANAGED, extra_body=limits)
    summarizing, answering = backend.requests
    assert (summarizing.timeout_s, summarizing.need) == (90.0, Need(first_token_s=60.0))
    assert answering.timeout_s is not None and answering.need.first_token_s is not None
    assert answering.timeout_s < 90.0 and answering.need.first_token_s < 60.0


@pytest.mark.parametrize("limit", ["deadline_ms", "ttft_ms"])
async def test_no_answer_is_computed_if_its_summary_took_too_long(
    client: AsyncOpenAI, backend: FakeBackend, limit: str
) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("They"), gate, finished())
    limits = {"edgeagent": {limit: 1}}
    asked = client.responses.create(model="fake", input=SPOKEN, context_management=MANAGED, extra_body=limits)
    answering = asyncio.ensure_future(asked)
    await gate.reached.wait()
    await asyncio.sleep(0.002)
    gate.opened.set()
    with pytest.raises(APIStatusError):
        await answering
    assert len(backend.requests) == 1


async def test_its_events_are_the_golden_ones(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input=SPOKEN, context_management=MANAGED)
        events = [json.loads(await connection.recv_bytes())]
        while events[-1]["type"] not in TERMINAL:
            events.append(json.loads(await connection.recv_bytes()))
            validate_event(events[-1])
    stages_ms = events[-1]["response"]["edgeagent"]["stages_ms"]
    assert stages_ms["queue"] > finished().timings.queue_ms, "with the time of the summary"
    stages_ms |= {"queue": finished().timings.queue_ms, "first_token": finished().timings.first_token_ms}
    check_golden("socket_compaction", events)


@pytest.mark.parametrize("content", ["short", LONG])
async def test_what_is_short_or_just_said_is_left_alone(
    client: AsyncOpenAI, backend: FakeBackend, content: str
) -> None:
    made = await client.responses.create(model="fake", input=content, context_management=MANAGED)
    assert [item.type for item in made.output] == ["message"]
    assert len(backend.requests) == 1


async def test_a_cancel_while_the_summary_is_written(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("They"), gate, finished())
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input=SPOKEN, context_management=MANAGED)
        kinds = []
        async for event in connection:
            kinds.append(event.type)
            if event.type == "response.compaction.compacting":
                await gate.reached.wait()
                await connection.send_raw('{"type":"response.cancel"}')
            if event.type in TERMINAL:
                break
        assert event.type == "response.incomplete"
        assert event.response.status == "cancelled"
        assert len(backend.requests) == 1


async def test_it_cannot_be_steered(client: AsyncOpenAI, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda _: (TextDelta("ye"), gate, finished())
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input="x", context_management=MANAGED)
        created = await connection.recv()
        assert created.type == "response.created"
        await connection.response.steer(previous_response_id=created.response.id, input="y")
        async for event in connection:
            if event.type == "response.steer.failed":
                break
        assert event.type == "response.steer.failed"
        assert event.error.code == "steering_not_supported"


@pytest.mark.parametrize("wrong", [{"type": "forget"}, {"type": "compaction"}])
async def test_other_management_is_refused(client: AsyncOpenAI, wrong: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(model="fake", input="x", context_management=[wrong])
    assert caught.value.param == "context_management"


def talked(backend: FakeBackend) -> list[bool]:
    """Return for each request whether it was made in idle time, to summarize."""
    return [request.is_ahead and messages_of(request)[-1].content == INSTRUCTION for request in backend.requests]


def soon_too_long(request: GenerateRequest) -> Iterator[Act]:
    yield TextDelta("They spoke." if messages_of(request)[-1].content == INSTRUCTION else "yes")
    yield finished(prompt=400)


async def test_what_will_soon_be_too_long_is_summarized_in_idle_time(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = soon_too_long
    limits = {"edgeagent": {"deadline_ms": 90_000, "ttft_ms": 60_000}}
    first = await client.responses.create(model="fake", input=LONG, context_management=MANAGED, extra_body=limits)
    await eventually(lambda: talked(backend) == [False, True] and backend.num_live == 0)
    early = backend.requests[1]
    assert (early.tier, early.route) == (Tier.BATCH, RouteMode.LOCAL_ONLY)
    assert early.latest_first_token_s is None, "no client waits for it"
    backend.script = script
    second = await client.responses.create(
        model="fake", input="more", previous_response_id=first.id, context_management=MANAGED
    )
    assert [item.type for item in second.output] == ["compaction", "message"]
    assert talked(backend) == [False, True, False], "the summary was there"
    short = (Message("system", f"{INTRODUCTION}\nThey spoke."), Message("user", "more"))
    assert messages_of(backend.requests[2]) == short


async def test_only_the_part_that_was_summarized_is_replaced(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = soon_too_long
    first = await client.responses.create(model="fake", input="hello", context_management=MANAGED)
    await eventually(lambda: talked(backend) == [False, True] and backend.num_live == 0)
    second = await client.responses.create(
        model="fake", input="word", previous_response_id=first.id, context_management=MANAGED
    )
    assert talked(backend) == [False, True, False], "it is summarized already, and still short"
    third = await client.responses.create(
        model="fake", input=LONG, previous_response_id=second.id, context_management=MANAGED
    )
    assert [item.type for item in third.output] == ["compaction", "message"]
    contents = [message.content for message in messages_of(backend.requests[3])]
    assert contents == [f"{INTRODUCTION}\nThey spoke.", "word", "yes", LONG]


@pytest.mark.parametrize("change", ["words", "instructions", "written still"])
async def test_another_conversation_is_summarized_when_it_must(
    client: AsyncOpenAI, backend: FakeBackend, change: str
) -> None:
    gate = Gate()
    backend.script = lambda request: [gate, *soon_too_long(request)] if request.is_ahead else soon_too_long(request)
    said: Any = [{"role": "user", "content": LONG}]
    await client.responses.create(model="fake", input=said, context_management=MANAGED)
    await gate.reached.wait()
    if change != "written still":
        gate.opened.set()
        await eventually(lambda: backend.num_live == 0)
    said += [
        {"role": "assistant", "content": "no" if change == "words" else "yes"},
        {"role": "user", "content": "more"},
    ]
    made = await client.responses.create(
        model="fake",
        input=said,
        context_management=MANAGED,
        instructions="Be brief." if change == "instructions" else None,
    )
    assert [item.type for item in made.output] == ["compaction", "message"]
    assert talked(backend)[:4] == [False, True, False, False], "one summary ahead, one for the request, the answer"


async def test_no_summary_of_what_was_deleted_is_kept(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = soon_too_long
    said: Any = [{"role": "user", "content": LONG}]
    first = await client.responses.create(model="fake", input=said, context_management=MANAGED)
    await eventually(lambda: talked(backend) == [False, True] and backend.num_live == 0)
    await client.responses.delete(first.id)
    said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    await client.responses.create(model="fake", input=said, context_management=MANAGED)
    assert talked(backend)[:4] == [False, True, False, False], "it is summarized again"


async def test_a_model_that_was_removed_meanwhile_writes_none(backend: FakeBackend) -> None:
    gone = GenerateRequest("r1", "gone", ChatPrompt((Message("user", "x"),)))
    service = LiveService(backend, lambda request: request)
    await EarlySummaries().write(gone, None, (), service, "sum_1")
    assert backend.requests == []


class HashedText(str):
    """A text that counts how often such texts are hashed."""

    num_hashed = 0

    def __hash__(self) -> int:
        HashedText.num_hashed += 1
        return super().__hash__()


async def test_a_conversation_is_hashed_once_however_many_summaries_are_kept(backend: FakeBackend) -> None:
    template = GenerateRequest("r1", "fake", ChatPrompt((Message("user", "x"),)))
    service, early = LiveService(backend, lambda request: request), EarlySummaries()
    items = [CallOutputItem(f"o{index}", HashedText(index), "done") for index in range(64)]
    for num_items in range(64, 0, -1):
        await early.write(template, None, items[:num_items], service, "sum_1")
    HashedText.num_hashed = 0
    assert early.take(template, "Be brief.", items) is None
    assert HashedText.num_hashed <= 2 * len(items)
    assert early.take(template, None, [*items, CallOutputItem("o", "c", "done")]) == ("They spoke.", 1), "the latest"


async def test_over_the_websocket_too(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = soon_too_long
    async with client.responses.connect() as connection:
        for text in ("x", LONG):
            await connection.response.create(model="fake", input=text, context_management=MANAGED)
            async for event in connection:
                if event.type in TERMINAL:
                    break
    await eventually(lambda: talked(backend).count(True) == 2)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_written", [True, False])
async def test_the_summary_of_what_is_not_stored_ends_with_its_connection(
    client: AsyncOpenAI, backend: FakeBackend, is_stored: bool, is_written: bool
) -> None:
    gate = Gate()
    backend.script = lambda request: [gate, *soon_too_long(request)] if request.is_ahead else soon_too_long(request)
    if is_written:
        gate.opened.set()
    said: Any = [{"role": "user", "content": LONG}]
    async with client.responses.connect() as connection:
        await connection.response.create(model="fake", input=said, store=is_stored, context_management=MANAGED)
        async for event in connection:
            if event.type in TERMINAL:
                break
        await gate.reached.wait()
        if is_written:
            await eventually(lambda: backend.num_live == 0)
    if not is_stored:
        await eventually(lambda: backend.num_live == 0)
    gate.opened.set()
    await eventually(lambda: backend.num_live == 0)
    said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]
    await client.responses.create(model="fake", input=said, context_management=MANAGED)
    await eventually(lambda: len(backend.requests) >= 4)
    summarized = [messages_of(request)[-1].content == INSTRUCTION for request in backend.requests[2:4]]
    assert summarized == ([False, True] if is_stored else [True, False]), "written again for the request, or later"


@pytest.mark.parametrize(
    "more",
    [
        {"context_management": None},
        {"extra_body": {"generate": False}},
        {"extra_body": {"edgeagent": {"route": "remote_only"}}},
    ],
    ids=["unmanaged", "prefill", "remote"],
)
async def test_none_is_made_that_is_not_wanted(client: AsyncOpenAI, backend: FakeBackend, more: Any) -> None:
    backend.script = soon_too_long
    await client.responses.create(**{"model": "fake", "input": LONG, "context_management": MANAGED, **more})
    await client.responses.create(model="fake", input="x")
    assert not any(talked(backend))
