"""HTTP/2 with remotes that offer it: many answers on one connection, each of which can be stopped alone."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import aclosing

import pytest

from edgeagent.errors import RemoteUnavailable
from edgeagent.remotes import Limits, Tls
from edgeagent.types import replace
from tests.backends.reading import steps_of
from tests.backends.remote.certificates import Authority, Certificate, server_context
from tests.backends.remote.fault_server import Act
from tests.backends.remote.http2_server import http2
from tests.backends.remote.streams import ROLE, answer, chunk
from tests.backends.remote.support import LIMITS, REQUEST, ask, backend, permit, until


@pytest.fixture
def context(good: Certificate) -> ssl.SSLContext:
    return server_context(good, http2=True)


@pytest.fixture
def tls(authority: Authority) -> Tls:
    return Tls(ca_file=str(authority.own.path))


async def test_many_answers_on_one_connection(context: ssl.SSLContext, tls: Tls) -> None:
    async with http2(context, answer("Good", " day")) as server, backend(server.url, tls=tls) as remote:
        got = await asyncio.gather(*(ask(remote, id=f"r{number}") for number in range(8)))
    assert [each.text for each in got] == ["Good day"] * 8
    assert server.num_connections == 1
    assert server.asked[0]["authorization"].startswith("Bearer ")
    assert server.resets == []


async def test_a_stopped_stream_is_reset_and_the_others_go_on(context: ssl.SSLContext, tls: Tls) -> None:
    script = (ROLE, chunk({"content": "One"}), Act.STALL)
    async with http2(context, *script) as server, backend(server.url, tls=tls) as remote:
        first, second = (
            steps_of(remote.generate, request, permit(request)) for request in (REQUEST, replace(REQUEST, id="two"))
        )
        await asyncio.gather(anext(first), anext(second))
        remote.cancel("two")
        assert [type(delta).__name__ for delta in (await anext(second)).deltas] == ["Finished"]
        await second.aclose()
        await until(lambda: server.resets)
        assert server.num_open == 1
        await first.aclose()
        await until(lambda: server.num_open == 0)
        assert server.num_connections == 1


async def test_a_stop_before_the_head_resets_too(context: ssl.SSLContext, tls: Tls) -> None:
    async with http2(context, Act.STALL) as server, backend(server.url, tls=tls) as remote:
        running = asyncio.create_task(ask(remote))
        await until(lambda: server.asked)
        remote.cancel(REQUEST.id)
        await running
        await until(lambda: server.resets)


@pytest.mark.parametrize("num_turns", range(1, 6))
async def test_leave_that_is_withdrawn_twice_ends_each_stream_in_an_error(
    num_turns: int, context: ssl.SSLContext, tls: Tls
) -> None:
    """The second withdrawal may find streams that the first one is still closing."""
    script = (chunk({"content": "One"}), Act.STALL)
    async with http2(context, *script) as server, backend(server.url, tls=tls) as remote:
        streams = []
        for number in range(4):
            request = replace(REQUEST, id=f"r{number}")
            streams.append(steps_of(remote.generate, request, permit(request)))
            await anext(streams[-1])
        running = [asyncio.create_task(anext(steps)) for steps in streams]
        await asyncio.sleep(0.01)
        first = asyncio.create_task(remote.close_streams("removed"))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await remote.close_streams("local_only")
        await first
        errors = await asyncio.gather(*running, return_exceptions=True)
    assert [type(error) for error in errors] == [RemoteUnavailable] * 4
    assert all("removed" in str(error) for error in errors)


async def test_stopped_streams_do_not_use_up_the_connection(context: ssl.SSLContext, tls: Tls) -> None:
    """More stops than the connection's limit of streams, each with data that was not read."""
    script: tuple[bytes | Act, ...] = (
        chunk({"content": "One"}),
        *(chunk({"content": "x" * 1500}) for _ in range(8)),
        Act.STALL,
    )
    async with http2(context, *script, max_streams=4) as server, backend(server.url, tls=tls) as remote:
        for number in range(40):
            request = replace(REQUEST, id=f"r{number}")
            async with aclosing(steps_of(remote.generate, request, permit(request))) as steps:
                await anext(steps)
        await until(lambda: len(server.resets) == 40)
        assert server.num_connections == 1


@pytest.mark.parametrize("act", [Act.RESET, Act.CLOSE])
async def test_a_stream_that_breaks(act: Act, context: ssl.SSLContext, tls: Tls) -> None:
    async with http2(context, chunk({"content": "One"}), act) as server, backend(server.url, tls=tls) as remote:
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable)
        assert "middle of its answer" in got.error.message or "before an answer" in got.error.message
        assert got.error.num_delivered_tokens == got.num_tokens


@pytest.mark.parametrize("status", ["abc", "9" * 5000])
async def test_a_status_that_is_no_number(status: str, context: ssl.SSLContext, tls: Tls) -> None:
    async with http2(context, answer("a")) as server, backend(server.url, tls=tls) as remote:
        server.status = status
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable) and "not valid HTTP" in got.error.message


async def test_behind_a_stall_there_is_a_new_connection(context: ssl.SSLContext, tls: Tls) -> None:
    """A stalled answer does not close the connection under other answers, but new requests get a new connection."""
    limits = Limits(max_concurrent=8, first_token_s=LIMITS.first_token_s, idle_s=0.2)
    script = chunk({"content": "One"}), Act.STALL
    async with http2(context, *script) as server, backend(server.url, tls=tls, limits=limits) as remote:
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable) and "0.2 s" in got.error.message
        server.script = [answer("a")]
        remote._cluster.endpoints[0].breaker.succeed(0.0)  # type: ignore[union-attr]
        assert (await ask(remote, id="two")).text == "a"
        assert server.num_connections == 2
        await until(lambda: len(server.serving) == 1)
