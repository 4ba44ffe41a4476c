"""A remote that sends impossible values: counts, names and texts that would cost memory, money or the owner's key."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import pytest

from edgeagent.backends.remote import network
from edgeagent.backends.remote.answer import MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, ChatReader, EchoGuard
from edgeagent.backends.remote.failures import Failure, retry_after_s
from edgeagent.backends.remote.network import Network
from edgeagent.errors import Overloaded, RemoteUnavailable
from edgeagent.remotes import Limits
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    Delta,
    FinishReason,
    Message,
    TextDelta,
    Tool,
    ToolChoice,
    Usage,
)
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import Act, Script, faults, half, models, plain, stream
from tests.backends.remote.streams import DONE, ROLE, answer, chunk, event, read
from tests.backends.remote.support import KEY, REQUEST, ask, backend, permit, probe
from tests.patience import patient

MOST = Usage(MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)


@pytest.mark.parametrize(
    ("prompt", "cached", "output", "counted"),
    [
        (-5, -5, -5, Usage()),
        (5, 500, 1, Usage(5, 5, 1, 1)),
        (10**18, 10**18, 10**18, MOST),
        (10**400, 10**400, 10**400, MOST),
    ],
)
def test_counts_that_cannot_be(prompt: int, cached: int, output: int, counted: Usage) -> None:
    """Budgets and measurements sum these counts, so no count is negative or larger than any model's context."""
    chat = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": output},
    }
    reader = ChatReader()
    read(reader, [answer("a")[: -len(DONE)] + event({"choices": [], "usage": chat}) + DONE])
    assert reader.usage == counted


@pytest.mark.parametrize("said", [{"timings": {"predicted_n": 10**12}}, {"usage": {"completion_tokens": 10**12}}])
def test_an_answer_of_more_tokens_than_any(said: dict[str, Any]) -> None:
    """Each counted token takes memory on this machine."""
    reader = ChatReader()
    read(reader, [ROLE + chunk({"content": "a"}, **said)])
    assert reader.num_tokens == MAX_OUTPUT_TOKENS


@pytest.mark.parametrize("name", ["m" * 513, "big\r\nset-cookie: a=b", "\x1b[31mred", "\u202egpt"])
async def test_a_model_whose_name_no_model_has(name: str) -> None:
    """The name would become a header of the answer, and a line on a terminal."""
    script = stream(chunk({"content": "a"}, model=name), chunk(finish="stop", model=name), DONE)
    gets = {"/v1/models": models(name, "tiny")}
    async with faults(script, gets=gets) as server, backend(server.url, probes=True) as remote:
        got = await ask(remote)
        assert got.started.placement is not None and got.started.placement.model == "tiny"
        await probe(remote)
        assert [model.name for model in remote.models.statuses()] == ["tiny"]


@pytest.mark.parametrize(
    "calls",
    [
        [{"index": number} for number in range(129)],
        [{"index": 0, "function": {"arguments": "x" * 65_537}}],
    ],
)
def test_calls_that_never_get_a_name(calls: list[Any]) -> None:
    """The amount of data that waits for a name is bounded."""
    _, failure = read(ChatReader(), [chunk({"tool_calls": calls})])
    assert failure is not None and "call" in failure.message


def test_arguments_without_a_name_are_no_answer() -> None:
    calls = [{"index": 0, "function": {"arguments": "{}"}}]
    _, failure = read(ChatReader(), [chunk({"tool_calls": calls}) + chunk(finish="tool_calls") + DONE])
    assert failure is not None and "without the tool's name" in failure.message


@pytest.mark.parametrize("quoted", [f"Bearer {KEY}", f"...{KEY[:9]}***", "x" * 490 + KEY])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_key_that_the_remote_quotes_reaches_no_client(quoted: str, is_stream: bool) -> None:
    def script(text: str) -> Script:
        body = {"error": {"message": text, "code": 400}}
        return stream(event(body)) if is_stream else plain(400, json.dumps(body).encode())

    async with faults(script(quoted), script("too many tools")) as server, backend(server.url) as remote:
        got = await ask(remote)
        assert got.error is not None and got.error.message == "remote:gpu: it rejected the request (HTTP 400)"
        got = await ask(remote, id="other")
        assert got.error is not None and got.error.message.endswith("too many tools")


