"""Row F12 of the fault matrix, a to e and g to i: each fault over a real connection, with the required outcome."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import threading
from typing import Any

import pytest

from edgeagent.backends.remote import network
from edgeagent.backends.remote.backend import RemoteBackend
from edgeagent.backends.remote.endpoint import OPEN_S
from edgeagent.backends.remote.transport import Exchange
from edgeagent.errors import (
    ConfigError,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PayloadTooLarge,
    RemoteUnavailable,
    RequestTimeout,
)
from edgeagent.remotes import Key, Limits
from edgeagent.types import replace
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import HEAD, Act, Script, chunked, closed_port, faults, half, plain, stream
from tests.backends.remote.streams import DONE, OVERLOADED, ROLE, answer, chunk, event
from tests.backends.remote.support import REQUEST, Answer, Clock, Rows, ask, backend, permit, probe, until
from tests.patience import patient

SHORT = Limits(max_concurrent=64, connect_s=0.3, first_token_s=0.3, idle_s=0.3, total_s=5.0)
CREATED = event({"type": "response.created", "response": {}}, "response.created")


def failed(got: Answer, said: str, num_tokens: int = 0, kind: type[EdgeAgentError] = RemoteUnavailable) -> None:
    """Check that a request ended with the error of a lost remote."""
    assert isinstance(got.error, kind), got
    assert said in got.error.message
    assert got.error.served_by == "remote:gpu"
    assert got.error.num_delivered_tokens == num_tokens == got.num_tokens


# a: refused, no route, black hole


async def test_a_refused_connection() -> None:
    rows = Rows()
    async with backend(f"http://127.0.0.1:{closed_port()}/v1", ledger=rows) as remote:
        failed(await ask(remote), "no connection")
    assert rows.outcomes == ["unreachable", "unreachable"]


async def test_a_refused_connection_costs_no_try() -> None:
    """A refused connection sent nothing, so every other endpoint may be tried."""
    dead = [f"http://127.0.0.1:{closed_port()}/v1" for _ in range(4)]
    async with faults(stream(answer("a"))) as server, backend(*dead, server.url) as remote:
        for number in range(3):
            assert (await ask(remote, id=f"r{number}")).text == "a"


async def test_a_black_hole() -> None:
    """A listener whose queue is full accepts no connection and sends nothing."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        fillers = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
            fillers.append(filler)
        try:
            async with backend(f"http://127.0.0.1:{hole.getsockname()[1]}/v1", limits=SHORT) as remote:
                failed(await ask(remote), "0.3 s")
        finally:
            for filler in fillers:
                filler.close()


# b: slow first byte, stall, one byte at a time


@pytest.mark.parametrize(
    "script", [[Act.STALL], [HEAD, Act.STALL], half(ROLE, Act.STALL), half(b": ping\n\n" * 3, Act.STALL)]
)
async def test_no_content_in_time(script: Script) -> None:
    async with faults(script) as server, backend(server.url, limits=SHORT) as remote:
        failed(await ask(remote), "no content within 0.3 s")
        assert len(server.asked) == 1, "an endpoint that hangs is not asked again"
        async with asyncio.timeout(patient(5)):
            await server.asked[0].left.wait()
        assert remote.estimate(REQUEST).obstacle == "unreachable"
        failed(await ask(remote, id="later"), "none of its endpoints")
        assert len(server.asked) == 1


async def test_a_hung_endpoint_costs_one_request_its_limit() -> None:
    async with faults([Act.STALL]) as hung, faults(stream(answer("a"))) as well:
        async with backend(hung.url, well.url, limits=SHORT) as remote:
            for number in range(6):
                assert (await ask(remote, id=f"r{number}")).text == "a"
        assert len(hung.asked) <= 1
        assert len(well.asked) == 6


async def test_a_stall_in_the_middle() -> None:
    script = half(ROLE, chunk({"content": "One"}), Act.STALL)
    async with faults(script) as server, backend(server.url, limits=SHORT) as remote:
        got = await ask(remote)
        failed(got, "no more events within 0.3 s", 1)
        assert got.text == "One"
        assert len(server.asked) == 1, "what has begun is never begun again"


async def test_bytes_that_make_no_event_do_not_count() -> None:
    trickle = half(chunk({"content": "One"}), *(b"x" for _ in range(500)))
    async with faults(trickle) as server, backend(server.url, limits=SHORT) as remote:
        server.pace_s = 0.02
        failed(await ask(remote), "no more events within 0.3 s", 1)


