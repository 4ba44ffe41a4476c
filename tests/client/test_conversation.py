"""Prefills, conversations and rounds of calls against a server that plays a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from edgeagent.client import connect, sync
from edgeagent.client import reply as reply_module
from edgeagent.errors import InvalidRequest, ModelNotFound
from tests.client.daemon_stub import Act, call_events, closing, running_stub, sending, text_events
from tests.patience import patient


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))


def created(response_id: str) -> list[dict[str, Any]]:
    return text_events(response_id)[:1]


def ended(response_id: str, then: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the end of a prefill, and what the create behind it gets."""
    return [text_events(response_id)[-1], *then]


NOTHING = sending([])


async def test_words_are_sent_as_prefills_and_the_reply_s_events_are_its_own() -> None:
    answer = text_events("resp_9", "Yes. ", "No")
    script = [
        sending(created("p1")),
        sending(ended("p1", created("p2"))),
        sending(ended("p2", created("p3"))),
        sending(ended("p3", answer)),
    ]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        talk = client.conversation("resp_1", instructions="Be kind.", temperature=0)
        await talk.append("turn on ")
        await talk.replace_tail("the line")
        await talk.replace_tail("the light")
        reply = await talk.commit()
        assert [event async for event in reply] == answer
        assert not client.has_prefills
        assert (talk.response_id, talk.words) == ("resp_9", "")
    common = {
        "type": "response.create",
        "instructions": "Be kind.",
        "temperature": 0,
        "previous_response_id": "resp_1",
    }
    words = ["turn on ", "turn on the line", "turn on the light"]
    assert stub.received[:3] == [{**common, "input": text, "generate": False} for text in words]
    assert stub.received[3] == {**common, "input": "turn on the light"}


