"""Wyoming with a real daemon, the bundled model and the package's own client, as Home Assistant has it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from wyoming.asr import Transcript
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.info import Describe, Info

from edgeagent import cache_folder
from tests.integration.conftest import Daemon, serving, wait_until
from tests.patience import patient
from tests.worker.support import eventually


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that speaks Wyoming on a free port. Its stop at the end succeeds whatever clients have done."""
    with serving(tmp_path_factory.mktemp("voice") / "state", "builtin", "--wyoming", "0") as daemon:
        yield daemon


@pytest.fixture
def port(voice: Daemon) -> int:
    return voice.wyoming_port


def client_of(port: int) -> AsyncTcpClient:
    return AsyncTcpClient("127.0.0.1", port, read_timeout=patient(20))


async def read(client: AsyncTcpClient) -> Event:
    event = await client.read_event()
    assert event is not None
    return event


async def ask(port: int, text: str, conversation_id: str) -> list[Event]:
    """Ask as Home Assistant does, on a connection of its own; return the events up to the end of the answer."""
    async with client_of(port) as client:
        await client.write_event(Transcript(text, {"conversation_id": conversation_id}, "en").event())
        events = [await read(client)]
        while events[-1].type not in ("handled-stop", "not-handled"):
            events.append(await read(client))
    return events


async def test_it_describes_itself(port: int) -> None:
    async with client_of(port) as client:
        await client.write_event(Describe().event())
        [program] = Info.from_event(await read(client)).handle
    assert program.supports_handled_streaming
    assert [(model.name, model.languages) for model in program.models] == [("builtin", ["en"])]


async def test_an_answer_is_streamed_and_the_conversation_is_kept(port: int) -> None:
    events = await ask(port, "My name is Zora.", "kept")
    assert [events[0].type, events[-2].type, events[-1].type] == ["handled-start", "handled", "handled-stop"]
    chunks = [event.data["text"] for event in events[1:-2]]
    assert "".join(chunks) == events[-2].data["text"] == "Nice to meet you, Zora."
    assert "Zora" in (await ask(port, "What is my name?", "kept"))[-2].data["text"]
    assert "Zora" not in (await ask(port, "What is my name?", "another"))[-2].data["text"]


async def test_only_the_last_of_several_transcripts_is_answered_to_its_end(port: int) -> None:
    async with client_of(port) as client:
        for text in ("What can you do?", "What can you do?", "What is 7 times 8?"):
            await client.write_event(Transcript(text).event())
        texts: list[str] = []
        is_open = False
        while not (texts and "56" in texts[-1] and not is_open):
            event = await read(client)
            match event.type:
                case "handled-start":
                    assert not is_open
                    is_open = True
                case "handled":
                    texts.append(event.data["text"])
                case "handled-stop":
                    is_open = False
    assert len(texts) <= 3


async def test_a_client_that_leaves_costs_nothing(voice: Daemon, port: int) -> None:
    for _ in range(5):
        async with client_of(port) as client:
            await client.write_event(Transcript("What can you do?").event())
            await read(client)
    await eventually(lambda: json.loads(voice.run("status", "--json"))["num_live_requests"] == 0)


HOSTILE = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + b'{"type": "transcript", "data": {"text": "hello"}}\n',
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"x" * (1 << 20),
    b'{"type": ' + b"[" * (1 << 20),
    b'{"type": "transcript", "data_length": 1000000000000}\n',
    b'{"type": "transcript", "data_length": 4}\nnull',
    b'{"type": "transcript", "data": {"text": null}}\n' * 1000,
    b'{"type": "transcript", "data": {"text": "hello"}}\n' * 50,
    b'{"type": "ping"}\n' * 2000,
    b'{"type": "transcript", "data_length": 100}\n{"text": "hel',
    os.urandom(1 << 16),
)


async def test_hostile_bytes_harm_nobody(voice: Daemon, port: int) -> None:
    """They come all at once, some do not read the errors, and all leave in the midst. Others are answered meanwhile."""

    async def attack(raw: bytes, *, reads: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(raw)
            async with asyncio.timeout(0.5):
                await (reader.read() if reads else asyncio.sleep(0.3))
        except (TimeoutError, OSError):
            pass
        finally:
            writer.transport.abort()

    attacks = [asyncio.create_task(attack(raw, reads=reads)) for raw in HOSTILE for reads in (True, False)]
    while not all(task.done() for task in attacks):
        assert (await ask(port, "What is 7 times 8?", ""))[-2].data["text"] == "7 times 8 is 56."
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{voice.url}/health")).status_code == 200
    assert "Traceback" not in voice.log.read_text()


async def test_it_is_one_client_and_leaves_no_conversation_behind(tmp_path: Path) -> None:
    """Prompts go to the disk at a stop, at the latest. Blocks hold token ids, so their owners are looked up."""
    with serving(tmp_path / "state", "builtin", "--wyoming", "0") as voice:
        events = await ask(voice.wyoming_port, "Remember the word xylophone.", "private")
        async with httpx.AsyncClient(base_url=voice.url, timeout=patient(60)) as http:
            listed = await http.get("/edgeagent/conversations")
            counted = 'edgeagent_requests_total{method="transcript",outcome="handled",route="wyoming"}'
            wait_until(lambda: counted in httpx.get(f"{voice.url}/metrics").text)
            await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi " * 64}]})
    assert listed.status_code == 200 and "xylophone" not in listed.text
    log = voice.log.read_text()
    assert "xylophone" not in log and events[-2].data["text"] not in log
    kept = [path for path in voice.state_dir.rglob("*") if path.is_file()]
    assert kept and not any(b"xylophone" in path.read_bytes() for path in kept)
    parts = cache_folder.list_parts(voice.state_dir / "cache")
    assert {part.record and part.record.client for part in parts} == {""}, "the other prompt's alone"


def test_it_listens_only_on_loopback_and_only_if_asked(port: int, daemon: Daemon) -> None:
    assert "Wyoming" not in daemon.log.read_text()
    with socket.socket() as probe:
        probe.settimeout(5)
        assert probe.connect_ex(("127.0.0.2", port)) != 0
