"""Whether two answers to one question say the same: by their text, or by the model's own verdict."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable

from edgeagent.types import ChatPrompt, ChoiceScores, GenerateRequest, Message, Step

_MAX_CHARACTERS = 2000
VERDICTS = ("yes", "no")

Run = Callable[[GenerateRequest], Awaitable[list[Step] | None]]
"""Runs a request of the daemon itself in idle time, and returns its steps; None if it failed."""


def is_same_text(first: str, second: str) -> bool:
    """Whether two answers differ only in case, spaces and punctuation. An empty answer is the same as none."""
    return bool(plain := plain_text(first)) and plain == plain_text(second)


def plain_text(text: str) -> str:
    """Return what `is_same_text` compares of an answer; "" if it says nothing."""
    # What stands within a number or a word stays: 3.50, -5, e-mail.
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return " ".join(filter(None, (word.strip(".,;:!?…\"'“”„()*_`") for word in text.split())))


async def is_same_by_model(run: Run, request: GenerateRequest, asked: str, answers: tuple[str, str]) -> bool | None:
    """Ask the model whether two answers to a question say the same; None if it did not answer.

    `request`: whose model, client and limits are used.
    """
    first, second = answers
    if max(len(asked), len(first), len(second)) > _MAX_CHARACTERS:
        return None
    text = (
        f"Question: {asked}\n\nAnswer 1: {first}\n\nAnswer 2: {second}\n\n"
        "Do both answers give the same facts and the same advice? Answer with yes or no."
    )
    steps = await run(verdict_request(request, text))
    scores = [delta for step in steps or () for delta in step.deltas if isinstance(delta, ChoiceScores)]
    return scores[-1].logprobs[0] > scores[-1].logprobs[1] if scores else None


def verdict_request(request: GenerateRequest, text: str) -> GenerateRequest:
    """Return a request that asks the model about a text: how likely yes and no are as the whole answer."""
    return GenerateRequest(
        request.id,
        request.model,
        ChatPrompt((Message("user", text),)),
        choices=VERDICTS,
        tier=request.tier,
        is_ahead=request.is_ahead,
        cache=request.cache,
        route=request.route,
        client=request.client,
    )