async def test_events_without_content_show_that_it_goes_on() -> None:
    """A server that parses a tool call before it forwards it sends empty chunks meanwhile."""
    parts = [chunk({"content": "One"}), *(chunk({}) for _ in range(30)), chunk({"content": "Two"})]
    async with (
        faults(stream(*parts, chunk(finish="stop") + DONE)) as server,
        backend(server.url, limits=replace(SHORT, first_token_s=1.5, idle_s=1.5)) as remote,
    ):
        server.pace_s = 0.06
        assert (await ask(remote)).text == "OneTwo"


async def test_the_whole_time() -> None:
    limits = Limits(max_concurrent=4, first_token_s=0.2, idle_s=5.0, total_s=0.4)
    endless = half(*(chunk({"content": "x"}) for _ in range(500)))
    async with faults(endless) as server, backend(server.url, limits=limits) as remote:
        server.pace_s = 0.01
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable)
        own = await ask(remote, id="own", timeout_s=0.1)
        assert isinstance(own.error, RequestTimeout) and "deadline_ms, 100;" in own.error.message


# c: reset, truncation, half of a JSON text, no end, another content type, a captive portal

PORTAL = b"<!DOCTYPE html><HTML><body>Sign in to this network</body></HTML>"
BROKEN: dict[str, tuple[Script, str]] = {
    "reset": ([Act.RESET], "connection broke"),
    "closed": ([Act.CLOSE], "connection broke"),
    "reset in the head": ([b"HTTP/1.1 200 OK\r\nConte", Act.RESET], "connection broke"),
    "no HTTP": ([b"SSH-2.0-OpenSSH_9.9\r\n", Act.CLOSE], "connection broke"),
    "cut in a chunk": ([HEAD, b"ff\r\ndata: {", Act.CLOSE], "connection broke"),
    "half a JSON value": (stream(ROLE, b'data: {"choices": [{"del\n\n', DONE), "violates the protocol"),
    "half a JSON value at the end": (stream(ROLE, b'data: {"choices": [{"del'), "ended within an event"),
    "no [DONE]": (stream(ROLE), "before the answer was complete"),
    "no finish reason": (stream(ROLE, DONE), "without a finish reason"),
    "an empty stream": (stream(), "before the answer was complete"),
    "a web page": (plain(200, PORTAL, kind="text/html"), "sign-in page"),
    "a web page as a stream": (plain(200, PORTAL, kind="text/event-stream"), "within an event"),
    "JSON": (plain(200, b'{"choices": []}'), "no event stream"),
    "an error in a 200": (plain(200, b'{"error": {"message": "busy", "code": 503}}'), "HTTP 503"),
    "nothing": (plain(200, kind=""), "no event stream"),
    "an error in the stream": (stream(event({"error": {"message": "x", "code": 500}}), DONE), "HTTP 500"),
    "vLLM over its limit": (stream(OVERLOADED), "HTTP 503"),
    "cut after created": (half(CREATED, Act.CLOSE), "connection broke"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_before_the_first_content_another_is_asked(name: str) -> None:
    script, said = BROKEN[name]
    rows = Rows()
    async with faults(script) as broken, faults(stream(answer("a"))) as well:
        async with backend(broken.url, ledger=Rows()) as alone:
            failed(await ask(alone), said)
        broken.asked.clear()
        async with backend(broken.url, well.url, ledger=rows) as remote:
            for number in range(8):
                got = await ask(remote, id=f"r{number}")
                if len(broken.asked) and got.text == "a":
                    break
                assert got.text == "a"
    assert rows.outcomes.count("completed") == len(well.posts)
    assert len(rows.rows) == len(broken.posts) + len(well.posts)


BEGUN: dict[str, list[bytes | Act]] = {
    "reset": [Act.RESET],
    "closed": [Act.CLOSE],
    "half a JSON value": [b'data: {"cho\n\n', Act.STALL],
    "an error": [event({"error": {"message": "boom", "code": 500}}), Act.STALL],
    "no finish": [DONE, Act.STALL],
    "a failure to schedule": [chunk(finish="abort"), Act.STALL],
}


@pytest.mark.parametrize("name", BEGUN)
async def test_behind_the_first_content_it_ends_with_what_was_delivered(name: str) -> None:
    script = half(ROLE, chunk({"content": "One "}), chunk({"content": "two"}), *BEGUN[name])
    rows = Rows()
    async with faults(script) as broken, backend(broken.url, broken.url + "/", ledger=rows) as remote:
        got = await ask(remote)
        assert got.text == "One two"
        assert isinstance(got.error, RemoteUnavailable) and got.error.num_delivered_tokens == 2
        assert len(broken.asked) == 1
    assert len(rows.rows) == 1 and rows.rows[0][3] != "completed" and rows.rows[0][5] == 2


async def test_a_kept_connection_that_the_server_has_closed() -> None:
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        for number in range(3):
            assert (await ask(remote, id=f"r{number}")).text == "a"
            await asyncio.sleep(0.02)
            server.cut()
            await asyncio.sleep(0.02)
        assert server.num_connections == 3


# d: refusals


@pytest.mark.parametrize("status", [429, 503, 408])
@pytest.mark.parametrize("body", [b"", b"Request dropped due to backpressure", b'{"error":{"message":"full"}}'])
async def test_a_full_endpoint_is_left_alone_for_as_long_as_it_says(status: int, body: bytes) -> None:
    clock = Clock()
    refusal = plain(status, body, "Retry-After: 7\r\n")
    async with faults(refusal, stream(answer("a"))) as server, backend(server.url, clock=clock) as remote:
        got = await ask(remote)
        failed(got, f"HTTP {status}", kind=Overloaded if status == 429 else RemoteUnavailable)
        assert got.error is not None and got.error.retry_after_s == 7
        for later_s in (0.0, 3.0, 3.9):
            clock.now_s += later_s
            assert remote.estimate(REQUEST).obstacle == "backing_off"
            await ask(remote)
        assert len(server.asked) == 1, "asked before Retry-After"
        clock.now_s += 0.2
        assert remote.estimate(REQUEST).obstacle == ""
        assert (await ask(remote)).text == "a"


async def test_what_is_too_late_for_one_request_may_be_in_time_for_the_next() -> None:
    body = b'{"error":{"message":"late","type":"rate_limit_error","param":null,"code":"deadline_unreachable"}}'
    refusal = plain(429, body, "Retry-After: 7\r\n")
    async with faults(refusal, stream(answer("a"))) as server, backend(server.url) as remote:
        got = await ask(remote)
        failed(got, "too late", kind=DeadlineUnreachable)
        assert got.error is not None and got.error.retry_after_s == 7
        assert len(server.asked) == 1
        assert remote.estimate(REQUEST).obstacle == ""
        assert (await ask(remote)).text == "a"


async def test_a_full_endpoint_without_a_word_is_left_alone_for_a_random_while() -> None:
    clock = Clock()
    async with faults(plain(429)) as server, backend(server.url, clock=clock) as remote:
        (endpoint,) = remote._cluster.endpoints
        endpoint.breaker._chance = lambda: 0.5
        waits = []
        for _ in range(4):
            await ask(remote)
            waits.append(round(endpoint.breaker.pause_left_s(clock()), 3))
            clock.now_s += waits[-1] + 0.001
        assert waits == [1.0] * 4
        assert remote.status().endpoints[0].breaker == "closed", "being full is no failure"
        assert len(server.asked) == 4


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_failing_server_is_tried_twice(status: int) -> None:
    async with faults(plain(status)) as server, backend(server.url) as remote:
        failed(await ask(remote), f"HTTP {status}")
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (400, b'{"error":{"message":"This model\'s maximum context length is 2048 tokens"}}', ContextLengthExceeded),
        (400, b'{"object":"error","message":"bad schema","code":400}', InvalidRequest),
        (413, b"", PayloadTooLarge),
        (422, b"", InvalidRequest),
        (404, b"", ModelNotFound),
    ],
)
async def test_a_rejected_request_is_not_sent_again(status: int, body: bytes, error: type[Exception]) -> None:
    async with faults(plain(status, body)) as server, faults(stream(answer("a"))) as other:
        async with backend(server.url, server.url + "/", ledger=Rows()) as remote:
            got = await ask(remote)
            assert type(got.error) is error
            assert got.error.served_by == "remote:gpu"
            assert remote.estimate(REQUEST).obstacle == ""
        assert len(server.asked) == 1 and not other.asked


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_disables_the_remote(status: int) -> None:
    keys = ["old"]
    clock = Clock()
    refusal = plain(status, b'{"error":{"message":"Incorrect API key provided: old"}}')
    async with (
        faults(refusal, stream(answer("a"))) as server,
        backend(server.url, server.url + "/", keys=lambda key: keys[0], clock=clock) as remote,
    ):
        got = await ask(remote)
        failed(got, f"HTTP {status}")
        assert "old" not in got.error.message  # type: ignore[union-attr]
        expected = remote.estimate(REQUEST)
        assert expected.obstacle == "refused_key" and expected.retry_after_s == 60.0
        assert expected.trouble == remote.status().trouble and f"HTTP {status}" in expected.trouble
        failed(await ask(remote, id="r2"), "until the key is changed")
        assert len(server.asked) == 1
        keys[0] = "new"
        clock.now_s += 10
        assert remote.estimate(REQUEST).obstacle == ""
        assert (await ask(remote, id="r3")).text == "a"
        assert server.asked[1].headers["authorization"] == "Bearer new"