async def test_ahead_is_marked_and_a_prefill_without_words_has_no_input() -> None:
    script = [*(sending(ended(f"p{number}", [])) for number in range(3)), sending(text_events("resp_1"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        talk = client.conversation(edgeagent={"ttft_ms": 50})
        await talk.ahead()
        await talk.append("Hi")
        await talk.ahead()
        await (await talk.commit()).finish()
    first, second, third, final = stub.received
    assert "input" not in first and first["edgeagent"] == {"ttft_ms": 50}
    assert second["edgeagent"] == {"ttft_ms": 50}
    assert third == {**final, "generate": False, "edgeagent": {"ttft_ms": 50, "ahead": True}}


REFUSAL = {"type": "error", "error": {"code": "model_not_found", "message": "no model x"}}


@pytest.mark.parametrize("failed", [closing(1011), sending([REFUSAL])], ids=["lost", "refused"])
async def test_a_prefill_that_fails_does_not_harm_the_reply(failed: Act) -> None:
    # The connection may take the next request before it is known to be lost.
    script = [failed, *[sending(text_events("resp_1", "ok"))] * 2]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        await client.prefill("Hel")
        assert (await client.ask("Hello")).text == "ok"
        assert not client.has_prefills


async def test_a_prefill_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    async with running_stub(sending(text_events("resp_1", "ok"))) as stub, connect(stub.url) as client:
        with pytest.raises(InvalidRequest, match="surrogate"):
            await client.prefill("a\ud800")
        assert (await client.ask("Hello")).text == "ok"


async def test_the_words_wait_while_a_reply_runs() -> None:
    async with running_stub(sending(created("resp_1")), sending(text_events("resp_1")[1:])) as stub:
        client = connect(stub.url)
        talk = client.conversation()
        reply = await talk.commit("Hello")
        await anext(reply)
        await talk.append("no")
        assert len(stub.received) == 1
        assert await talk.cancel() is reply.answer
        assert stub.received[1] == {"type": "response.cancel", "response_id": "resp_1"}
        assert talk.words == "no"
        await client.close()


async def test_a_cancel_waits_until_the_prefill_before_its_reply_has_ended() -> None:
    is_asked = asyncio.Event()

    async def answer_late(connection: ServerConnection, _: dict[str, Any]) -> None:
        is_asked.set()
        await asyncio.sleep(0.05)
        await sending(ended("p1", created("resp_1")))(connection, {})

    async with running_stub(NOTHING, answer_late, sending(text_events("resp_1")[1:])) as stub:
        client = connect(stub.url)
        await client.prefill("Hel")
        reply = client.respond("Hello")
        reading = asyncio.create_task(reply.finish())
        await is_asked.wait()
        await reply.cancel()
        assert stub.received[2] == {"type": "response.cancel", "response_id": "resp_1"}
        assert await reading is reply.answer
        await client.close()


async def test_a_failed_reply_is_left_out_of_the_conversation() -> None:
    script = [sending(text_events("resp_1")), sending([REFUSAL]), sending(text_events("resp_2"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        talk = client.conversation()
        await (await talk.commit("one")).finish()
        with pytest.raises(ModelNotFound):
            await (await talk.commit("two")).finish()
        with pytest.raises(InvalidRequest, match="surrogate"):
            await (await talk.commit("a\ud800")).finish()
        await (await talk.commit("three")).finish()
        assert talk.response_id == "resp_2"
    assert [request.get("previous_response_id") for request in stub.received] == [None, "resp_1", "resp_1"]


def light(on: bool) -> str:
    """Switch the light."""
    return "done" if on else "off"


async def test_rounds_of_calls_are_run_up_to_their_number() -> None:
    rounds = [sending(call_events(f"resp_{number}", f"call_{number}", "light", '{"on":true}')) for number in range(2)]
    async with running_stub(*rounds, sending(text_events("resp_2", "It is on."))) as stub, connect(stub.url) as client:
        reply = client.respond("Light on", tools=[light], tool_choice="required", max_rounds=3)
        kinds = [event["type"] async for event in reply]
        assert kinds.count("response.completed") == 3
        assert reply.answer.text == "It is on." and [answer.response_id for answer in reply.rounds] == [
            "resp_0",
            "resp_1",
        ]
    first, second, third = stub.received
    assert (first["tool_choice"], second.get("tool_choice"), third["tool_choice"]) == ("required", None, "none")
    assert second["previous_response_id"] == "resp_0" and second["tools"] == first["tools"] == third["tools"]
    assert second["input"] == [{"type": "function_call_output", "call_id": "call_0", "output": "done"}]


@pytest.mark.parametrize("limits", [{"max_rounds": 1}, {"tools": [light, {"type": "function", "name": "door"}]}])
async def test_calls_that_are_not_run_are_the_caller_s(limits: dict[str, Any]) -> None:
    events = call_events("resp_1", "call_1", "light", '{"on":true}')
    if "tools" in limits:
        events[-2:-2] = call_events("resp_1", "call_2", "door", "{}")[1:-1]
    async with running_stub(sending(events)) as stub, connect(stub.url) as client:
        answer = await client.ask("Light on", **{"tools": [light], **limits})
        assert answer.tool_calls[-1].id.startswith("call_")
    assert len(stub.received) == 1


async def test_a_reply_that_is_cancelled_while_a_function_runs_asks_no_more() -> None:
    async def wait() -> str:
        """Wait."""
        await reply.cancel()
        return "late"

    async with (
        running_stub(sending(call_events("resp_1", "call_1", "wait", "{}"))) as stub,
        connect(stub.url) as client,
    ):
        reply = client.respond("Wait", tools=[wait])
        assert (await reply.finish()).response_id == "resp_1"
    assert len(stub.received) == 1


async def test_a_reply_that_is_cancelled_waits_for_no_function() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        """Wait."""
        begun.set()
        await ended.wait()

    async with (
        running_stub(sending(call_events("resp_1", "call_1", "wait", "{}"))) as stub,
        connect(stub.url) as client,
    ):
        reply = client.respond("Wait", tools=[wait])
        reading = asyncio.create_task(reply.finish())
        await begun.wait()
        assert await reply.cancel() is reply.answer
        assert await asyncio.wait_for(reading, patient(10)) is reply.answer
        ended.set()
        # The task that reads is cancelled: its function is, too.
        reply, ended, begun = client.respond("Wait", tools=[wait]), asyncio.Event(), asyncio.Event()
        stub.script.append(sending(call_events("resp_2", "call_2", "wait", "{}")))
        reading = asyncio.create_task(reply.finish())
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert len(stub.received) == 2


async def test_a_function_cannot_read_the_reply_that_waits_for_it() -> None:
    async def read() -> str:
        """Read."""
        return (await reply.finish()).text

    script = [sending(call_events("resp_1", "call_1", "read", "{}")), sending(text_events("resp_2", "I could not."))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Read it", tools=[read])
        assert (await asyncio.wait_for(reply.finish(), patient(10))).text == "I could not."
    assert "a function cannot read the reply that calls it" in stub.received[1]["input"][0]["output"]


async def test_a_function_in_a_thread_cannot_read_it_either() -> None:
    script = [sending(call_events("resp_1", "call_1", "read", "{}")), sending(text_events("resp_2", "I could not."))]

    def talk(url: str) -> str:
        def read() -> str:
            """Read."""
            return reply.finish().text

        with sync.connect(url) as client:
            reply = client.respond("Read it", tools=[read])
            return reply.finish().text

    async with running_stub(*script) as stub:
        assert await asyncio.wait_for(asyncio.to_thread(talk, stub.url), patient(10)) == "I could not."
    assert "a function cannot read the reply that calls it" in stub.received[1]["input"][0]["output"]


async def test_tasks_that_read_one_reply_run_its_functions_once() -> None:
    calls: list[str] = []

    async def note() -> str:
        """Note."""
        calls.append("note")
        await asyncio.sleep(0)  # the other task runs
        return "noted"

    script = [sending(call_events("resp_1", "call_1", "note", "{}")), sending(text_events("resp_2", "Done.", " Bye."))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Note it", tools=[note])
        parts: list[list[str]] = [[], []]

        async def read(into: list[str]) -> None:
            async for event in reply:
                into.append(event["type"])

        await asyncio.gather(*map(read, parts))
        assert reply.answer.text == "Done. Bye."
    # Each event goes to one of the tasks, and the requests are sent once.
    assert len(stub.received) == 2 and calls == ["note"]
    assert sorted(parts[0] + parts[1]).count("response.completed") == 2
