"""The scripted backend obeys the contract of the backends that it replaces."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from edgeagent.errors import ModelNotFound, WorkerCrashed
from edgeagent.types import (
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    Started,
    TextDelta,
    TextPrompt,
    TokenPrompt,
)
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.backends.reading import steps_of


def request(text: str = "one two three", request_id: str = "r1", **fields: object) -> GenerateRequest:
    prompt = ChatPrompt((Message("system", "be brief"), Message("user", text)))
    return GenerateRequest(request_id, "fake", **{"prompt": prompt, **fields})  # type: ignore[arg-type]


async def deltas(backend: FakeBackend, asked: GenerateRequest) -> list[Delta]:
    return [delta async for step in steps_of(backend.generate, asked) for delta in step.deltas]


async def test_it_echoes() -> None:
    answer = await deltas(FakeBackend(), request())
    assert answer[0] == Started(5, 0)
    assert answer[1:-1] == [TextDelta("one"), TextDelta(" two"), TextDelta(" three")]
    assert answer[-1] == finished(prompt=5, cached=0, output=3)


async def test_it_respects_limits_and_prefill() -> None:
    answer = await deltas(FakeBackend(), request(max_tokens=2))
    assert isinstance(answer[-1], Finished)
    assert (len(answer), answer[-1].reason) == (4, FinishReason.LENGTH)
    assert len(await deltas(FakeBackend(), request(prefill_only=True))) == 2


async def test_it_echoes_text_and_tokens() -> None:
    assert (await deltas(FakeBackend(), request(prompt=TextPrompt("a b"))))[1] == TextDelta("a")
    assert (await deltas(FakeBackend(), request(prompt=TokenPrompt((7, 8)))))[1:3] == [TextDelta("7"), TextDelta(" 8")]


async def test_a_polite_cancel_ends_in_finished() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (TextDelta("a"), gate, TextDelta("b"), finished()))
    answer = asyncio.create_task(deltas(backend, request()))
    await gate.reached.wait()
    backend.cancel("r1")
    assert await answer == [TextDelta("a"), finished(FinishReason.CANCELLED)]
    backend.cancel("r1")
    backend.cancel("never")
    assert (backend.cancelled, backend.closed, backend.num_live) == (["r1"], [], 0)


async def test_closing_the_generator_cancels() -> None:
    backend = FakeBackend()
    async with aclosing(steps_of(backend.generate, request())) as steps:
        await anext(steps)
        assert backend.num_live == 1
    assert (backend.cancelled, backend.closed, backend.num_live) == ([], ["r1"], 0)


async def test_errors() -> None:
    with pytest.raises(WorkerCrashed):
        await deltas(FakeBackend(failing(WorkerCrashed("x"), TextDelta("a"))), request())
    with pytest.raises(ModelNotFound):
        await deltas(FakeBackend(models=("other",)), request())


async def test_stop_cancels_what_is_live() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (gate, finished()))
    await backend.start()
    answer = asyncio.create_task(deltas(backend, request()))
    await backend.until(lambda backend: backend.num_live == 1)
    await backend.stop()
    assert await answer == [finished(FinishReason.CANCELLED)]
