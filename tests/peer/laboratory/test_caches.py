"""The prefix cache scenarios against a fake backend: their requests, their order, and their counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from edgeagent.bench.client import Counts, Server, Trace
from edgeagent.bench.scenarios import FEW_TOKENS, MeasuredServer, Workload
from edgeagent.client import Address
from edgeagent.errors import NotSupported
from edgeagent.types import ChatPrompt, GenerateRequest, Started, TextDelta
from tests.backends.fake import Act, FakeBackend, finished
from tests.bench.test_scenarios import measured_server
from tests.peer.laboratory import caches
from tests.peer.laboratory.caches import SCENARIOS, CacheSize

WORKLOAD = Workload(prompt_tokens=200, max_tokens=20, parallel=2, conversations=3)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "SETTLE_S", 0.0)


def texts(request: GenerateRequest) -> list[str]:
    assert isinstance(request.prompt, ChatPrompt)
    return [str(message.content) for message in request.prompt.messages]


def roles(request: GenerateRequest) -> list[str]:
    assert isinstance(request.prompt, ChatPrompt)
    return [message.role for message in request.prompt.messages]


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_restart_kills_once_and_asks_the_same_beginning_behind_it(transport: str) -> None:
    backend, num_asked_before = FakeBackend(), []
    async with measured_server(backend, transport) as measured:
        restart = replace(measured.server, restart=lambda: num_asked_before.append(len(backend.requests)))
        samples = await caches.restart(MeasuredServer(restart, measured.prompts), WORKLOAD, "0")
    assert num_asked_before == [1 + caches.NUM_WARM_REQUESTS]
    asked = [texts(request)[-1] for request in backend.requests]
    assert len(set(asked)) == len(asked) == 2 + caches.NUM_WARM_REQUESTS
    assert len({prompt.split()[0] for prompt in asked}) == 1, "all begin alike"
    assert all(request.cache.persist for request in backend.requests), "or nothing of it would be on disk"
    assert set(samples) == set(SCENARIOS[0].metrics)
    assert len(samples[caches.AFTER]) == 1


async def test_a_server_that_nobody_can_restart_is_refused() -> None:
    async with measured_server(FakeBackend()) as measured:
        with pytest.raises(NotSupported, match="no URL"):
            await caches.restart(measured, WORKLOAD, "0")


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_conversations_go_on_by_turns_from_all_that_was_said(transport: str) -> None:
    backend = FakeBackend()
    async with measured_server(backend, transport) as measured:
        await caches._begin_conversations(measured, WORKLOAD)
        for round_id in ("0", "1"):
            samples = await caches.conversations(measured, WORKLOAD, round_id)
    firsts, seconds, thirds = (backend.requests[at : at + 3] for at in (0, 3, 6))
    for first, second, third in zip(firsts, seconds, thirds, strict=True):
        assert roles(third) == ["user", "assistant", "user", "assistant", "user"]
        assert texts(third)[:3] == texts(second)
        assert texts(second)[:1] == texts(first)
    assert len({texts(request)[0].split()[0] for request in firsts}) == 3
    assert {request.max_tokens for request in backend.requests} == {FEW_TOKENS}
    assert len(samples[caches.NEXT]) == 3


def counted(prompt: int) -> Iterable[Act]:
    yield from (Started(prompt, 0), TextDelta("x"), finished(prompt=prompt, output=1))


async def test_shares_are_of_what_is_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system prompt of 100 tokens and three questions of 10 with an answer of 1: 133 unique tokens, 10 bytes each."""
    sizes = iter([CacheSize(0, 1000, 100)] * 2 + [CacheSize(1330, 1000 + 2660, 366)] * 2)

    async def read(_: object) -> CacheSize:
        return next(sizes)

    monkeypatch.setattr(caches, "read_cache_size", read)
    backend = FakeBackend(lambda request: counted(10 if len(roles(request)) == 1 else 110))
    async with measured_server(backend) as measured:
        told = replace(measured.server, kind="edgeagent")
        samples = await caches.shared_prefix(MeasuredServer(told, measured.prompts), WORKLOAD, "0")
    assert samples[caches.MEMORY_SHARE] == pytest.approx([1.0])
    assert samples[caches.DISK_SHARE] == pytest.approx([2.0])
    assert len(samples[caches.OTHERS]) == 2
    assert [roles(request) for request in backend.requests] == [["user"], *[["system", "user"]] * 3]
    assert len({texts(request)[0] for request in backend.requests[1:]}) == 1


async def test_another_server_tells_nothing_of_what_it_keeps() -> None:
    async with measured_server(FakeBackend(), "http") as measured:
        samples = await caches.shared_prefix(measured, WORKLOAD, "0")
    assert samples[caches.MEMORY_SHARE] == samples[caches.DISK_SHARE] == []


async def test_what_a_daemon_keeps_is_read_from_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        "/edgeagent/status": {
            "models": [{"worker": {"memory_cache": {"num_bytes": 5}, "disk_cache": None}}, {"worker": None}]
        },
        "/edgeagent/cache": {
            "dir": "x",
            "parts": [{"num_bytes": 7, "num_tokens": 2}, {"num_bytes": 1, "num_tokens": 1}],
        },
    }

    async def read(_: Server, path: str) -> bytes:
        return json.dumps(pages[path]).encode()

    monkeypatch.setattr(caches, "read_page", read)
    assert await caches.wait_for_stable_cache_size(Server(Address("http://x"), "ws")) == CacheSize(5, 8, 3)


def test_unique_tokens_need_the_question_alone() -> None:
    def trace(prompt: int) -> Iterator[Trace]:
        yield Trace(counts=Counts(prompt, 0, 2))

    (alone,), (first,), (second,) = trace(30), trace(1030), trace(1034)
    assert caches._num_unique(alone, [first, second]) == 1000 + 30 + 2 + 34 + 2
