"""A remote that is an edgeagent itself: its real server, with a scripted backend behind it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from edgeagent.errors import WorkerCrashed
from edgeagent.types import ChatPrompt, GenerateRequest, Message, Started, Step, TextDelta, TextPrompt, replace
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
