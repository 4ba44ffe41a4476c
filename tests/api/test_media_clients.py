"""The clients of all APIs send images and sounds as their documentation says, and they arrive as they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ollama
import pytest
from openai import AsyncOpenAI

from edgeagent.types import ChatPrompt, MediaPlace, Message
from tests.api.services import Answering
from tests.api.serving import serve
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running
from tests.media import BLUE, RED, SILENCE, b64, data_url, media, png

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "What is this?"
SEEN = (Message("user", QUESTION, media=(MediaPlace(0, 0),)),)


def last_prompt(backend: FakeBackend) -> ChatPrompt:
    prompt = backend.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


async def test_openais_chat(client: AsyncOpenAI, backend: Answering) -> None:
    sound: Any = {"type": "input_audio", "input_audio": {"data": b64(SILENCE), "format": "wav"}}
    content: Any = [{"type": "image_url", "image_url": {"url": data_url(RED)}}, {"type": "text", "text": QUESTION}]
    answer = await client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": [*content, sound]}]
    )
    assert answer.choices[0].message.content == QUESTION, "the fake says what it was told"
    (message,) = last_prompt(backend).messages
    assert message == Message("user", QUESTION, media=(MediaPlace(0, 0), MediaPlace(len(QUESTION), 1)))
    assert last_prompt(backend).media == (media(RED), media(SILENCE, "audio"))


async def test_an_image_of_10_mib(client: AsyncOpenAI, backend: Answering) -> None:
    large = png(1920, 1820, seed=b"photo")
    assert len(large) > 10_000_000
    content: Any = [{"type": "image_url", "image_url": {"url": data_url(large)}}]
    await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": content}])
    assert last_prompt(backend).media == (media(large),)


async def test_anthropics(daemon: Running, backend: Answering) -> None:
    from anthropic import AsyncAnthropic

    source: Any = {"type": "base64", "media_type": "image/png", "data": b64(RED)}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    async with AsyncAnthropic(base_url=daemon.url, api_key="unused", max_retries=0) as anthropic:
        await anthropic.messages.create(model="fake", max_tokens=9, messages=[{"role": "user", "content": content}])
    assert (last_prompt(backend).messages, last_prompt(backend).media) == (SEEN, (media(RED),))


async def test_ollamas(daemon: Running, backend: Answering, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(RED)
    async with ollama.AsyncClient(daemon.url) as client:
        await client.chat("fake", [{"role": "user", "content": QUESTION, "images": [photo]}])
        assert (last_prompt(backend).messages, last_prompt(backend).media) == (SEEN, (media(RED),))
        await client.generate("fake", QUESTION, images=[RED])
        assert (last_prompt(backend).messages, last_prompt(backend).media) == (SEEN, (media(RED),))


def shown(data: bytes, text: str = QUESTION) -> Any:
    content = [{"type": "input_image", "image_url": data_url(data), "detail": "auto"}]
    return [{"role": "user", "content": [*content, {"type": "input_text", "text": text}]}]


async def test_a_stored_conversation_keeps_its_images_over_a_restart(tmp_path: Path) -> None:
    """Each image is kept once, whatever names it, and is gone with the last response that does."""
    file, backend = tmp_path / "responses.sqlite3", FakeBackend()
    async with serve(backend, store=file) as address, openai(address) as client:
        first = await client.responses.create(model="fake", input=shown(RED))
        second = await client.responses.create(model="fake", input=shown(RED, "again"), previous_response_id=first.id)
    async with serve(backend, store=file) as address, openai(address) as client:
        third = await client.responses.create(model="fake", input=shown(BLUE), previous_response_id=second.id)
        prompt = last_prompt(backend)
        assert [(message.content, message.media) for message in prompt.messages if message.role == "user"] == [
            (QUESTION, (MediaPlace(0, 0),)),
            ("again", (MediaPlace(0, 1),)),
            (QUESTION, (MediaPlace(0, 2),)),
        ]
        assert prompt.media == (media(RED), media(RED), media(BLUE))
        items = (await client.responses.input_items.list(third.id, order="asc")).data
        first_item: Any = items[0].to_dict()
        assert first_item["content"][0]["image_url"] == data_url(RED)
        assert file.read_bytes().count(RED) <= 1
        for response in (first, second, third):
            await client.responses.delete(response.id)
    assert RED not in file.read_bytes() and BLUE not in file.read_bytes()


def openai(address: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0)


async def test_a_websocket_and_what_continues_on_it(client: AsyncOpenAI, backend: Answering) -> None:
    async with client.responses.connect() as connection:
        previous: str | None = None
        for data in (RED, BLUE):
            await connection.response.create(model="fake", input=shown(data), previous_response_id=previous)
            async for event in connection:
                if event.type == "response.completed":
                    previous = event.response.id
                    break
    assert last_prompt(backend).media == (media(RED), media(BLUE))


async def test_the_realtime_api(client: AsyncOpenAI, backend: Answering) -> None:
    async with client.realtime.connect(model="fake") as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        content: Any = [
            {"type": "input_image", "image_url": data_url(RED)},
            {"type": "input_text", "text": QUESTION},
        ]
        await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await connection.response.create()
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.done":
                break
    assert (last_prompt(backend).messages, last_prompt(backend).media) == (SEEN, (media(RED),))
