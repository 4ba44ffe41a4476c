"""The client against a server that plays a script."""

from __future__ import annotations

import asyncio
import socket
from decimal import Decimal

import pytest

from edgeagent.client import connect, connection, function_output
from edgeagent.client import reply as reply_module
from edgeagent.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    Forbidden,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
)
from tests.client.daemon_stub import call_events, closing, running_stub, sending, text_events
from tests.patience import patient


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "RETRY_DELAYS_S", (0.0, 0.0, 0.0))


async def test_yields_every_event_and_adds_them_up() -> None:
    events = text_events("resp_1", "Hel", "lo")
    async with running_stub(sending(events)) as stub, connect(stub.url) as client:
        reply = client.respond("Hi", temperature=0)
        assert [event async for event in reply] == events
    answer = reply.answer
    assert (answer.text, answer.status, answer.response_id, answer.model) == ("Hello", "completed", "resp_1", "m")
    assert answer.usage["output_tokens"] == 2
    assert answer.timings["predicted_per_second"] == 50.0
    assert answer.edgeagent["stages_ms"] == {"prefill": 1.25}
    assert stub.received == [{"type": "response.create", "input": "Hi", "temperature": 0}]


async def test_sends_nothing_before_it_is_iterated() -> None:
    async with running_stub() as stub, connect(stub.url) as client:
        reply = client.respond("Hi")
        assert (await reply.cancel()).status == "cancelled"
        assert [event async for event in reply] == []
    assert stub.received == []


async def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    async with running_stub(sending(text_events("resp_1", "ok"))) as stub, connect(stub.url) as client:
        with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
            await client.ask("a\ud800b")
        assert (await client.ask("é")).text == "ok", "the connection goes on"
    assert [request["input"] for request in stub.received] == ["é"]


async def test_a_field_that_cannot_be_json_is_refused_before_it_is_sent() -> None:
    async with running_stub(sending(text_events("resp_1", "ok"))) as stub, connect(stub.url) as client:
        reply = client.respond("Hi", temperature=Decimal("0.5"))
        with pytest.raises(InvalidRequest, match="Decimal is not JSON"):
            await reply.finish()
        assert reply.answer.status == "failed", "so that the next reply need not cancel it"
        assert (await client.ask("Hi")).text == "ok"
    assert [event["type"] for event in stub.received] == ["response.create"]


async def test_two_tasks_that_connect_at_once_share_a_connection() -> None:
    async with running_stub(*[sending(text_events("resp_1", "ok"))] * 2) as stub:
        client = connect(stub.url)
        _, answer = await asyncio.wait_for(asyncio.gather(client.prefill("H"), client.ask("Hi")), patient(5))
        await client.close()
    assert (answer.text, len(stub.authorizations)) == ("ok", 1)


