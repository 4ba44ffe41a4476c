"""An answer that a lane generates before its client asks for it: a voice assistant's, while it waits for more words.

A revision of a message (`generate: false`, `edgeagent: {"ahead": true}`) begins it once its prompt is computed. The
next create on the lane takes it if it asks for the same, and drops it otherwise. Until then nothing of it is sent or
stored.
"""

from __future__ import annotations

from edgeagent.api.wire.generation import is_wait
from edgeagent.service.client_sink import merge_steps
from edgeagent.types import (
    AHEAD_TOKENS,
    AnswerSoFar,
    Finished,
    FinishReason,
    GenerateRequest,
    Need,
    ReasoningDelta,
    Sink,
    Started,
    Step,
    TextDelta,
    Tier,
    replace,
)


class AheadAnswer(Sink):
    """The answer to a revision, as far as it is generated.

    `request`: what is generated, at most AHEAD_TOKENS.
    """

    def __init__(self, revision: GenerateRequest, answer_id: str) -> None:
        limit = AHEAD_TOKENS if revision.max_tokens is None else min(revision.max_tokens, AHEAD_TOKENS)
        self.request = replace(revision, id=answer_id, prefill_only=False, max_tokens=limit)
        self._revision = revision
        self._steps: list[Step] = []
        self._is_over = False

    def put(self, step: Step) -> None:
        """Keep a step. The last one of an answer that was cut off ends in text that the rest may continue otherwise."""
        if self._is_over or is_wait(step.deltas):
            return
        last = step.deltas[-1] if step.deltas else None
        self._is_over = isinstance(last, Finished)
        if isinstance(last, Finished):
            limit = self._revision.max_tokens
            is_own_limit = limit is not None and limit <= AHEAD_TOKENS
            is_cut = last.reason is FinishReason.CANCELLED or (last.reason is FinishReason.LENGTH and not is_own_limit)
            if is_cut:
                return
        self._steps.append(step)

    def end(self) -> None:
        self._is_over = True

    def answers(self, request: GenerateRequest) -> bool:
        """Whether a request asks for this answer: it has the same model, prompt, sampling, format and limits."""
        return _content(request) == _content(self._revision)

    @property
    def revision_id(self) -> str:
        """The id of the revision's response."""
        return self._revision.id

    @property
    def num_tokens(self) -> int:
        """How many tokens have their text in what is kept."""
        return sum(step.num_delivered for step in self._steps)

    @property
    def step(self) -> Step:
        """All that is kept, as one step without a time. It ends in Finished if nothing is left to generate."""
        return replace(merge_steps(self._steps), at_s=0.0)

    @property
    def so_far(self) -> AnswerSoFar:
        """What is kept, for the worker that generates the rest."""
        deltas = [delta for step in self._steps for delta in step.deltas]
        started = next((delta for delta in deltas if isinstance(delta, Started)), Started(0, 0))
        return AnswerSoFar(
            text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
            reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
            num_tokens=self.num_tokens,
            tokens=tuple(token for step in self._steps for token in step.tokens),
            step_lengths=tuple(len(step.tokens) for step in self._steps if step.tokens),
            sha256=started.placement.sha256 if started.placement is not None else "",
        )


def _content(request: GenerateRequest) -> GenerateRequest:
    """Return a request without what does not change its answer: its id, tier, times, and how much is computed."""
    need = Need(max_prompt_tokens=request.need.max_prompt_tokens)
    request = replace(request, timeout_s=None, waited_s=0.0, need=need)
    return replace(request, id="", tier=Tier.INTERACTIVE, prefill_only=False, is_ahead=False)
