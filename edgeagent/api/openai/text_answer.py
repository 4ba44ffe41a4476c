"""A completion of raw text while it is generated: the choices as one body, or as the chunks of a stream.

The module has OpenAI's older shapes. It does not use sockets, and does not depend on where the deltas come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NotRequired

from edgeagent.api.openai.answer import Answer, ChoiceSoFar, Chunks, Ending, GenerationMetrics, finish_reason
from edgeagent.api.openai.text_body import CompletionCreate
from edgeagent.api.wire.generation import ChatUsage, TextLogprobs, legacy_logprobs
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.types import Finished, PromptProgress, PromptText, Started, Step, TextDelta, TokenLogprob, replace


class TextChoice(Shape):
    """One of the generated texts."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Ending | None
    tokens: NotRequired[list[int]]


class TextCompletion(GenerationMetrics):
    """A whole completion of raw text. A stream instead sends objects of the same form as events, then `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: ChatUsage


@dataclass(slots=True)
class Piece:
    """The text of a choice, or the part of it that one step adds. `tokens`: the ids of the generated tokens.

    `logprobs`: one entry for each token of the text, if log probabilities are computed. If the prompt is echoed,
    `logprobs` includes the prompt's tokens, but `tokens` does not.
    """

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class TextSoFar(ChoiceSoFar):
    """One choice while it is generated. If the prompt is echoed, the prompt is the beginning of the choice's text."""

    parts: list[Piece] = field(default_factory=list)
    num_echoed_chars: int = 0
    num_echoed_tokens: int = 0

    def take(self, step: Step) -> Piece:
        """Add a step to the choice, and return the part that the step adds."""
        piece = Piece(tokens=list(step.tokens))
        for delta in step.deltas:
            match delta:
                case PromptText(text, scored):
                    piece.text += text
                    piece.logprobs += scored
                    self.num_echoed_chars += len(text)
                    self.num_echoed_tokens += len(scored)
                case TextDelta(text, scored):
                    piece.text += text
                    piece.logprobs += (replace(token, start=token.start + self.num_echoed_chars) for token in scored)
                case Started():
                    self.started = self.started or delta
                case Finished():
                    self.finished = delta
                case _:
                    pass
        self.parts.append(piece)
        return piece

    def whole(self) -> Piece:
        """Return the whole text so far, with its tokens and log probabilities."""
        return Piece(
            "".join(part.text for part in self.parts),
            [token for part in self.parts for token in part.logprobs],
            [token for part in self.parts for token in part.tokens],
        )

    def mean_logprob(self) -> float:
        """Return the mean log probability of the generated tokens, not of an echoed prompt; 0 if there are none."""
        own = [max(token.logprob, -1e9) for token in self.whole().logprobs[self.num_echoed_tokens :]]
        return math.fsum(own) / max(1, len(own))


class TextAnswer(Answer):
    """A completion of raw text while it is generated."""

    choices: list[TextSoFar]
    has_reasoning = False

    def __init__(self, completion_id: str, completion: CompletionCreate) -> None:
        first = completion.groups[0]
        super().__init__(completion_id, first[0].model, [TextSoFar() for _ in completion.requests], len(first))
        self.completion = completion

    def body(self) -> object:
        """Return the whole completion, with the best choices of each prompt.

        Raise BackendUnavailable if one of these choices was cancelled.
        """
        size = self._num_of_a_prompt
        groups = (self.choices[start : start + size] for start in range(0, len(self.choices), size))
        kept = [choice for group in groups for choice in self._best(group)]
        choices = [self.choice_body(index, choice.whole(), choice.end()) for index, choice in enumerate(kept)]
        body: TextCompletion = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": self.usage(),
            **self.generation_metrics(kept[0]),
        }
        return body

    def choice_body(self, index: int, piece: Piece, finished: Finished | None = None) -> TextChoice:
        """Return a choice's JSON. `piece`: its text, or what a step adds. `finished`: None if the choice goes on."""
        num_alternatives = self.completion.num_alternatives
        body: TextChoice = {
            "text": piece.text,
            "index": index,
            "logprobs": None if num_alternatives is None else legacy_logprobs(piece.logprobs, num_alternatives),
            "finish_reason": None if finished is None else finish_reason(finished),
        }
        if self.completion.delivery.has_tokens:
            body["tokens"] = piece.tokens
        return body

    def _best(self, group: Sequence[TextSoFar]) -> list[TextSoFar]:
        if self.completion.num_kept == len(group):
            return list(group)
        return sorted(group, key=lambda choice: -choice.mean_logprob())[: self.completion.num_kept]


class TextChunks(Chunks):
    """The chunks of a streamed completion. The chunk with the finish reason has no text."""

    _answer: TextAnswer

    def __init__(self, answer: TextAnswer) -> None:
        super().__init__(answer, answer.completion.delivery, "text_completion")

    def of(self, index: int, step: Step) -> list[Json]:
        choice, progress = self._answer.choices[index], self._progress[index]
        progress.add_step(step)
        chunks = [
            {**self._chunk(index, Piece()), "prompt_progress": progress.prompt_progress(delta)}
            for delta in step.deltas
            if isinstance(delta, PromptProgress)
        ]
        piece = choice.take(step)
        if piece.text or piece.logprobs or (piece.tokens and self._delivery.has_tokens):
            chunks.append(self._chunk(index, piece))
        if choice.finished is not None:
            chunks.append(self._ended(self._chunk(index, Piece(), choice.finished), choice))
        return self._with_start(index, self.timed(index, chunks))

    def _chunk(self, index: int, piece: Piece, finished: Finished | None = None) -> Json:
        body = self._answer.choice_body(index, piece, finished)
        if not piece.logprobs:
            body["logprobs"] = None
        return {**self._head, "choices": [body], **self._tail}