@pytest.mark.parametrize(
    "text", [f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT", f"Mon, 01 Jan 2000 00:00:00 +{'9' * 30}", "1e309", "Infinity"]
)
async def test_a_time_to_ask_again_that_is_none(text: str) -> None:
    assert retry_after_s({"retry-after": text}, 0) is None
    async with faults(plain(429, headers=f"Retry-After: {text}\r\n")) as server, backend(server.url) as remote:
        assert isinstance((await ask(remote)).error, Overloaded)


async def test_measurements_that_are_infinite() -> None:
    page = b"vllm:num_requests_waiting 1e999\nvllm:kv_cache_usage_perc 1e999\n"
    gets = {"/v1/models": models("tiny"), "/metrics": plain(200, page, kind="text/plain")}
    async with faults(stream(answer("a")), gets=gets) as server, backend(server.url, probes=True) as remote:
        await probe(remote)
        (endpoint,) = remote.status().endpoints
        assert endpoint.kv_usage == 1.0 and endpoint.num_waiting is not None and math.isfinite(endpoint.num_waiting)


def test_what_is_repeated_letter_by_letter_is_compared_once() -> None:
    """Comparing the whole text at each letter of a long answer would block every other request for minutes."""
    num_compared = 0

    class Counted(str):
        def startswith(self, prefix: Any, *place: Any) -> bool:
            nonlocal num_compared
            num_compared += len(prefix)
            return super().startswith(prefix, *place)

    before = Counted("ab" * 100)
    guard = EchoGuard(before)
    letters: list[Delta] = [TextDelta(letter) for letter in before]
    assert guard.take(letters) == []
    assert guard.take([TextDelta(" and on")]) == [TextDelta(" and on")]
    assert num_compared <= len(before)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("box.example", "::ffff:127.0.0.1"),
        ("box.example", "::ffff:169.254.169.254"),
        ("box.example", "::ffff:0.0.0.0"),
        ("localhost", "192.0.2.1"),
        ("a.localhost", "::ffff:192.0.2.1"),
    ],
)
async def test_a_name_that_leads_astray(name: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 form may hide an IPv4 address; localhost, to which plain HTTP is sent, may resolve to another machine."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(10, 1, 6, "", (address, 80))])
    with pytest.raises(Failure, match="a remote may not have"):
        await network.Network(1.0).connect_tcp(name, 80)


async def test_what_is_for_this_machine_goes_through_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy's proxy applies to all endpoints of a remote, and could read unencrypted requests to this machine."""
    asked: list[str] = []
    connect = Network.connect_tcp

    async def noted(self: Network, host: str, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        return await connect(self, host, *rest, **more)

    monkeypatch.setattr(Network, "connect_tcp", noted)
    async with faults(stream(answer("a"))) as server, backend(server.url, proxy="http://192.0.2.1:3128") as remote:
        assert (await ask(remote)).text == "a"
    assert asked == ["127.0.0.1"]


async def test_an_answer_has_no_more_tokens_than_asked_for() -> None:
    parts = [ROLE, *(chunk({"content": f" {index}"}) for index in range(60))]
    async with faults(stream(*parts, chunk(finish="stop"), DONE)) as server, backend(server.url) as remote:
        got = await ask(remote, max_tokens=20)
        assert got.text == "".join(f" {index}" for index in range(20)) and got.num_tokens == 20
        assert got.finished.reason is FinishReason.LENGTH
        whole = await ask(remote, id="r2", max_tokens=60)
        assert whole.num_tokens == 60 and whole.finished.reason is FinishReason.STOP


async def test_a_remote_that_goes_on_is_told_to_stop() -> None:
    endless = half(ROLE, *(chunk({"content": "a"}) for _ in range(30)), Act.STALL)
    async with faults(endless) as server, backend(server.url) as remote:
        assert (await ask(remote, max_tokens=20)).num_tokens == 20
        await asyncio.wait_for(server.posts[0].left.wait(), patient(10))


@pytest.mark.parametrize(
    ("offered", "choice", "called", "is_right"),
    [
        ((), ToolChoice(), "now", False),
        (("now",), ToolChoice(), "then", False),
        (("now", "then"), ToolChoice(names=("now",)), "then", False),
        (("now",), ToolChoice(), "now", True),
    ],
)
async def test_a_call_of_a_tool_that_was_not_offered(
    offered: tuple[str, ...], choice: ToolChoice, called: str, is_right: bool
) -> None:
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": called, "arguments": "{}"}}]}
    prompt = ChatPrompt((Message("user", "hi"),), tuple(Tool(name) for name in offered), choice)
    script = stream(ROLE, chunk(call), chunk(finish="tool_calls"), DONE)
    async with faults(script) as server, backend(server.url) as remote:
        got = await ask(remote, prompt=prompt)
    if is_right:
        assert got.finished.reason is FinishReason.TOOL_CALLS
    else:
        assert got.error is not None and "does not offer" in got.error.message


async def test_a_client_that_reads_slowly_does_not_make_the_time_longer() -> None:
    parts = [chunk({"content": "a" * 4000}) for _ in range(200)]
    limits = Limits(total_s=0.3)
    script = stream(ROLE, *parts, chunk(finish="stop"), DONE)
    async with faults(script) as server, backend(server.url, limits=limits) as remote:
        steps = steps_of(remote.generate, REQUEST, permit())
        await anext(steps)
        until_s = asyncio.get_running_loop().time() + limits.total_s
        while asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110 - the limit is on the loop's clock
            await asyncio.sleep(0.01)
        with pytest.raises(RemoteUnavailable, match="time limit"):
            async for _ in steps:
                pass


@pytest.mark.parametrize(("status", "code"), [(402, "remote_unavailable"), (404, "model_not_found")])
async def test_a_refusal_that_has_another_name_here(status: int, code: str) -> None:
    async with faults(plain(status)) as server, backend(server.url) as remote:
        got = await ask(remote)
    assert got.error is not None and got.error.code == code


async def test_a_gateway_that_repeats_the_answer_is_not_believed_whatever_it_says_it_is() -> None:
    before = "The quick brown fox"
    script = stream(chunk({"content": before}), chunk({"content": " jumps"}), chunk(finish="stop"), DONE)
    gets = {"/v1/models": models("tiny", owner="vllm")}
    async with faults(script, gets=gets) as server, backend(server.url) as remote:
        got = await ask(remote, so_far=AnswerSoFar(before, "", 4))
    assert got.text == " jumps"