async def test_of_two_requests_that_cancel_a_third_one_runs() -> None:
    created, first, _, completed = text_events("resp_1", "Hel", "lo")
    cancelled = {"type": "response.incomplete", "response": {**completed["response"], "status": "cancelled"}}
    script = [sending([created, first]), sending([]), sending([cancelled]), sending(text_events("resp_2", "next")[:2])]
    script += [sending([cancelled]), sending(text_events("resp_3", "last"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        await anext(client.respond("Hi"))
        one, other = await asyncio.gather(client.ask("one"), client.ask("other"))
    assert (one.status, other.text, other.status) == ("cancelled", "last", "completed")
    assert [event["type"] for event in stub.received][-2:] == ["response.cancel", "response.create"]


async def test_a_tool_call_is_answered_and_continued() -> None:
    script = [
        sending(call_events("resp_1", "call_9", "light", '{"on":true}')),
        sending(text_events("resp_2", "It is on.")),
    ]
    tools = [{"type": "function", "name": "light", "parameters": {}}]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        first = await client.ask("Light on", tools=tools)
        (call,) = first.tool_calls
        assert (call.id, call.name, call.arguments) == ("call_9", "light", '{"on":true}')
        second = await client.ask(
            [function_output(call.id, "done")], previous_response_id=first.response_id, tools=tools
        )
    assert second.text == "It is on."
    assert stub.received[0]["tools"] == tools
    assert stub.received[1]["previous_response_id"] == "resp_1"
    assert stub.received[1]["input"] == [{"type": "function_call_output", "call_id": "call_9", "output": "done"}]


async def test_the_token_goes_with_the_connection() -> None:
    async with running_stub(sending(text_events("resp_1", "x"))) as stub, connect(stub.url, token="secret") as client:
        await client.ask("Hi")
    assert stub.authorizations == ["Bearer secret"]


@pytest.mark.parametrize("code", [1001, 1011, 1012, 1013])
async def test_a_request_is_repeated_when_the_connection_goes_before_the_answer(code: int) -> None:
    async with (
        running_stub(closing(code), closing(code), sending(text_events("resp_1", "ok"))) as stub,
        connect(stub.url) as client,
    ):
        assert (await client.ask("Hi")).text == "ok"
    assert len(stub.received) == 3
    assert stub.received[0] == stub.received[2]


async def test_retries_end() -> None:
    async with running_stub(*[closing(1012)] * 9) as stub, connect(stub.url) as client:
        with pytest.raises(BackendUnavailable, match="code 1012: because"):
            await client.ask("Hi")
    assert len(stub.received) == 1 + len(reply_module.RETRY_DELAYS_S)


async def test_nothing_is_repeated_once_the_answer_began() -> None:
    begun = text_events("resp_1", "Hel", "lo")[:2]
    script = [closing(1012, after=begun), sending(text_events("resp_2", "next"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Hi")
        with pytest.raises(BackendUnavailable, match="1012"):
            await reply.finish()
        assert (reply.answer.text, reply.answer.status) == ("Hel", "failed")
        assert len(stub.received) == 1
        assert (await client.ask("More")).text == "next"


async def test_closing_ends_a_running_response() -> None:
    script = [sending(text_events("resp_1", "a", "b")[:2]), sending(text_events("resp_2", "next"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Hi")
        await anext(reply)
        await client.close()
        with pytest.raises(BackendUnavailable, match="was closed"):
            await reply.finish()
        assert (await client.ask("More")).text == "next"


async def test_nothing_connects_or_is_sent_again_after_a_close() -> None:
    is_asked = asyncio.Event()

    async def no_answer(_connection: object, _event: object) -> None:
        is_asked.set()

    async with running_stub(no_answer, sending(text_events("resp_2", "next"))) as stub:
        client = connect(stub.url)
        opening = asyncio.create_task(client.prefill("Hi"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(BackendUnavailable, match="was closed"):
            await opening
        assert stub.received == []
        waiting = asyncio.create_task(client.ask("Hi"))
        await is_asked.wait()
        await client.close()
        with pytest.raises(BackendUnavailable, match="was closed"):
            await waiting
        assert len(stub.received) == 1
        assert (await client.ask("More")).text == "next"
        await client.close()


@pytest.mark.parametrize(("code", "error"), [(1008, BackendUnavailable), (1009, PayloadTooLarge)])
async def test_a_policy_refusal_is_not_repeated(code: int, error: type[Exception]) -> None:
    async with running_stub(closing(code)) as stub, connect(stub.url) as client:
        with pytest.raises(error):
            await client.ask("Hi")
    assert len(stub.received) == 1


async def test_a_connection_that_was_lost_between_answers_is_opened_again() -> None:
    script = [closing(1001, after=text_events("resp_1", "one")), sending(text_events("resp_2", "two"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        first = await client.ask("1")
        assert (await client.ask("2", previous_response_id=first.response_id)).text == "two"
    assert len(stub.authorizations) == 2


async def test_an_error_envelope_raises_the_error_it_names() -> None:
    envelope = {
        "type": "error",
        "status": 400,
        "error": {"code": "context_length_exceeded", "message": "9000 of 8192", "param": "input"},
    }
    script = [sending([envelope]), sending(text_events("resp_1", "ok"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        with pytest.raises(ContextLengthExceeded, match="9000 of 8192") as caught:
            await client.ask("Hi")
        assert caught.value.param == "input"
        assert (await client.ask("Hi again")).text == "ok"


@pytest.mark.parametrize(
    ("code", "error"),
    [("server_error", InternalError), ("rate_limit_exceeded", Overloaded), ("invalid_prompt", InvalidRequest)],
)
@pytest.mark.parametrize("reason", [None, "model_not_found"])
async def test_a_failed_response_raises_after_its_terminal_event(
    code: str, error: type[Exception], reason: str | None
) -> None:
    created = text_events("resp_1")[0]
    response = {"id": "resp_1", "status": "failed", "error": {"code": code, "message": "worker ended"}}
    failed = {"type": "response.failed", "response": response}
    if reason:  # the code that strict clients would not accept
        response["edgeagent"], error = {"route": "local", "reason": reason}, ModelNotFound
    seen = []
    async with running_stub(sending([created, failed])) as stub, connect(stub.url) as client:
        with pytest.raises(error, match="worker ended"):
            async for event in client.respond("Hi"):
                seen.append(event["type"])
    assert seen == ["response.created", "response.failed"]


async def test_cancel_asks_the_daemon_and_takes_in_the_rest() -> None:
    created, first, second, completed = text_events("resp_1", "Hel", "lo")
    cancelled = {"type": "response.incomplete", "response": {**completed["response"], "status": "cancelled"}}
    script = [sending([created, first]), sending([second, cancelled]), sending(text_events("resp_2", "next"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Hi")
        await anext(reply)
        await anext(reply)
        answer = await reply.cancel()
        assert (answer.status, answer.text) == ("cancelled", "Hello")
        assert (await client.ask("More")).text == "next"
    assert stub.received[1] == {"type": "response.cancel", "response_id": "resp_1"}


async def test_a_new_request_cancels_the_one_before() -> None:
    created, first, _, completed = text_events("resp_1", "Hel", "lo")
    cancelled = {"type": "response.incomplete", "response": {**completed["response"], "status": "cancelled"}}
    script = [sending([created, first]), sending([cancelled]), sending(text_events("resp_2", "next"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        abandoned = client.respond("Hi")
        await anext(abandoned)
        assert (await client.ask("Stop, this")).text == "next"
    assert [event["type"] for event in stub.received] == ["response.create", "response.cancel", "response.create"]
    assert abandoned.answer.status == "cancelled"


async def test_a_daemon_that_ignores_a_cancel_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "CANCEL_TIMEOUT_S", 0.02)
    script = [sending(text_events("resp_1", "a", "b")[:2]), sending([]), sending(text_events("resp_2", "next"))]
    async with running_stub(*script) as stub, connect(stub.url) as client:
        reply = client.respond("Hi")
        await anext(reply)
        assert (await reply.cancel()).status == "cancelled"
        assert (await client.ask("More")).text == "next"
    assert len(stub.authorizations) == 2


@pytest.mark.parametrize(("status", "error"), [(401, Unauthorized), (403, Forbidden), (500, BackendUnavailable)])
async def test_a_refused_connection_says_why(status: int, error: type[Exception]) -> None:
    async with running_stub() as stub:
        stub.refusals = [(status, "no")]
        with pytest.raises(error):
            await connect(stub.url).open()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_that_may_pass_is_tried_again(status: int) -> None:
    async with running_stub(sending(text_events("resp_1", "late"))) as stub:
        client = connect(stub.url)
        stub.refusals = [(status, '{"error": {"message": "too many"}}')] * 2
        with pytest.raises(BackendUnavailable, match="too many"):
            await client.open()
        assert (await client.ask("Hi")).text == "late"
        assert len(stub.authorizations) == 3
        await client.close()


@pytest.mark.parametrize("body", ["no", "[]", "{}", '{"error": "busy"}'])
async def test_a_refusal_in_other_words_is_told_by_its_status(body: str) -> None:
    async with running_stub() as stub:
        stub.refusals = [(503, body)]
        with pytest.raises(BackendUnavailable, match="HTTP 503"):
            await connect(stub.url).open()


async def test_no_daemon_says_what_to_do(unused_tcp_port: int) -> None:
    with pytest.raises(BackendUnavailable, match=r"responses \(connection refused\); start one with `edgeagent serve`"):
        await connect(f"http://127.0.0.1:{unused_tcp_port}").open()


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError(), "no answer in time"), (socket.gaierror(-2, "Name or service not known"), "Name or service")],
)
async def test_why_a_daemon_cannot_be_reached_is_said_in_words(
    error: OSError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(connection, "open_websocket", fail)
    with pytest.raises(BackendUnavailable, match=reason):
        await connect("http://nowhere").open()
