"""Packs the results of a step into frames that are small enough for the pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeagent.types import Delta, PromptText, TextDelta
from edgeagent.worker.protocol import StepItem, StepResult

# The most log probabilities of one text delta in a frame; the rest goes into further deltas. Text that was held back
# (long white space, for example) has many at once.
_MAX_LOGPROBS = 128


def step_frames(items: Sequence[StepItem], at_s: float) -> Iterator[StepResult]:
    """Yield the frames of a step.

    First come the parts of long items, one part in each frame. The last frame has the rest of all items. A part ends
    with a PromptText of any size, or with a TextDelta of _MAX_LOGPROBS log probabilities.
    """
    last = []
    for item in items:
        *parts, rest = _split(item)
        last.append(rest)
        for part in parts:
            yield StepResult(at_s, (part,))
    if last:
        yield StepResult(at_s, tuple(last))


def _split(item: StepItem) -> list[StepItem]:
    """Return the parts of an item in order, then its rest, which is small enough for a frame with other items."""
    parts: list[StepItem] = []
    deltas: list[Delta] = []
    for delta in item.deltas:
        rest = delta
        if isinstance(delta, PromptText):
            parts.append(StepItem(item.id, (*deltas, delta), is_part=True))
            deltas = []
            continue
        while isinstance(rest, TextDelta) and len(rest.logprobs) > _MAX_LOGPROBS:
            part = (*deltas, TextDelta(rest.text, rest.logprobs[:_MAX_LOGPROBS]))
            parts.append(StepItem(item.id, part, is_part=True))
            deltas, rest = [], TextDelta("", rest.logprobs[_MAX_LOGPROBS:])
        deltas.append(rest)
    return [*parts, StepItem(item.id, tuple(deltas), item.tokens, held_logprobs=item.held_logprobs)]
