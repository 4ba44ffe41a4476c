"""The Responses API against a real daemon with the bundled model: ids, lanes, steering, and after a kill -9."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits
from websockets.asyncio.client import connect

from tests.api.event_grammar import EventGrammar, check_stream
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.present import present

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
STORY = "Tell me everything that you can do, one thing after another."
# An answer that does not end for a while.
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 900, "maxItems": 900}
ENDLESS: Any = {
    "text": {
        "format": {
            "type": "json_schema",
            "name": "numbers",
            "schema": {"type": "object", "properties": {"numbers": NUMBERS}, "required": ["numbers"]},
            "strict": True,
        }
    },
}
LIMITS = ResponsesWebSocketLimits(
    max_lanes=4, max_events_per_lane=5000, max_events=10_000, max_bytes_per_lane=1 << 24, max_bytes=1 << 26
)


def openai(daemon: Daemon) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0, _strict_response_validation=True)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with openai(daemon) as made:
        yield made


async def test_by_its_id(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="builtin", input="Hello!", instructions="Be brief.", temperature=0)
    assert await client.responses.retrieve(made.id) == made
    items = await client.responses.input_items.list(made.id)
    assert [item.type for item in items.data] == ["message"]
    counted = await client.responses.input_tokens.count(model="builtin", input="Hello!", instructions="Be brief.")
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    assert (await client.responses.cancel(made.id)).status == "completed"
    await client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(made.id)


async def test_in_the_background(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="builtin", input="Hello!", background=True)
    assert made.status == "queued"
    async with asyncio.timeout(patient(30)):
        now = made
        while now.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            now = await client.responses.retrieve(made.id)
    assert now.output_text


async def test_a_background_stream_is_left_and_taken_up_again(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="builtin", input=STORY, background=True, stream=True)
    seen: list[dict[str, Any]] = []
    async for event in stream:
        seen.append(event.to_dict())
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    response_id, number = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    for _ in range(2):  # once while it is generated, possibly, and once afterwards
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=number)
        events = seen + [event.to_dict() async for event in rest]
        check_stream(events)
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        assert text == (await client.responses.retrieve(response_id)).output_text != ""


async def test_a_conversation_that_outgrows_its_context(client: AsyncOpenAI) -> None:
    text = "Please remember what I say: " + "the kiosk by the door sells maps and tickets, " * 12
    fields: Any = {"model": "builtin", "instructions": "Be brief.", "max_output_tokens": 8, "temperature": 0}
    previous, dropped, num_again = None, 0, 0
    for index in range(40):
        made = await client.responses.create(
            input=f"{index}. {text}", previous_response_id=previous, truncation="auto", **fields
        )
        assert made.truncation == "auto" and made.usage is not None
        assert made.usage.input_tokens <= 2048
        now = (made.model_extra or {})["edgeagent"].get("dropped_items", 0)
        assert now >= dropped
        if now == dropped > 0:
            # Everything except the new input was computed in the previous turn.
            assert made.usage.input_tokens_details.cached_tokens > made.usage.input_tokens // 2
            num_again += 1
        previous, dropped = made.id, now
        if num_again >= 5:
            break
    assert dropped > 0 and num_again >= 5
    with pytest.raises(BadRequestError) as caught:
        await client.responses.create(input=text, previous_response_id=previous, **fields)
    assert caught.value.code == "context_length_exceeded"


async def test_compacted(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="builtin", input="Hello, my name is Robin.")
    made = await client.responses.compact(model="builtin", previous_response_id=first.id)
    assert made.usage.output_tokens > 0
    with pytest.raises(APIStatusError) as caught:
        late: Any = {"edgeagent": {"deadline_ms": 1}}
        await client.responses.compact(model="builtin", previous_response_id=first.id, extra_body=late)
    assert caught.value.code in ("deadline_unreachable", "request_timeout")
    follow: Any = [*(item.to_dict() for item in made.output), {"role": "user", "content": "Hello!"}]
    async with client.responses.connect() as connection:
        await connection.response.create(model="builtin", input=follow)
        assert (await last(connection)).status == "completed"


async def test_a_conversation_is_summarized_in_idle_time_before_it_is_too_long(
    daemon: Daemon, client: AsyncOpenAI
) -> None:
    async def num_generated() -> int:
        async with httpx2.AsyncClient() as plain:
            worker = (await plain.get(f"{daemon.url}/edgeagent/status")).json()["models"][0]["worker"]
        # The worker reports nothing before its first pong.
        return worker["num_output_tokens_total"] if worker and worker["num_running"] == 0 else 0

    def managed(threshold: int) -> Any:
        return [{"type": "compaction", "compact_threshold": threshold}]

    story = "The kiosk by the door sells maps and tickets. " * 10
    fields: Any = {"model": "builtin", "temperature": 0, "max_output_tokens": 16}
    before = await num_generated()
    first = await client.responses.create(input=story, context_management=managed(10_000), **fields)
    num_first = first.usage.total_tokens
    limit = managed(num_first + 60)
    second = await client.responses.create(
        input="Thanks!", previous_response_id=first.id, context_management=limit, **fields
    )
    assert [item.type for item in second.output] == ["message"]
    async with asyncio.timeout(patient(60)):
        num_asked, seen = before + first.usage.output_tokens + second.usage.output_tokens, 0
        while seen <= num_asked:  # the worker reports a moment later
            await asyncio.sleep(0.1)
            seen = await num_generated()
    third = await client.responses.create(
        input=story, previous_response_id=second.id, context_management=limit, **fields
    )
    assert [item.type for item in third.output] == ["compaction", "message"]
    assert third.usage.input_tokens < num_first + second.usage.total_tokens


async def test_two_lanes_and_a_fork(client: AsyncOpenAI) -> None:
    async with (
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        left, right = session.lane("left"), session.lane("right")
        for lane in (left, right):
            await lane.send({"type": "response.create", "model": "builtin", "input": "Hello!", "temperature": 0})
        first, second = await left.get_final_response(), await right.get_final_response()
        assert first.output_text == second.output_text != ""
        await right.send({"type": "response.create", "input": "What can you do?", "previous_response_id": first.id})
        forked = await right.get_final_response()
        assert (forked.previous_response_id, forked.status) == (first.id, "completed")


async def test_steered(client: AsyncOpenAI) -> None:
    async with client.responses.connect() as connection:
        await connection.response.create(model="builtin", input=STORY, **ENDLESS)
        grammar = EventGrammar()
        created = await connection.recv()
        grammar.feed(created.to_dict())
        assert created.type == "response.created"
        async for event in connection:
            grammar.feed(event.to_dict())
            if event.type == "response.output_text.delta":
                break
        await connection.response.steer(previous_response_id=created.response.id, input="Hello!")
        first = await last(connection, grammar)
        assert (first.status, first.incomplete_details.reason) == ("incomplete", "steered")
        # The successor inherits the first one's settings, so it is as long.
        successor = await connection.recv()
        grammar.feed(successor.to_dict())
        assert successor.type == "response.created"
        assert successor.response.previous_response_id == first.id
        await connection.send_raw('{"type":"response.cancel"}')
        assert (await last(connection, grammar)).status == "cancelled"


async def test_an_answer_ahead_is_the_answer_that_would_have_come(client: AsyncOpenAI) -> None:
    """The prompt is computed while it grows. What was generated ahead, and the rest, are the answer of a plain turn."""
    fields: Any = {
        "model": "builtin",
        "max_output_tokens": 90,
        "temperature": 1.0,
        "seed": 7,
        "store": False,
        **ENDLESS,
    }
    revisions = ["Tell", "Tell me", "Tell me all numbers"]
    async with client.responses.connect() as connection:
        computed: list[int] = []

        async def create(text: str, **more: Any) -> Any:
            frame = {"type": "response.create", "input": text, **fields, **more}
            await connection.send_raw(json.dumps(frame))
            made = await last(connection)
            computed.append(made.usage.input_tokens - made.usage.input_tokens_details.cached_tokens)
            return made

        plain = await create(revisions[-1], cache_prompt=False)
        seen = []
        for text in revisions:
            ahead = await create(text, generate=False, edgeagent={"ahead": True})
            assert (ahead.status, ahead.output, ahead.usage.output_tokens) == ("completed", [], 0)
            seen.append(ahead.usage.input_tokens)
        assert seen[0] < seen[1] < seen[2] == plain.usage.input_tokens
        # A revision computes what is new: its words, and what the template writes behind the message.
        assert sum(computed[1:]) < plain.usage.input_tokens + 3 * 8
        final, num_ahead = None, 0
        async with asyncio.timeout(patient(30)):
            while num_ahead < 20:  # until enough of it is there
                await create(revisions[-1], generate=False, edgeagent={"ahead": True})
                await asyncio.sleep(0.5)
                final = await create(revisions[-1])
                num_ahead = final.to_dict()["edgeagent"].get("ahead_tokens", 0)
        assert final is not None
        assert final.output_text == plain.output_text != ""
        assert final.usage.output_tokens == 90 > num_ahead
        assert final.usage.input_tokens == plain.usage.input_tokens
        whole: dict[str, Any] = {}
        async with asyncio.timeout(patient(30)):
            while whole.get("ahead_tokens", 0) < 8:
                await create(revisions[-1], generate=False, edgeagent={"ahead": True}, max_output_tokens=8)
                await asyncio.sleep(0.5)
                whole = (await create(revisions[-1], max_output_tokens=8)).to_dict()["edgeagent"]
        assert whole["slo"]["met"], "the client got it at once"


@pytest.mark.parametrize(("last_revision", "most"), [("Tell me all numbers", 2), ("Tell me all names", 8)])
async def test_a_prompt_that_was_computed_ahead_leaves_little(
    client: AsyncOpenAI, last_revision: str, most: int
) -> None:
    fields: Any = {"model": "builtin", "temperature": 0, "instructions": f"Be brief and kind. {most}", "store": False}
    final: Any = {**fields, "input": "Tell me all numbers"}
    async with client.responses.connect() as connection:
        for text in ("Tell", "Tell me", last_revision):
            frame = {"type": "response.create", **fields, "input": text, "generate": False}
            await connection.send_raw(json.dumps(frame))
            assert (await last(connection)).status == "completed"
        await connection.send_raw(json.dumps({"type": "response.create", **final}))
        answer = await last(connection)
    computed = answer.usage.input_tokens - answer.usage.input_tokens_details.cached_tokens
    assert 1 <= computed <= most
    assert (
        answer.output_text == (await client.responses.create(**final, extra_body={"cache_prompt": False})).output_text
    )


@pytest.mark.parametrize("is_polite", [False, True], ids=["reset", "closed"])
@pytest.mark.parametrize("is_decoding", [False, True], ids=["prefill", "decode"])
async def test_work_stops_when_its_client_leaves(
    daemon: Daemon, client: AsyncOpenAI, is_polite: bool, is_decoding: bool
) -> None:
    before = await client.responses.create(model="builtin", input="Hello!", temperature=0)
    prompt = STORY if is_decoding else "The kiosk by the door sells maps and tickets. " * 100
    # With a full queue, the client would not read the daemon's end of the close.
    socket = await connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", max_queue=None)
    await socket.send(json.dumps({"type": "response.create", "input": prompt, **ENDLESS}))
    wanted = "response.output_text.delta" if is_decoding else "response.created"
    while json.loads(await socket.recv())["type"] != wanted:
        pass
    if is_polite:
        await socket.close()
    else:
        socket.transport.abort()
    async with asyncio.timeout(patient(30)), httpx2.AsyncClient() as plain:
        num_live = 1
        while num_live:
            status = (await plain.get(f"{daemon.url}/edgeagent/status")).json()
            # The worker reports nothing before its first pong.
            worker = status["models"][0]["worker"] or {"num_running": 1, "num_waiting": 0}
            num_live = status["num_live_requests"] + worker["num_running"] + worker["num_waiting"]
            await asyncio.sleep(0.02)
    after = await client.responses.create(model="builtin", input="Hello!", temperature=0)
    assert after.output_text == before.output_text


async def last(connection: Any, grammar: EventGrammar | None = None) -> Any:
    """Return a response's final object; check its events against the grammar, which may know the first of them."""
    grammar = grammar or EventGrammar()
    async for event in connection:
        grammar.feed(event.to_dict())
        if event.type in TERMINAL:
            return event.response
    raise AssertionError("the connection ended without a terminal event")