async def test_only_the_key_that_was_sent_is_refused() -> None:
    clock = Clock()
    async with faults(plain(401), stream(answer("a"))) as server:
        is_gone = True

        def keys(key: Key) -> str:
            if server.asked and is_gone:
                raise ConfigError("the key is gone")
            return "new" if server.asked else "old"

        async with backend(server.url, keys=keys, clock=clock) as remote:
            failed(await ask(remote), "HTTP 401")
            assert remote.estimate(REQUEST).obstacle == "no_key"
            is_gone = False
            clock.now_s += 10
            assert remote.estimate(REQUEST).obstacle == ""
            assert (await ask(remote, id="r2")).text == "a"
            assert server.asked[1].headers["authorization"] == "Bearer new"


async def test_a_refused_key_is_sent_again_where_that_is_forgiven() -> None:
    async with faults(plain(401), stream(answer("a"))) as server, backend(server.url, keys=lambda key: "k") as remote:
        failed(await ask(remote), "`edgeagent remote add`")
        assert remote.estimate(REQUEST).obstacle == "refused_key"
        remote.forgive_key()
        assert remote.estimate(REQUEST).obstacle == ""
        assert (await ask(remote, id="r2")).text == "a"


# e: the breaker


async def test_five_failures_open_the_breaker_and_an_answer_closes_it() -> None:
    clock = Clock()
    async with faults([Act.CLOSE]) as server, backend(server.url, clock=clock) as remote:
        for number in range(5):
            assert remote.estimate(REQUEST).obstacle == ""
            await ask(remote, id=f"r{number}")
            clock.now_s += 1
        num_asked = len(server.asked)
        assert remote.status().endpoints[0].breaker == "open"
        assert remote.status().endpoints[0].cause
        clock.now_s -= 0.1
        failed(await ask(remote, id="r"), "none of its endpoints")
        assert len(server.asked) == num_asked, "asked while open"
        clock.now_s += 0.1
        await ask(remote, id="last resort")
        assert len(server.asked) == num_asked + 1
        clock.now_s += OPEN_S
        assert remote.status().endpoints[0].breaker == "half_open"
        await ask(remote, id="one more")
        assert len(server.asked) == num_asked + 2
        assert remote.status().endpoints[0].breaker == "open"
        clock.now_s += 2 * OPEN_S - 1
        assert remote.status().endpoints[0].breaker == "open", "one more failure doubles the time"
        clock.now_s += 1
        server.scripts[:] = [stream(answer("a"))]
        assert (await ask(remote, id="well")).text == "a"
        assert remote.status().endpoints[0].breaker == "closed"


