"""`edgeagent.client` with a real daemon and the bundled model."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest

from edgeagent.client import Client, background, connect
from edgeagent.client import sync as sync_client
from edgeagent.errors import BackendUnavailable, ResponseNotFound
from tests.cutting_proxy import cutting_proxy
from tests.integration.conftest import Daemon
from tests.patience import patient

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 40}
CAPABILITIES = "What can you do?"


def client_of(daemon: Daemon) -> Client:
    return connect(state_dir=daemon.state_dir)


async def test_words_are_computed_while_they_are_spoken_and_the_answer_begins_ahead(daemon: Daemon) -> None:
    async with client_of(daemon) as client:
        expected = (await client.ask(CAPABILITIES, **GREEDY)).text
        num_ahead = 0
        for attempt in range(10):
            talk = client.conversation(**GREEDY)
            await talk.prefill()
            await talk.append("What ")
            await talk.replace_tail("can I do")
            await talk.replace_tail("can you do?")
            assert talk.words == CAPABILITIES
            await talk.ahead()
            await asyncio.sleep(0.2 * attempt)
            reply = await talk.commit()
            assert talk.words == ""
            assert [sentence async for sentence in reply.sentences()] == [expected]
            num_ahead = reply.answer.edgeagent.get("ahead_tokens", 0)
            if num_ahead:
                break
        assert num_ahead > 0
        assert talk.response_id == reply.answer.response_id


async def test_an_interrupted_answer_ends_for_its_reader_and_the_conversation_goes_on(daemon: Daemon) -> None:
    async with client_of(daemon) as client:
        talk = client.conversation(temperature=0)
        reply = await talk.commit(CAPABILITIES, max_output_tokens=1000)
        begun = asyncio.Event()

        async def read() -> str:
            text = ""
            async for part in reply.texts():
                text += part
                begun.set()
            return text

        reading = asyncio.create_task(read())
        await asyncio.wait_for(begun.wait(), patient(30))
        await talk.append("never ")  # sends nothing while the answer runs
        answer = await talk.cancel()
        assert answer is reply.answer
        assert answer.status == "cancelled" or answer.status == "completed", "it may have ended just before"
        text = await reading
        assert answer.text.startswith(text)
        interrupted_id = talk.response_id
        assert interrupted_id == answer.response_id
        await talk.append("mind. Hello!")
        again = await talk.commit()
        assert again.request["input"] == "never mind. Hello!"
        assert again.request["previous_response_id"] == interrupted_id
        assert (await again.finish()).status in ("completed", "incomplete")


async def test_functions_are_called_and_their_output_is_answered(daemon: Daemon) -> None:
    called = []

    def set_timer(minutes: int) -> dict[str, bool]:
        """Set a timer."""
        called.append(minutes)
        return {"ok": True}

    async with client_of(daemon) as client:
        for background in (False, True):
            talk = client.conversation(tools=[set_timer], **GREEDY)
            await talk.prefill()
            reply = await talk.commit("Set a timer for 7 minutes.", background=background)
            answer = await reply.finish()
            assert [call.name for call in reply.rounds[0].tool_calls] == ["set_timer"]
            assert answer.text and answer.status == "completed" and answer.response_id == talk.response_id
    assert called == [7, 7]


async def test_a_background_answer_that_was_cut_goes_on_where_it_was(daemon: Daemon) -> None:
    with cutting_proxy(daemon.port, 5000, 700, 1300) as proxy:
        client = connect(proxy.url)
        reply = client.respond(CAPABILITIES, background=True, **GREEDY)
        events = [event async for event in reply]
        assert proxy.cuts == [] and proxy.num_connections > 3
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers))
        async with httpx.AsyncClient() as http:
            kept = (await http.get(f"{daemon.url}/v1/responses/{reply.answer.response_id}")).json()
        assert reply.answer.text == kept["output"][0]["content"][0]["text"]
        # A refusal has its own error.
        with pytest.raises(ResponseNotFound, match="resp_none"):
            await client.ask("x", background=True, previous_response_id="resp_none")


async def test_in_the_background_an_absent_daemon_is_an_error(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_REACH_S", 0.0)
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await connect(f"http://127.0.0.1:{unused_tcp_port}").ask("Hi", background=True)


async def test_a_background_answer_is_cancelled(daemon: Daemon) -> None:
    reply = connect(daemon.url).respond(CAPABILITIES, background=True, temperature=0)
    event = await anext(reply)
    assert event["type"] == "response.created"
    answer = await reply.cancel()
    assert answer.status in ("cancelled", "completed")
    assert [event async for event in reply] == []


async def test_a_conversation_goes_on_after_its_connection_was_cut(daemon: Daemon) -> None:
    with cutting_proxy(daemon.port, 6000) as proxy:
        client = connect(proxy.url)
        talk = client.conversation(**GREEDY)
        # A message whose answer has not begun is sent again; another one fails.
        while proxy.num_connections < 2:
            with suppress(BackendUnavailable):
                await (await talk.commit(CAPABILITIES)).finish()
        assert talk.response_id is None or talk.response_id.startswith("resp_")
        await talk.append("Hel")
        reply = await talk.commit("Hello!")
        assert (await reply.finish()).text
        assert proxy.num_connections == 2
        await client.close()


def test_without_await_the_names_are_the_same(daemon: Daemon) -> None:
    with sync_client.connect(state_dir=daemon.state_dir) as client:
        expected = client.ask(CAPABILITIES, **GREEDY).text
        talk = client.conversation(**GREEDY)
        talk.prefill()
        talk.append("What can ")
        talk.replace_tail("you do?")
        talk.ahead()
        assert list(talk.commit().sentences()) == [expected]
        client.prefill("Hello")
        assert "".join(client.respond(CAPABILITIES, **GREEDY).texts()) == expected
        reply = talk.commit(CAPABILITIES, max_output_tokens=1000)
        events = iter(reply)
        next(events)
        stopping = threading.Thread(target=talk.cancel)
        stopping.start()
        assert json.dumps(list(events)) is not None
        stopping.join()
        assert reply.answer.is_finished and reply.rounds == []
        assert talk.response_id == reply.answer.response_id and talk.words == ""


def test_a_client_that_is_closed_lets_no_thread_wait(daemon: Daemon) -> None:
    client = sync_client.connect(state_dir=daemon.state_dir)
    events = iter(client.respond(CAPABILITIES, temperature=0, max_output_tokens=1000))
    next(events)
    ends: list[object] = []

    def read() -> None:
        try:
            ends.append(list(events))
        except BaseException as error:
            ends.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    client.close()
    client.close()
    reading.join(patient(10))
    assert len(ends) == 1
    # The connection was closed under the reply, or the thread came too late to wait for it.
    assert isinstance(ends[0], BackendUnavailable | list)
    # A closed client refuses work.
    for late in (lambda: client.ask("Hi"), lambda: next(events), client.conversation().prefill):
        with pytest.raises((BackendUnavailable, StopIteration)):
            late()


def test_a_thread_of_a_client_without_await_ends(daemon: Daemon, unused_tcp_port: int) -> None:
    with pytest.raises(BackendUnavailable), sync_client.connect(f"http://127.0.0.1:{unused_tcp_port}"):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "edgeagent.client"]
