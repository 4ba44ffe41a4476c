"""Both transports, against the daemon's own server with a fake backend and against a server with scripted answers."""

from __future__ import annotations

import json

import pytest

from edgeagent.bench.client import BenchRequest, Counts, EventReader, Server, Trace, connection_to, find_server
from edgeagent.client import Address
from edgeagent.errors import BackendUnavailable, ConfigError, EdgeAgentError, ModelNotFound, Unauthorized, WorkerCrashed
from edgeagent.types import ReasoningDelta, Started, TextDelta
from tests.backends.fake import FakeBackend, failing, finished
from tests.bench.scripted import ScriptedServer, plain, scripted, stream
from tests.daemon.running import running

SIX_WORDS = BenchRequest("one two three four five six", max_tokens=4)


async def asked(server: Server, request: BenchRequest = SIX_WORDS) -> Trace:
    """Return the trace of one answer on a new connection."""
    trace = Trace()
    async with connection_to(server) as connection:
        await connection.ask(request, trace)
    return trace


def server_at(script: ScriptedServer, kind: str = "unknown") -> Server:
    return Server(Address(script.url), "http", "m", kind)


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_an_answer_of_ours_is_traced(transport: str) -> None:
    backend = FakeBackend()
    async with running(backend) as daemon:
        trace = await asked(Server(Address(daemon.url), transport, "fake"))  # type: ignore[arg-type]
    assert trace.counts == Counts(num_prompt=6, num_cached=0, num_output=4)
    assert len(trace.texts) == 4
    assert trace.first_event_s is not None
    assert trace.sent_s < trace.first_event_s <= trace.texts[0]
    assert trace.texts == sorted(trace.texts)
    (request,) = backend.requests
    assert (request.model, request.max_tokens, request.sampling.temperature) == ("fake", 4, 0.0)


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_a_connection_is_used_again(transport: str) -> None:
    async with running(FakeBackend()) as daemon:
        server = Server(Address(daemon.url), transport, "fake")  # type: ignore[arg-type]
        async with connection_to(server) as connection:
            first, second = Trace(), Trace()
            await connection.ask(SIX_WORDS, first)
            await connection.ask(SIX_WORDS, second)
            assert (connection.opening_ms > 0) == (transport == "ws")
    assert first.texts[-1] < second.sent_s < second.texts[0]


async def test_an_http_connection_is_kept_alive() -> None:
    async with scripted() as script, connection_to(server_at(script)) as connection:
        for _ in range(3):
            await connection.ask(SIX_WORDS, Trace())
        assert (len(script.requests), script.num_connections) == (3, 1)


async def test_a_kept_connection_that_the_server_closed_is_opened_again() -> None:
    async with scripted() as script, connection_to(server_at(script)) as connection:
        await connection.ask(SIX_WORDS, Trace())
        script.num_to_drop = 1
        again = Trace()
        await connection.ask(SIX_WORDS, again)
        assert again.counts is not None
        assert script.num_connections == 2
        script.num_to_drop = 2
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            await connection.ask(SIX_WORDS, Trace())


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_reasoning_is_text(transport: str) -> None:
    backend = FakeBackend(lambda _: (Started(3, 0), ReasoningDelta("hm"), TextDelta("yes"), finished()))
    async with running(backend) as daemon:
        trace = await asked(Server(Address(daemon.url), transport, "fake"))  # type: ignore[arg-type]
    assert len(trace.texts) == 2


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_a_failure_in_mid_stream_is_raised(transport: str) -> None:
    backend = FakeBackend(failing(WorkerCrashed("the worker died"), Started(3, 0), TextDelta("half")))
    async with running(backend) as daemon:
        with pytest.raises(EdgeAgentError, match="the worker died"):
            await asked(Server(Address(daemon.url), transport, "fake"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "transport", "expected"),
    [
        ("http://{host}", "auto", "ws"),
        ("{host}", "auto", "ws"),
        ("http://{host}/v1/", "http", "http"),
        ("ws://{host}", "http", "ws"),
        ("ws://{host}/v1/responses", "auto", "ws"),
    ],
)
async def test_ours_is_recognised_however_its_url_is_written(url: str, transport: str, expected: str) -> None:
    async with running(FakeBackend(models=("big", "small"))) as daemon:
        address = url.format(host=f"127.0.0.1:{daemon.port}")
        server = await find_server(Address(address), transport)  # type: ignore[arg-type]
        assert (server.transport, server.model, server.kind, server.ignores_eos) == (
            expected,
            "big",
            "edgeagent",
            False,
        )
        assert server.address.http_url == f"{daemon.url}/v1"
        assert (await asked(server)).counts == Counts(6, 0, 4)
        assert (await find_server(Address(address), model="small")).model == "small"
        with pytest.raises(ModelNotFound, match="it has big, small"):
            await find_server(Address(address), model="huge")


async def test_a_server_without_a_list_of_models_is_asked_for_its_default() -> None:
    async with scripted() as script:
        script.models = None
        server = await find_server(Address(script.url))
        await asked(server)
    assert (server.transport, server.model, server.kind) == ("http", None, "unknown")
    assert "model" not in script.requests[0]


async def test_what_is_sent_to_others() -> None:
    async with scripted() as script:
        server = await find_server(Address(script.url, "secret"))
        trace = await asked(server)
    assert server.ignores_eos
    assert script.requests[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": SIX_WORDS.prompt}],
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert script.headers[0]["authorization"] == "Bearer secret"
    assert trace.counts == Counts(20, 5, 3)
    assert len(trace.texts) == 3


async def test_an_unknown_server_is_sent_no_extras() -> None:
    async with scripted() as script:
        script.owner = "someone"
        await asked(await find_server(Address(script.url)))
    assert "ignore_eos" not in script.requests[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (stream("a", usage=None), "sends no usage"),
        (stream("a", done=False), "cut short"),
        (stream("a", {"error": {"code": 500, "message": "out of slots"}}), "out of slots"),
        (stream("a", {"error": "boom"}), "boom"),
        (plain(400, b'{"error": {"message": "too long for 512 tokens"}}'), "HTTP 400: too long for 512 tokens"),
        (plain(502, b"<html>"), "HTTP 502"),
        (plain(404, b""), "OpenAI-compatible"),
        (plain(200, b"data: {nonsense\n\n"), "is not JSON"),
        (b"garbage\r\n\r\n", "cannot be reached"),
    ],
)
async def test_what_is_wrong_is_said(answer: bytes, message: str) -> None:
    async with scripted() as script:
        script.answer = lambda _: answer
        with pytest.raises(EdgeAgentError, match=message):
            await asked(server_at(script))


async def test_a_missing_key_is_said() -> None:
    async with scripted() as script:
        script.answer = lambda _: plain(401, b"{}")
        with pytest.raises(Unauthorized, match="--api-key"):
            await asked(server_at(script))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1/v1", "ws://127.0.0.1:1"])
async def test_nobody_there_is_said(url: str) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await find_server(Address(url))


@pytest.mark.parametrize("url", ["http://[", "ftp://127.0.0.1", "http://", "http://127.0.0.1:x", ""])
async def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a server's URL"):
        await find_server(Address(url))


def test_events_are_found_however_they_are_cut() -> None:
    content = b': ping\n\ndata: {"a": 1}\r\n\r\nevent: x\ndata:{"b": "\\u00fc"}\n\ndata: [DONE]\n\n'
    for size in range(1, len(content)):
        reader, events = EventReader(), []
        for begin in range(0, len(content), size):
            events += reader.feed(content[begin : begin + size])
        assert events == [{"a": 1}, json.loads('{"b": "ü"}')]
        assert reader.is_done