async def test_a_chain_outlives_the_daemon(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin")
    try:
        async with openai(daemon) as client, client.responses.connect() as connection:
            await connection.response.create(model="builtin", input="My secret name is Zebulon.", store=False)
            secret = await last(connection)
            await connection.response.create(model="builtin", input="Hello, my name is Robin.", temperature=0)
            first = await last(connection)
            # A client that has seen the end may continue from it, however soon the daemon dies.
            daemon.process.kill()
    finally:
        daemon.process.kill()
        daemon.process.wait()
    stored = [path for path in daemon.state_dir.iterdir() if path.name.startswith("responses.sqlite3")]
    assert stored
    if sys.platform != "win32":
        assert {stat.S_IMODE(path.stat().st_mode) for path in stored} == {0o600}
    daemon = start_daemon(tmp_path / "state", "builtin")
    try:
        async with openai(daemon) as client:
            assert (await client.responses.retrieve(first.id)).output_text == first.output_text
            with pytest.raises(NotFoundError):
                await client.responses.retrieve(secret.id)
            second = await client.responses.create(
                model="builtin", input="What is my name?", previous_response_id=first.id, temperature=0
            )
            assert present(second.usage).input_tokens > present(first.usage).total_tokens
            async with client.responses.connect() as connection:
                await connection.response.create(model="builtin", input="And?", previous_response_id=second.id)
                assert (await last(connection)).previous_response_id == second.id
                await connection.response.create(model="builtin", input="And?", previous_response_id=secret.id)
                refused = await connection.recv()
                assert refused.type == "error"
                assert refused.error.code == "previous_response_not_found"
    finally:
        stop_daemon(daemon)
