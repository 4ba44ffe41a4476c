"""Addresses of images in clients' messages: fetched on every wire if the owner allows their host, else refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import APIStatusError, AsyncOpenAI, BadRequestError
from websockets.asyncio.client import connect

from edgeagent.backends.remote.image_fetcher import MAX_OF_CLIENT
from edgeagent.config import Config, ServerConfig
from edgeagent.egress import FETCH
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import (
    MAX_MEDIA_BYTES,
    ChatPrompt,
    FinishReason,
    MediaPlace,
    Message,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.backends.fake import FakeBackend, Gate, Script, echo, finished
from tests.daemon.running import Running, limited, running
from tests.image_site import Site, site_of_images
from tests.media import RED, data_url, media
from tests.worker.support import eventually

pytestmark = pytest.mark.asyncio
QUESTION = "What is this?"
SEEN = (Message("user", QUESTION, media=(MediaPlace(0, 0),)),)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_of_images(tmp_path / "state") as site:
        yield site


@pytest_asyncio.fixture
async def daemon(tmp_path: Path, site: Site, machine_policy: Path) -> AsyncIterator[Running]:
    del machine_policy
    config = Config(state_dir=tmp_path / "state", server=ServerConfig(image_hosts=(site.host,)))
    backend = FakeBackend()
    backend.remote_access = access = RemoteAccess(config)
    async with running(backend, config) as daemon:
        yield daemon
    access.close()


def last_prompt(daemon: Running) -> ChatPrompt:
    backend = daemon.service
    assert isinstance(backend, FakeBackend)
    prompt = backend.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def openai(daemon: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0)


def chat(url: str, text: str = QUESTION) -> Any:
    image = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [image, {"type": "text", "text": text}]}


def shown(url: str) -> Any:
    content = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    return [{"role": "user", "content": content}]


def behind(gate: Gate) -> Script:
    return lambda request: (gate, *echo(request))


async def test_every_wire_fetches_it(daemon: Running, site: Site, tmp_path: Path) -> None:
    from anthropic import AsyncAnthropic

    url = f"http://{site.host}/red.png"
    async with openai(daemon) as client:
        await client.chat.completions.create(model="fake", messages=[chat(url)])
        assert (last_prompt(daemon).messages, last_prompt(daemon).media) == (SEEN, (media(RED),))
        response = await client.responses.create(model="fake", input=shown(f"{url}?2"))
        assert (last_prompt(daemon).messages, last_prompt(daemon).media) == (SEEN, (media(RED),))
        items: Any = (await client.responses.input_items.list(response.id)).data
        assert items[0].content[0].image_url == data_url(RED), "the conversation has the image, not its address"
        async with client.responses.connect() as connection:
            await connection.response.create(model="fake", input=shown(f"{url}?3"))
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    break
        assert (last_prompt(daemon).messages, last_prompt(daemon).media) == (SEEN, (media(RED),))
    source: Any = {"type": "url", "url": f"{url}?4"}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    async with AsyncAnthropic(base_url=daemon.url, api_key="unused", max_retries=0) as anthropic:
        await anthropic.messages.create(model="fake", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert (last_prompt(daemon).messages, last_prompt(daemon).media) == (SEEN, (media(RED),))
    assert site.paths == ["/red.png", "/red.png?2", "/red.png?3", "/red.png?4"] and site.num_open == [1] * 4
    assert {(row.reason, row.outcome) for row in read_rows(folder_of(tmp_path / "state"))} == {(FETCH, "completed")}


async def test_a_realtime_session_fetches_it(daemon: Running, site: Site, tmp_path: Path) -> None:
    url = f"http://{site.host}/red.png"

    async def add(connection: Any, url: str) -> Any:
        await connection.conversation.item.create(item={**shown(url)[0], "type": "message"})
        async for event in connection:
            if event.type in ("error", "conversation.item.done"):
                return event
        raise AssertionError("the connection has ended")

    async with openai(daemon) as client, client.realtime.connect(model="fake") as connection:
        done = await add(connection, url)
        assert done.item.content[0].image_url == data_url(RED), "the conversation has the image, not its address"
        await connection.response.create()
        async for event in connection:
            if event.type == "response.done":
                break
        assert (last_prompt(daemon).messages, last_prompt(daemon).media) == (SEEN, (media(RED),))
        assert "server.image_hosts" in (await add(connection, "http://other.example/x.png")).error.message
        assert "at most 750000" in (await add(connection, f"http://{site.host}/million.png")).error.message
        update: Any = {"type": "session.update", "session": {"edgeagent": {"route": "local_only"}}}
        await connection.send(update)
        assert "local_only" in (await add(connection, f"{url}?2")).error.message
    assert site.paths == ["/red.png", "/million.png"]
    assert {row.reason for row in read_rows(folder_of(tmp_path / "state"))} == {FETCH}


async def test_what_is_not_fetched_is_refused(daemon: Running, site: Site) -> None:
    async with openai(daemon) as client:
        for url, why in (
            ("http://other.example/x.png", "server.image_hosts does not allow"),
            (f"http://{site.host}/none", "cannot be fetched: its server answered with the status 404"),
            (f"http://{site.host}/sound.wav", "leads to a file that is no PNG"),
            (f"http://user:secret@{site.host}/red.png", "without a user name"),
        ):
            with pytest.raises(BadRequestError, match=why) as refused:
                await client.chat.completions.create(model="fake", messages=[chat(url)])
            assert refused.value.param == "messages[0].content[0]"
            assert "secret" not in refused.value.message
        many: Any = [chat(f"http://{site.host}/{number}")["content"][0] for number in range(17)]
        with pytest.raises(BadRequestError, match="at most 16 are fetched"):
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": many}])
        num_asked = len(site.paths)
        with pytest.raises(BadRequestError, match="local_only"):
            await client.chat.completions.create(
                model="fake",
                messages=[chat(f"http://{site.host}/red.png")],
                extra_body={"edgeagent": {"route": "local_only"}},
            )
        with pytest.raises(BadRequestError, match="temperature"):
            await client.chat.completions.create(
                model="fake", messages=[chat(f"http://{site.host}/red.png")], temperature=99
            )
        assert len(site.paths) == num_asked, "nothing is fetched for a request that is refused"


async def test_nothing_is_fetched_for_a_conversation_that_stays_here(daemon: Running, site: Site) -> None:
    url, local = f"http://{site.host}/red.png", {"edgeagent": {"route": "local_only"}}
    async with openai(daemon) as client:
        free = await client.responses.create(model="fake", input="Hello.")
        kept = await client.responses.create(model="fake", input="Hello.", extra_body=local)
        later = await client.responses.create(model="fake", input="And?", previous_response_id=kept.id)
        item: Any = {"type": "item_reference", "id": kept.output[0].id}
        for continued in ({"previous_response_id": later.id}, {"input": [item, *shown(url)]}):
            asked: Any = {"model": "fake", "input": shown(url), **continued}
            for path in ("/responses", "/responses/compact", "/responses/input_tokens"):
                with pytest.raises(BadRequestError, match="local_only"):
                    await client.post(path, body=asked, cast_to=object)
            with pytest.raises(BadRequestError, match="local_only"):
                body = asked | {"choices": ["yes", "no"]}
                await client.post(f"{daemon.url}/edgeagent/choose", body=body, cast_to=object)
        with pytest.raises(BadRequestError, match="'resp_none' not found"):
            await client.responses.create(model="fake", input=shown(url), previous_response_id="resp_none")
        assert site.paths == []
        await client.responses.create(model="fake", input=shown(url), previous_response_id=free.id)
        assert site.paths == ["/red.png"]


async def test_nothing_is_fetched_on_a_socket_for_a_conversation_that_stays_here(daemon: Running, site: Site) -> None:
    """Neither for one that the connection remembers, nor for one whose last answer is under way."""
    url, local, backend = f"http://{site.host}/red.png", {"route": "local_only"}, daemon.service
    assert isinstance(backend, FakeBackend)

    async def end() -> Any:
        async for event in connection:
            if event.type in ("error", "response.completed"):
                return event
        raise AssertionError("the connection has ended")

    async def ask(**fields: Any) -> Any:
        await create(**fields)
        return await end()

    async def create(**fields: Any) -> None:
        await connection.send({"type": "response.create", "model": "fake", "store": False, **fields})

    async with openai(daemon) as client, client.responses.connect() as connection:
        free = (await ask(input="Hello.")).response.id
        kept = (await ask(input="Hello.", edgeagent=local)).response.id
        assert "local_only" in (await ask(input=shown(url), previous_response_id=kept)).error.message
        unknown = await ask(input=shown(url), previous_response_id="resp_none")
        assert unknown.error.code == "previous_response_not_found"
        refused = await ask(input=shown(url), previous_response_id=kept, background=True)
        assert "background" in refused.error.message
        for own, paths in ((local, []), ({}, ["/red.png"])):
            gate = Gate()
            backend.script = behind(gate)
            await create(input="Hello.", edgeagent=own)
            async for event in connection:
                if event.type == "response.created":
                    break
            await create(input=shown(url), previous_response_id=event.response.id)
            gate.opened.set()
            assert (await end()).type == "response.completed"
            backend.script = echo
            assert (await end()).type == ("response.completed" if paths else "error")
            assert site.paths == paths
        assert (await ask(input=shown(f"{url}?2"), previous_response_id=free)).type == "response.completed"
        assert site.paths == ["/red.png", "/red.png?2"]


async def test_a_result_of_a_call_comes_before_its_response_has_ended(daemon: Running, site: Site) -> None:
    backend, gate = daemon.service, Gate()
    assert isinstance(backend, FakeBackend)
    call = (ToolCallStarted(0, "call_1", "look"), ToolCallDelta(0, "{}"))
    backend.script = lambda _: (Started(3, 0), call, (TextDelta("So."),), gate, finished(FinishReason.TOOL_CALLS))
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    create: Any = {"type": "response.create", "model": "fake", "store": False, "tools": [tool]}
    async with openai(daemon) as client, client.responses.connect() as connection:
        await connection.send({**create, "input": "Look."})
        async for event in connection:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_item.done":
                break
        result = {"type": "function_call_output", "call_id": event.item.call_id, "output": "See."}
        new = [result, *shown(f"http://{site.host}/red.png")]
        await connection.send({**create, "input": new, "previous_response_id": response_id})
        await eventually(lambda: bool(site.paths))
        gate.opened.set()
        backend.script = echo
        ends = (event.type async for event in connection if event.type in ("error", "response.completed"))
        assert [await anext(ends), await anext(ends)] == ["response.completed"] * 2


@pytest.mark.parametrize("path", ["responses", "realtime"])
async def test_a_cancel_passes_an_image_that_is_fetched(daemon: Running, site: Site, path: str) -> None:
    """On its connection, and what comes behind the image keeps its place."""
    backend, is_realtime = daemon.service, path == "realtime"
    assert isinstance(backend, FakeBackend)
    backend.script = behind(Gate())

    async def end() -> str:
        async for text in socket:
            event = json.loads(text)
            if event["type"] in ("response.incomplete", "response.completed", "response.done"):
                return str(event["response"]["status"])
        raise AssertionError("the connection has ended")

    async def send(kind: str, **fields: Any) -> None:
        await socket.send(json.dumps({"type": kind, **fields}))

    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/{path}") as socket:
        await send("response.create", **({"response": {"instructions": "Greet."}} if is_realtime else {"input": "Hi"}))
        await backend.until(lambda each: bool(each.requests))
        item = {**shown(f"http://{site.host}/held.png")[0], "type": "message"}
        if is_realtime:
            await send("conversation.item.create", item=item)
        else:
            await send("response.create", input=[item])
        await eventually(lambda: bool(site.paths))
        await send("response.cancel")
        assert await end() in ("incomplete", "cancelled") and not site.has_opened
        backend.script = echo
        if is_realtime:
            await send("response.create")
        site.opened.set()
        assert await end() == "completed"
        assert last_prompt(daemon).media == (media(RED),)


async def test_nothing_is_fetched_for_a_realtime_conversation_that_stays_here(daemon: Running, site: Site) -> None:
    """Neither beside a response that must, nor behind a stored item that must."""
    url, local, backend, gate = f"http://{site.host}/red.png", {"route": "local_only"}, daemon.service, Gate()
    assert isinstance(backend, FakeBackend)

    async def next_of(*kinds: str) -> Any:
        async for event in connection:
            if event.type in (*kinds, "error"):
                return event
        raise AssertionError("the connection has ended")

    async def respond(**fields: Any) -> None:
        await connection.send({"type": "response.create", "response": fields})

    image: Any = {**shown(url)[0], "type": "message"}
    async with openai(daemon) as client:
        kept = await client.responses.create(model="fake", input="Hello.", extra_body={"edgeagent": local})
        async with client.realtime.connect(model="fake") as connection:
            await connection.conversation.item.create(item={**image, "content": image["content"][1:]})
            await next_of("conversation.item.done")
            item = {"type": "item_reference", "id": kept.output[0].id}
            await respond(conversation="none", input=[item, image])
            assert "local_only" in (await next_of("response.done")).error.message
            await respond(conversation="none", input=[item, image], temperature=99)
            assert (await next_of("response.done")).type == "error"
            backend.script = behind(gate)
            await respond(edgeagent=local)
            await next_of("response.created")
            await connection.conversation.item.create(item=image)
            assert "local_only" in (await next_of("conversation.item.done")).error.message
            gate.opened.set()
            await next_of("response.done")
        assert site.paths == []


async def test_the_images_of_a_request_have_a_limit_together(daemon: Running, site: Site, tmp_path: Path) -> None:
    content = [chat(f"http://{site.host}/half?{number}")["content"][0] for number in range(16)]
    async with openai(daemon) as client:
        with pytest.raises(APIStatusError, match=f"more than {MAX_MEDIA_BYTES} bytes together") as refused:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": content}])
        assert refused.value.status_code == 413
        rows = list(read_rows(folder_of(tmp_path / "state")))
        # Two are as much as a request may have. Others that are fetched at the same time may end before their cancel.
        assert sum(row.outcome == "completed" for row in rows) <= MAX_OF_CLIENT
        await client.chat.completions.create(model="fake", messages=[chat(f"http://{site.host}/red.png")])


async def test_what_is_fetched_counts_among_all_that_clients_send(site: Site, tmp_path: Path) -> None:
    config = limited(max_in_flight_bytes=500_000, image_hosts=(site.host,))
    backend = FakeBackend()
    backend.remote_access = access = RemoteAccess(Config(state_dir=tmp_path / "state"))
    async with running(backend, config) as daemon, openai(daemon) as client:
        for path in ("/million.png", "/million.png?2"):
            with pytest.raises(APIStatusError, match="clients are sending too much at once") as refused:
                await client.chat.completions.create(model="fake", messages=[chat(f"http://{site.host}{path}")])
            assert refused.value.status_code == 429 and refused.value.response.headers["retry-after"] == "2"
        await client.chat.completions.create(model="fake", messages=[chat(f"http://{site.host}/red.png")])
    access.close()


async def test_an_earlier_image_that_is_gone_becomes_a_note(daemon: Running, site: Site) -> None:
    answer: Any = {"role": "assistant", "content": "Red."}
    again: Any = {"role": "user", "content": "And now?"}
    async with openai(daemon) as client:
        note = "[image left out: only text can be read here]"
        for path, content in (("/red.png", QUESTION), ("/none", note + QUESTION)):
            messages = [chat(f"http://{site.host}{path}"), answer, again]
            raw = await client.chat.completions.with_raw_response.create(model="fake", messages=messages)
            assert last_prompt(daemon).messages[0].content == content
            assert ("left out" in raw.headers.get("x-edgeagent-warning", "")) == (path == "/none")


async def test_without_hosts_nothing_is_fetched(site: Site) -> None:
    from anthropic import AsyncAnthropic
    from anthropic import BadRequestError as AnthropicError

    url = f"http://{site.host}/red.png"
    async with running(FakeBackend()) as daemon:
        async with openai(daemon) as client:
            with pytest.raises(BadRequestError, match=r"allows no host to fetch images from \(server.image_hosts\)"):
                await client.chat.completions.create(model="fake", messages=[chat(url)])
        source: Any = {"type": "url", "url": url}
        async with AsyncAnthropic(base_url=daemon.url, api_key="unused", max_retries=0) as anthropic:
            content: Any = [{"type": "image", "source": source}]
            with pytest.raises(AnthropicError, match=r"server.image_hosts"):
                await anthropic.messages.create(
                    model="fake", max_tokens=9, messages=[{"role": "user", "content": content}]
                )
    assert site.paths == []