async def test_a_node_that_dies_behind_the_url_rests_nothing() -> None:
    """Six of eight running answers are cut at once; the endpoint still takes the next request."""
    script = half(chunk({"content": "x"}), Act.STALL)
    async with faults(script) as server, backend(server.url) as remote:
        requests = [replace(REQUEST, id=f"r{number}") for number in range(8)]
        answers = [steps_of(remote.generate, request, permit(request)) for request in requests]
        await asyncio.gather(*map(anext, answers))
        running = {asyncio.ensure_future(anext(answer_)) for answer_ in answers}
        server.cut(6)
        await until(lambda: sum(step.done() for step in running) == 6)
        assert all(isinstance(step.exception(), RemoteUnavailable) for step in running if step.done())
        assert remote.status().endpoints[0].breaker == "closed"
        server.scripts[:] = [stream(answer("a"))]
        assert (await ask(remote, id="next")).text == "a"
        for request in requests:
            remote.cancel(request.id)
        await asyncio.wait(running)
        await asyncio.gather(*(answer_.aclose() for answer_ in answers))


def await_half_open(remote: RemoteBackend, clock: Clock) -> None:
    """Open the breaker of the remote's only endpoint, as after a hang, and wait until one request may try it."""
    (endpoint,) = remote._cluster.endpoints
    endpoint.breaker.fail(clock(), "hung", hung=True)
    clock.now_s += OPEN_S


