"""Connections to a remote: through a proxy, under another event loop, after a change of network, and kept warm."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import pytest

from edgeagent.backends.remote import network, transport
from edgeagent.backends.remote.failures import retry_after_s
from edgeagent.backends.remote.transport import Call
from edgeagent.errors import RemoteUnavailable
from edgeagent.metrics import REGISTRY
from edgeagent.remotes import EndpointConfig, Remote, Tls
from edgeagent.types import Permit, ProbePermit, RouteMode
from tests.backends.reading import steps_of
from tests.backends.remote.certificates import Authority, Certificate, server_context
from tests.backends.remote.fault_server import Act, FaultServer, closed_port, faults, half, models, plain, stream
from tests.backends.remote.streams import answer, chunk
from tests.backends.remote.support import REQUEST, Clock, Rows, ask, backend, permit, until
from tests.patience import patient


class Proxy:
    """A proxy on loopback that connects to one server, whichever name is requested, or refuses."""

    def __init__(self, server: FaultServer, *, refuses: bool = False) -> None:
        self.asked: list[bytes] = []
        self._server = server
        self._refuses = refuses
        self._serving: list[asyncio.Task[Any]] = []
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def run(self) -> AsyncIterator[str]:
        """Listen; yield the proxy's URL."""
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        finally:
            listening.close()
            for writer in self._writers:
                writer.transport.abort()
            if self._serving:
                await asyncio.wait(self._serving, timeout=10)
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        self._writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head)
        if self._refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        self._writers.append(there_writer)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pass(reader, there_writer), _pass(there_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()


async def test_a_proxy(authority: Authority, good: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS runs through the proxy to the remote, which is verified as usual; the proxy learns only the destination."""
    monkeypatch.setenv("NO_PROXY", "*")
    async with faults(stream(answer("a")), tls=server_context(good)) as server:
        proxy = Proxy(server)
        async with proxy.run() as url:
            tls = Tls(ca_file=str(authority.own.path), pin=good.pin)
            async with backend(server.url, tls=tls, proxy=url) as remote:
                assert (await ask(remote)).text == "a"
        assert proxy.asked[0].startswith(f"CONNECT 127.0.0.1:{server.port} ".encode())
        assert b"canary" not in b"".join(proxy.asked) and b"uthorization" not in b"".join(proxy.asked)


async def test_a_proxy_that_refuses(authority: Authority, good: Certificate) -> None:
    async with faults(stream(answer("a")), tls=server_context(good)) as server:
        async with (
            Proxy(server, refuses=True).run() as url,
            backend(server.url, tls=Tls(ca_file=str(authority.own.path)), proxy=url) as remote,
        ):
            got = await ask(remote)
            assert isinstance(got.error, RemoteUnavailable) and "proxy refused" in got.error.message
        assert server.asked == []


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        assert (await ask(remote)).text == "a"


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_daemons_own_loop(authority: Authority, good: Certificate) -> None:
    """uvloop has its own TLS and transport."""
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        tls = Tls(ca_file=str(authority.own.path), pin=good.pin)
        script = half(chunk({"content": "One"}), Act.STALL)
        async with faults(stream(answer("a")), script, tls=server_context(good)) as server:
            async with backend(server.url, tls=tls) as remote:
                assert (await ask(remote)).text == "a"
                running = asyncio.create_task(ask(remote, id="two"))
                await until(lambda: len(server.asked) == 2)
                await asyncio.sleep(0.02)
                remote.cancel("two")
                assert (await running).text == "One"
                async with asyncio.timeout(patient(5)):
                    await server.asked[1].left.wait()
            async with backend(server.url, tls=Tls(ca_file=tls.ca_file, pin="0" * 64)) as wrong:
                assert "pinned" in str((await ask(wrong)).error)
        async with backend(f"http://127.0.0.1:{closed_port()}/v1") as nobody:
            assert "no connection" in str((await ask(nobody)).error)

    uvloop.run(run())


async def test_another_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """New requests use new connections, a request that failed on the old network is retried, and a stream continues."""
    clock = Clock()
    script = half(chunk({"content": "One"}), chunk({"content": "Two"}), Act.STALL)
    async with faults(script, stream(answer("a"))) as server, backend(server.url, clock=clock) as remote:
        (endpoint,) = remote._cluster.endpoints
        steps = steps_of(remote.generate, REQUEST, permit())
        await anext(steps)
        remote.estimate(REQUEST)
        endpoint.breaker.fail(clock(), "no route", hung=True)
        clock.now_s += 2
        assert remote.estimate(REQUEST).obstacle == "unreachable"
        monkeypatch.setattr(transport, "source_of", lambda peer: "10.0.0.7")
        clock.now_s += 2
        assert remote.estimate(REQUEST).obstacle == ""
        assert (await ask(remote, id="r2")).text == "a"
        assert server.num_connections == 2
        assert (await anext(steps)).deltas[0].text == "Two"  # type: ignore[union-attr]
        await steps.aclose()
        async with asyncio.timeout(patient(5)):
            await server.asked[0].left.wait()


@pytest.mark.parametrize("what", ["is_ours", "lag_s"])
async def test_a_lost_address_and_a_sleep(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a lost local address end. After a sleep connections are new, and running streams are left alone."""
    clock = Clock()
    script = half(chunk({"content": "One"}), Act.STALL)
    async with faults(script, stream(answer("a"))) as server, backend(server.url, clock=clock) as remote:
        running = asyncio.create_task(ask(remote))
        await until(lambda: remote.status().endpoints[0].first_token_s is not None)
        remote.estimate(REQUEST)
        clock.now_s += 2
        remote.estimate(REQUEST)
        if what == "is_ours":
            monkeypatch.setattr(transport, "is_ours", lambda address: False)
            monkeypatch.setattr(transport, "source_of", lambda peer: "")
        else:
            monkeypatch.setattr(transport, "lag_s", lambda: 1e6)
        clock.now_s += 2
        assert (await ask(remote, id="r2")).text == "a"
        assert server.num_connections == 2
        if what == "lag_s":
            assert not running.done()
            remote.cancel(REQUEST.id)
        got = await running
        assert (got.error is not None) is (what == "is_ours")


async def test_connections_are_renewed_after_each_sleep_and_at_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks differ by the sum of all sleeps, so only growth of the difference shows a new sleep."""
    lags_s = iter([1000.0, 1000.0, 1000.1, 1060.0, 1060.0])
    monkeypatch.setattr(transport, "lag_s", lambda: next(lags_s))
    url = f"http://127.0.0.1:{closed_port()}/v1"
    kept = transport.Transport(Remote("kept", (EndpointConfig(url),)), url, transport.tls_context(Tls()))
    assert [kept.renew_if_network_changed() for _ in range(4)] == [False, False, True, False]


@pytest.mark.skipif(sys.platform != "linux", reason="the option has another name elsewhere")
async def test_a_connection_that_acknowledges_nothing_is_given_up() -> None:
    async with faults(stream(answer("a"))) as server:
        opened = await network.Network(3.0).connect_tcp("127.0.0.1", server.port)
        connection = opened.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1, "one that only listens is probed"
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        await opened.aclose()


async def test_of_connections_that_lead_nowhere_one_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kept connections go silent; the system gives up the one that carries a request."""
    reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    read = network._Stream.read

    async def read_until_given_up(self: network._Stream, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if reading.done():
            return await read(self, max_bytes)
        reading.set_result(None)
        await given_up.wait()
        raise httpcore.ReadError("Connection timed out")

    given_up = asyncio.Event()
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        await asyncio.gather(*(ask(remote, id=f"r{number}") for number in range(2)))
        assert server.num_connections == 2
        server.scripts[:] = [[Act.STALL], stream(answer("b"))]
        monkeypatch.setattr(network._Stream, "read", read_until_given_up)
        asking = asyncio.create_task(ask(remote, id="next"))
        await reading
        given_up.set()
        assert (await asking).text == "b"
        assert server.num_connections == 3 and remote.status().endpoints[0].breaker == "closed"


async def test_a_mistake_of_ours_makes_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise LookupError("a mistake")

    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        monkeypatch.setattr(network, "_resolve", broken)
        with pytest.raises(LookupError, match="a mistake"):
            await ask(remote)
        monkeypatch.undo()
        assert (await ask(remote, id="next")).text == "a"


async def test_a_warm_remote() -> None:
    """A connection is open before the first request, which opens none."""
    gets = {"/health": plain(200), "/v1/models": models("tiny", owner="llamacpp")}
    async with faults(stream(answer("a")), gets=gets) as server, backend(server.url, probes=True) as remote:
        for _ in range(3):
            remote.warm()
        await until(lambda: remote.models.statuses() and not remote._probing)
        assert remote._cluster.endpoints[0].dialect.name == "llamacpp"
        assert [asked.path for asked in server.asked] == ["/readiness", "/health", "/v1/models"]
        assert (await ask(remote)).text == "a"
        assert server.num_connections == 1


async def test_stages_are_timed_apart(authority: Authority, good: Certificate) -> None:
    tls = Tls(ca_file=str(authority.own.path))
    async with faults(stream(answer("a")), tls=server_context(good)) as server, backend(server.url, tls=tls) as remote:
        (endpoint,) = remote._cluster.endpoints
        for is_new in (True, False):
            exchange = await endpoint.transport.open(permit(), Call("/x", b"{}", request_id=REQUEST.id))
            stages = exchange.stages
            assert stages.is_new is is_new and 0 < stages.sent_s <= stages.answered_s
            assert (stages.connection.connect_s > 0 and stages.connection.tls_s > 0) is is_new
            await exchange.read_all(10_000)
            exchange.close()


async def test_the_stages_of_new_connections_and_of_requests_are_measured(
    authority: Authority, good: Certificate
) -> None:
    """Every connection counts, whatever opened it; the time to the first byte is measured for requests alone."""

    def counts(name: str) -> list[float]:
        label = "edgeagent_remote_stage_seconds_count"
        stages = ("name", "connect", "tls", "first_byte")
        return [REGISTRY.get_sample_value(label, {"remote": name, "stage": stage}) or 0 for stage in stages]

    tls = Tls(ca_file=str(authority.own.path))
    probe = ProbePermit("staged", RouteMode.PREFER_LOCAL)
    async with faults(stream(answer("a")), tls=server_context(good)) as server:
        address = EndpointConfig(server.url)
        staged = transport.Transport(Remote("staged", (address,), tls=tls), server.url, transport.tls_context(tls))
        await (await staged.open(probe, Call("/models"))).read_all(10_000)
        assert counts("staged") == [1, 1, 1, 0]
        await staged.drop()
        leave = Permit(REQUEST.id, "staged", RouteMode.PREFER_LOCAL, "queue")
        await (await staged.open(leave, Call("/x", b"{}", request_id=REQUEST.id))).read_all(10_000)
        assert counts("staged") == [2, 2, 2, 1]
        await staged.drop()


async def test_rows_and_requests_are_the_same_number() -> None:
    rows = Rows()
    scripts = [plain(500), stream(answer("a")), [Act.CLOSE], plain(429), plain(400), stream(answer("b"))]
    async with faults(*scripts) as server, backend(server.url, server.url + "/", ledger=rows) as remote:
        for number in range(12):
            await ask(remote, id=f"r{number}")
    assert len(rows.rows) == len(server.posts)
    assert "open" not in rows.outcomes


def test_when_to_ask_again() -> None:
    assert retry_after_s({"retry-after": "3"}, 0) == 3
    assert retry_after_s({"retry-after": "1.5"}, 0) == 1.5
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "1"}, 0) == 0.25
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 20) == 40
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 100) == 0
    assert [retry_after_s({"retry-after": text}, 0) for text in ("", "soon", "-1", "²")] == [None] * 4
    assert retry_after_s({}, 0) is None
