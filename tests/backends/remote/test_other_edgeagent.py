"""A remote that is an edgeagent itself: its real server, with a scripted backend behind it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from edgeagent.errors import WorkerCrashed
from edgeagent.service.client_sink import merge_steps
from edgeagent.types import (
    ChatPrompt,
    GenerateRequest,
    Message,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    replace,
)
from tests.backends.fake import Act, FakeBackend
from tests.backends.remote.support import REQUEST, ask, backend, probe
from tests.daemon.running import TOKEN, running

NUM_MERGED = 70


def break_after_many(_: GenerateRequest) -> Iterable[Act]:
    """Send one token, then many in one step, as for a client that could not be written to meanwhile; then break off."""
    yield Started(8, 0)
    yield Step((TextDelta("one"),), (1,), at_s=1.0)
    yield Step((TextDelta(" and many more"),), tuple(range(NUM_MERGED)), at_s=1.0)
    yield WorkerCrashed("the worker ended")


@pytest.mark.parametrize(
    "prompt", [ChatPrompt((Message("user", "canary"),)), TextPrompt("canary")], ids=["chat", "text"]
)
@pytest.mark.parametrize("is_identified", [False, True], ids=["unknown", "identified"])
async def test_the_tokens_of_a_merged_step_are_counted(prompt: ChatPrompt | TextPrompt, is_identified: bool) -> None:
    """The answer goes on elsewhere, up to its limit: a token that was not counted would be one too many."""
    async with (
        running(FakeBackend(break_after_many)) as away,
        backend(f"{away.url}/v1", keys=lambda _: TOKEN, probes=True) as remote,
    ):
        if is_identified:
            await probe(remote)
        answer = await ask(remote, replace(REQUEST, model="fake", prompt=prompt))
    assert answer.error is not None
    assert (answer.text, answer.num_tokens) == ("one and many more", 1 + NUM_MERGED)


FRAMES = (
    Step((TextDelta("one"),), (1,), at_s=1.0),
    Step((TextDelta(" two three"),), (2, 3), at_s=1.0),
    Step((), (4,), at_s=1.0, num_withheld=1),
    Step((TextDelta(" four, five"),), (5, 6), at_s=1.0, num_withheld=-1),
    Step((ReasoningDelta("six"), TextDelta("seven")), (7,), at_s=1.0),
    Step((TextDelta(" half of eight"),), (8,), at_s=1.0),
    Step((TextDelta(" and its rest"),), (), at_s=1.0),
    Step((TextDelta(" nine"),), (9,), at_s=1.0),
)


@pytest.mark.parametrize(
    "prompt", [ChatPrompt((Message("user", "canary"),)), TextPrompt("canary")], ids=["chat", "text"]
)
async def test_whichever_frame_is_the_last_its_tokens_are_exact(prompt: ChatPrompt | TextPrompt) -> None:
    """All that come before the client reads are one step; of the others, each is one."""
    script: list[Act] = []
    async with (
        running(FakeBackend(lambda _: script)) as away,
        backend(f"{away.url}/v1", keys=lambda _: TOKEN, probes=True) as remote,
    ):
        await probe(remote)
        for num, num_merged in itertools.product(range(1, len(FRAMES) + 1), (0, 3, len(FRAMES))):
            frames = [merge_steps(list(FRAMES[:num_merged])), *FRAMES[num_merged:]] if num_merged else list(FRAMES)
            script[:] = [Started(8, 0), *frames[:num], WorkerCrashed("the worker ended")]
            request = replace(REQUEST, model="fake", prompt=prompt, id=f"r{num}-{num_merged}", max_tokens=9)
            answer = await ask(remote, request)
            assert answer.error is not None
            assert answer.text == "".join(d.text for f in frames[:num] for d in f.deltas if isinstance(d, TextDelta))
            assert answer.num_tokens == sum(frame.num_delivered for frame in frames[:num])
            assert not answer.is_estimated