async def test_without_probes_one_request_at_a_time_tries_an_endpoint_that_has_rested() -> None:
    clock = Clock()
    async with faults([Act.STALL]) as server, backend(server.url, clock=clock) as remote:
        await_half_open(remote, clock)
        assert remote.estimate(REQUEST).is_last_resort
        trying = asyncio.create_task(ask(remote, id="one"))
        await until(lambda: server.asked)
        failed(await ask(remote, id="two"), "none of its endpoints")
        remote.cancel("one")
        await trying
        assert len(server.asked) == 1


async def test_after_a_hang_a_probe_goes_before_any_request() -> None:
    clock = Clock()
    async with (
        faults(stream(answer("a")), gets={"/readiness": [Act.STALL]}) as server,
        backend(server.url, clock=clock, probes=True) as remote,
    ):
        await_half_open(remote, clock)
        assert remote.estimate(REQUEST).obstacle == "unreachable"
        remote.warm()
        await until(lambda: server.asked)
        assert remote.estimate(REQUEST).obstacle == "unreachable", "it has not answered the probe"
        server.gets["/readiness"] = plain(200)
        await probe(remote)
        assert remote.estimate(REQUEST).obstacle == ""
        assert not server.posts


async def test_a_probe_brings_an_endpoint_back() -> None:
    clock = Clock()
    async with (
        faults(stream(answer("a")), gets={"/health": plain(200)}) as server,
        backend(server.url, clock=clock, probes=True) as remote,
    ):
        (endpoint,) = remote._cluster.endpoints
        endpoint.breaker.fail(clock(), "hung", hung=True)
        remote.warm()
        await asyncio.sleep(0.05)
        assert remote.status().endpoints[0].breaker == "open", "it answers probes, but hung"
        clock.now_s += OPEN_S
        await probe(remote)
        assert remote.status().endpoints[0].breaker == "closed"
        endpoint.breaker.fail(clock(), "hung")
        assert remote.status().endpoints[0].breaker == "open", "one more failure opens it again"


async def test_a_list_of_models_is_not_enough_where_the_health_page_says_no() -> None:
    clock = Clock()
    async with (
        faults(stream(answer("a")), gets={"/readiness": plain(503)}) as server,
        backend(server.url, clock=clock, probes=True) as remote,
    ):
        await_half_open(remote, clock)
        for _ in range(2):  # the first one also asks for the models
            await probe(remote)
            assert remote.status().endpoints[0].breaker != "closed"
        assert any(asked.path == "/v1/models" for asked in server.asked)


async def test_an_endpoint_that_starts_again_gets_requests_before_its_time() -> None:
    clock = Clock()
    async with (
        faults([Act.CLOSE], gets={"/readiness": plain(502)}) as server,
        backend(server.url, clock=clock, probes=True) as remote,
    ):
        for number in range(5):
            await ask(remote, id=f"r{number}")
            clock.now_s += 1.0
        assert remote.estimate(REQUEST).obstacle == "unreachable"
        remote.tick()
        await until(lambda: any(asked.path == "/readiness" for asked in server.asked) and not remote._probing)
        assert remote.estimate(REQUEST).obstacle == "unreachable"
        server.gets["/readiness"], server.scripts[:] = plain(200), [stream(answer("a"))]
        clock.now_s += 4.0
        remote.tick()
        await until(lambda: not remote.estimate(REQUEST).obstacle)
        assert (await ask(remote, id="again")).text == "a"


@pytest.mark.parametrize(
    "page", [plain(200, PORTAL, kind="text/html"), plain(503), plain(302, headers="Location: /x\r\n")]
)
async def test_a_probe_that_is_not_answered_as_it_should_be(page: Script) -> None:
    gets = {"/readiness": page, "/v1/models": page}
    clock = Clock()
    async with (
        faults(stream(answer("a")), gets=gets) as server,
        backend(server.url, probes=True, clock=clock) as remote,
    ):
        for _ in range(5):
            await probe(remote)
            clock.now_s += 1
        assert remote.status().endpoints[0].breaker == "open"


