"""A queue that carries one request's answer from the worker's pipe to the answer's reader.

The pipe never waits for a slow reader. If `max_steps` steps are pending when another arrives, they are merged into
one. The reader then gets fewer, larger steps and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import chain

from edgeagent.errors import EdgeAgentError
from edgeagent.types import Delta, Finished, ReasoningDelta, Step, TextDelta, ToolCallDelta

_DEFAULT_MAX_STEPS = 64


def merge_steps(steps: list[Step]) -> Step:
    """Merge one or more steps into one step, with the time of the first.

    Adjacent deltas are joined if both are text, both are reasoning, or both are arguments of the same tool call.
    """
    deltas: list[Delta] = []
    run: list[Delta] = []
    for delta in chain.from_iterable(step.deltas for step in steps):
        if run and not _are_joinable(run[-1], delta):
            deltas.append(_join(run))
            run = []
        run.append(delta)
    if run:
        deltas.append(_join(run))
    tokens = tuple(chain.from_iterable(step.tokens for step in steps))
    return Step(tuple(deltas), tokens, steps[0].at_s)


def _are_joinable(left: Delta, right: Delta) -> bool:
    match left, right:
        case (TextDelta(), TextDelta()) | (ReasoningDelta(), ReasoningDelta()):
            return True
        case ToolCallDelta(index=one), ToolCallDelta(index=other):
            return one == other
    return False


def _join(run: list[Delta]) -> Delta:
    match run[0]:
        case TextDelta():
            texts = [delta for delta in run if isinstance(delta, TextDelta)]
            logprobs = tuple(chain.from_iterable(delta.logprobs for delta in texts))
            return TextDelta("".join(delta.text for delta in texts), logprobs)
        case ReasoningDelta():
            return ReasoningDelta("".join(delta.text for delta in run if isinstance(delta, ReasoningDelta)))
        case ToolCallDelta(index=index):
            return ToolCallDelta(index, "".join(delta.arguments for delta in run if isinstance(delta, ToolCallDelta)))
        case single:
            return single


class Mailbox:
    """A queue of one answer's steps with one reader; the worker's pipe fills it.

    `num_tokens` counts the answer's tokens. It starts with the number that another backend has already delivered.
    """

    def __init__(self, max_steps: int = _DEFAULT_MAX_STEPS, *, num_tokens: int = 0) -> None:
        self._max_steps = max_steps
        self._steps: deque[Step] = deque()
        self.num_tokens = num_tokens
        self._error: EdgeAgentError | None = None
        self._has_ended = False
        self._arrival: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, step: Step) -> None:
        """Add a step, and merge the pending steps if there are too many. Steps after the end are ignored."""
        if self._has_ended:
            return
        self.num_tokens += len(step.tokens)
        if len(self._steps) >= self._max_steps:
            merged = merge_steps(list(self._steps))
            self._steps.clear()
            self._steps.append(merged)
        self._steps.append(step)
        self._has_ended = bool(step.deltas) and isinstance(step.deltas[-1], Finished)
        self._wake()

    def fail(self, error: EdgeAgentError) -> None:
        """End the answer with an error, which `next` raises after the pending steps. Do nothing after the end."""
        if self._has_ended:
            return
        self._has_ended = True
        self._error = error
        self._wake()

    async def next(self) -> Step:
        """Wait for the next step; raise the error that ended the answer. Do not call this after the Finished step."""
        while not self._steps:
            if self._error is not None:
                raise self._error
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._steps.popleft()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
