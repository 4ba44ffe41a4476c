"""Images and sounds in a WebSocket's binary frames."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from edgeagent.api.gate.body_limit import InFlight
from edgeagent.api.responses.socket.files import SentFiles
from edgeagent.types import MAX_MEDIA_BYTES, ChatPrompt, MediaPlace, Message
from tests.api.serving import serve
from tests.backends.fake import FakeBackend
from tests.media import BLUE, RED, SILENCE, data_url, media, png

pytestmark = pytest.mark.asyncio


def name(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
async def socket(backend: FakeBackend) -> AsyncIterator[ClientConnection]:
    async with serve(backend) as address, connect(f"ws://{address}/v1/responses") as socket:
        yield socket


async def ask(socket: ClientConnection, *parts: dict[str, Any]) -> dict[str, Any]:
    """Ask about the parts; return the last event."""
    content = [*parts, {"type": "input_text", "text": "What is this?"}]
    fields = {"type": "response.create", "model": "fake", "input": [{"role": "user", "content": content}]}
    await socket.send(json.dumps(fields))
    while True:
        event: dict[str, Any] = json.loads(await socket.recv())
        if event["type"] in ("response.completed", "response.failed", "error"):
            return event


def image(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": name(data)}


async def test_a_create_names_the_files_of_binary_frames(socket: ClientConnection, backend: FakeBackend) -> None:
    for data in (RED, SILENCE, BLUE):
        await socket.send(data)
    sound = {"type": "input_audio", "input_audio": {"data": name(SILENCE), "format": "wav"}}
    end = await ask(socket, image(RED), sound, {"type": "input_image", "image_url": data_url(BLUE)})
    assert end["type"] == "response.completed"
    prompt = backend.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (Message("user", "What is this?", media=tuple(MediaPlace(0, n) for n in range(3))),)
    assert prompt.media == (media(RED), media(SILENCE, "audio"), media(BLUE))
    assert (await ask(socket, image(BLUE)))["type"] == "response.completed", "it is known until the connection ends"


async def test_what_is_not_there_is_refused(socket: ClientConnection) -> None:
    await socket.send(SILENCE)
    for part, why in (
        (image(RED), "names a file that is not here"),
        (image(SILENCE), "leads to a file that is no PNG"),
    ):
        end = await ask(socket, part)
        assert end["type"] == "error" and why in end["error"]["message"]
        assert end["error"]["param"] == "input[0].content[0]"


async def test_another_binary_frame_ends_the_connection(socket: ClientConnection) -> None:
    await socket.send(b"{}")
    with pytest.raises(ConnectionClosed):
        await socket.recv()
    assert (socket.close_code, socket.close_reason) == (1003, "a binary frame must be an image or a sound")


async def test_the_latest_files_are_kept() -> None:
    files = SentFiles(InFlight(4 * MAX_MEDIA_BYTES), "")
    large = [png(1, 1) + bytes([number]) * (MAX_MEDIA_BYTES // 2 - 100) for number in range(3)]
    for data in (*large, large[2]):
        await files.add(data)
    assert files.by_name == {name(data): data for data in large[1:]}
    await files.add(large[0])
    assert set(files.by_name) == {name(large[2]), name(large[0])}
    files.close()
    assert files.by_name == {}


async def test_a_file_is_hashed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[threading.Thread]()

    def sha256(data: bytes) -> object:
        threads.append(threading.current_thread())
        return hashlib.new("sha256", data)

    monkeypatch.setattr(hashlib, "sha256", sha256)
    await SentFiles(InFlight(1000), "").add(RED)
    assert threads and threading.main_thread() not in threads


async def test_files_are_dropped_if_clients_send_too_much() -> None:
    in_flight = InFlight(1000)
    files, others = SentFiles(in_flight, "a"), SentFiles(in_flight, "b")
    await files.add(RED + bytes(500))
    await others.add(BLUE + bytes(900))
    assert not files.by_name or not others.by_name
    await others.add(BLUE)
    assert name(BLUE) in others.by_name, "the connection goes on"