# g: redirects, compression bombs


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with faults(stream(answer("stolen"))) as thief:
        refusal = plain(status, b"", f"Location: {thief.url}/chat/completions\r\n")
        async with faults(refusal) as server, backend(server.url) as remote:
            failed(await ask(remote), "redirects are not followed")
        assert thief.num_connections == 0


async def test_another_realm_gets_no_key() -> None:
    async with faults(stream(answer("stolen"))) as thief:
        refusal = plain(401, b"", f'WWW-Authenticate: Bearer realm="{thief.url}/token"\r\n')
        async with faults(refusal) as server, backend(server.url) as remote:
            failed(await ask(remote), "HTTP 401")
        assert thief.num_connections == 0


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = gzip.compress(b"data: " + b"x" * (5 << 20))
    head = HEAD.replace(b"Transfer", b"Content-Encoding: gzip\r\nTransfer")
    async with faults([head, chunked(bomb)]) as server, backend(server.url) as remote:
        failed(await ask(remote), "compressed")
    assert server.asked[0].headers["accept-encoding"] == "identity"


async def test_an_endless_event_is_cut() -> None:
    endless = half(b"data: ", *(b"x" * 65_536 for _ in range(200)))
    async with faults(endless) as server, backend(server.url) as remote:
        failed(await ask(remote), "4194304 bytes")
    assert len(server.asked) == 2


async def test_an_endless_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange.read, "__defaults__", (100_000,))
    parts = (chunk({"content": "x" * 30_000}) for _ in range(50))
    async with faults(stream(*parts)) as server, backend(server.url) as remote:
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable) and "100000 bytes" in got.error.message
        assert 30_000 <= len(got.text) <= 100_000
    assert len(server.asked) == 1


async def test_an_error_as_large_as_it_likes() -> None:
    async with (
        faults([b"HTTP/1.1 503 Busy\r\n\r\n", *(b"x" * 65_536 for _ in range(100))]) as server,
        backend(server.url) as remote,
    ):
        failed(await ask(remote), "HTTP 503")


async def test_a_head_as_large_as_it_likes() -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 1000) for n in range(300))
    async with faults([head, Act.STALL]) as server, backend(server.url) as remote:
        failed(await ask(remote), "connection broke")


# h: name resolution


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: str | OSError) -> list[str]:
    """Resolve names to these answers; return the list of requested names."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        for told in answers:
            if isinstance(told, OSError):
                raise told
        return [(2, 1, 6, "", (told, port)) for told in answers]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL])
async def test_a_name_that_is_not_resolved(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, socket.gaierror(code, "Name or service not known"))
    async with backend("http://box.example/v1", plaintext=True) as remote:
        failed(await ask(remote), "name could not be resolved")


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "224.0.0.1"])
async def test_a_name_that_leads_where_no_remote_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolver(monkeypatch, address)
    async with (
        faults(stream(answer("a"))) as server,
        backend(f"http://box.example:{server.port}/v1", plaintext=True) as remote,
    ):
        failed(await ask(remote), "a remote may not have")
    assert asked and server.num_connections == 0


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolver(monkeypatch, "::1", "127.0.0.1")
    async with faults(stream(answer("a"))) as server, backend(f"http://localhost:{server.port}/v1") as remote:
        assert (await ask(remote)).text == "a"
        assert server.asked[0].headers["host"] == f"localhost:{server.port}"
    assert asked == ["localhost"]


async def test_a_resolver_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        over.wait(30)
        raise OSError(errno.EAGAIN, "late")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("edgeagent.backends.remote.network.NAME_S", 0.1)
    try:
        async with backend("http://box.example/v1", plaintext=True) as remote:
            failed(await ask(remote), "not resolved within")
        for _ in range(20):
            with pytest.raises((OSError, TimeoutError)):
                async with asyncio.timeout(0.001):
                    await network._look_up("box.example", 1)
        with pytest.raises(OSError, match="still hang"):
            await network._look_up("box.example", 1)
    finally:
        over.set()
        await until(lambda: not network._lookups)


async def test_an_address_asks_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolver(monkeypatch, OSError("asked"))
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        assert (await ask(remote)).text == "a"
    assert not asked
