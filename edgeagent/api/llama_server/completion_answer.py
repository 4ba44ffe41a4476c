"""A completion in llama-server's own shape while it is generated: as one body, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NotRequired, cast

from edgeagent.api.llama_server.completion_body import LlamaCompletionCreate
from edgeagent.api.openai.answer import Chunks, GenerationMetrics, finish_reason
from edgeagent.api.openai.text_answer import Piece, TextAnswer, TextSoFar
from edgeagent.api.wire.logprobs import LlamaScored, llama_logprobs
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.types import Finished, PromptProgress, Step

NO_SLOT = -1
"""The slot of every answer. Requests have no slots of their own: a cached prefix serves all of them."""

StopType = Literal["eos", "limit", "word"]


class LlamaChunk(Shape):
    """The text of a completion, or what one event of a stream adds to it.

    `tokens`: the ids of the tokens; without a stream, only if `return_tokens` is set. `tokens_predicted` and
    `tokens_evaluated`: the numbers of output and prompt tokens.
    """

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[LlamaScored]]


class LlamaCompletion(LlamaChunk, GenerationMetrics):
    """A whole completion, and the last event of a stream, which has no text.

    `stop_type`: the model ended the answer (eos), or its limit did, or the stop string `stopping_word`. `truncated`:
    the context was full. `tokens_cached`: prompt tokens that were not computed again.
    """

    model: str
    stop_type: StopType
    stopping_word: str
    has_new_line: bool
    truncated: bool
    tokens_cached: int


class LlamaAnswer(TextAnswer):
    """A completion while it is generated."""

    def __init__(self, completion_id: str, create: LlamaCompletionCreate) -> None:
        super().__init__(completion_id, create.completion)
        self._response_fields = create.response_fields

    def body(self) -> object:
        """Return the whole completion, or a list of them if there are several.

        Raise BackendUnavailable if one of them was cancelled.
        """
        has_tokens = self.completion.delivery.has_tokens
        bodies: list[Json] = []
        for index, choice in enumerate(self.choices):
            whole = choice.whole()
            bodies.append(self.ended(index, choice, whole if has_tokens else Piece(whole.text, whole.logprobs)))
        return bodies[0] if len(bodies) == 1 else bodies

    def ended(self, index: int, choice: TextSoFar, piece: Piece) -> Json:
        """Return the JSON of a choice that has ended, with `piece` as its text. Raise BackendUnavailable."""
        finished = choice.end()
        body: LlamaCompletion = {
            **chunk_body(index, piece, finished.usage.num_output_tokens, finished.usage.num_prompt_tokens),
            "stop": True,
            "model": self.model,
            "stop_type": _stop_type(finished),
            "stopping_word": finished.stop,
            "has_new_line": any("\n" in part.text for part in choice.parts),
            "truncated": self._is_truncated(index, finished),
            "tokens_cached": finished.usage.num_cached_tokens,
            **self.generation_metrics(choice),
        }
        fields = cast("Json", body)
        return fields if self._response_fields is None else _chosen(fields, self._response_fields)

    def _is_truncated(self, index: int, finished: Finished) -> bool:
        limit = self.completion.requests[index].max_tokens
        return _stop_type(finished) == "limit" and (limit is None or finished.usage.num_output_tokens < limit)


class LlamaChunks(Chunks):
    """The events of a streamed completion. The last one of each choice has its measurements, and nothing follows it."""

    _answer: LlamaAnswer
    end_mark = b""

    def __init__(self, answer: LlamaAnswer) -> None:
        super().__init__(answer, answer.completion.delivery, "")

    def of(self, index: int, step: Step) -> list[Json]:
        """Convert a step of the choice `index` into events; raise BackendUnavailable if the choice was cancelled."""
        choice, progress = self._answer.choices[index], self._progress[index]
        progress.add_step(step)
        piece = choice.take(step)
        timings = progress.timings()
        counts = timings["predicted_n"], progress.started.num_prompt_tokens
        told: Json = {"timings": timings} if self._delivery.has_timings else {}
        chunks: list[Json] = [
            {**chunk_body(index, Piece(), *counts), **told, "prompt_progress": progress.prompt_progress(delta)}
            for delta in step.deltas
            if isinstance(delta, PromptProgress)
        ]
        if piece.text or piece.logprobs or piece.tokens:
            chunks.append({**chunk_body(index, piece, *counts), **told})
        if choice.finished is not None:
            chunks.append(self._answer.ended(index, choice, Piece()))
        return self._with_start(index, chunks)

    def closing(self) -> list[Json]:
        """Return an empty list: the last event of each choice has its token counts."""
        return []


def chunk_body(index: int, piece: Piece, num_output: int, num_prompt: int) -> LlamaChunk:
    """Return the JSON of a text, or of what a step adds to it."""
    body: LlamaChunk = {
        "index": index,
        "content": piece.text,
        "tokens": piece.tokens,
        "stop": False,
        "id_slot": NO_SLOT,
        "tokens_predicted": num_output,
        "tokens_evaluated": num_prompt,
    }
    if piece.logprobs:
        body["completion_probabilities"] = llama_logprobs(piece.logprobs)
    return body


def _stop_type(finished: Finished) -> StopType:
    if finish_reason(finished) == "length":
        return "limit"
    return "word" if finished.stop else "eos"


def _chosen(body: Json, paths: Sequence[str]) -> Json:
    """Return the fields of `body` that `paths` name, each under its whole path, for example `timings/prompt_n`."""
    chosen: Json = {}
    for path in paths:
        value: object = body
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            chosen[path] = value
    return chosen
