"""POST /completion and POST /infill: completions of raw text in llama-server's own shape."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, cast

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from edgeagent.api.openai.answer import Chunks, GenerationMetrics, finish_reason
from edgeagent.api.openai.completions import TEXT_PARAMS, read_create, respond
from edgeagent.api.openai.text_answer import Piece, TextAnswer, TextSoFar
from edgeagent.api.openai.text_body import CompletionCreate, TextsOrTokens, groups_of, read_prompts
from edgeagent.api.wire.body import Body, Settings, validate
from edgeagent.api.wire.fields import MaxTokens, Name, Stops
from edgeagent.api.wire.generation import LlamaScored, llama_logprobs
from edgeagent.api.wire.llama_fields import ExtendedBody, NumChoices, ReadCompletion
from edgeagent.api.wire.route import SSE, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.credentials.keys import Scope
from edgeagent.types import Finished, Prompt, PromptProgress, Step, TextFormat, TextPrompt, replace

MAX_FILES = 256
_INFILL_SAMPLER = "infill"
# Editors send these with every request, and the answer is good without them: n_predict bounds it.
_WITHOUT_EFFECT = ("t_max_predict_ms", "t_max_prompt_ms", "n_indent")


class GenerationBody(ExtendedBody):
    """What both bodies have.

    n_cmpl: how many answers each prompt gets. response_fields: the answer has only these fields; `timings/prompt_n` is
    the field prompt_n of timings.
    """

    n_cmpl: NumChoices | None = None
    max_tokens: MaxTokens | None = None
    stop: Stops | None = None
    response_fields: Annotated[list[Name], Field(fail_fast=True, max_length=64)] | None = None


class LlamaCompletionBody(GenerationBody):
    """Texts or token ids to continue, without a chat template."""

    without_effect = ("user",)

    prompt: TextsOrTokens


class InfillFile(Settings):
    """Another file that the model reads first."""

    text: str
    filename: Name | None = None


def _infill_notices(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of an editor's fields that have no effect here."""
    yield from (f"{name} has no effect" for name in _WITHOUT_EFFECT if fields.get(name))
    samplers = fields.get("samplers")
    if isinstance(samplers, list) and _INFILL_SAMPLER in samplers:
        yield f"the sampler {_INFILL_SAMPLER} has no effect"


class InfillBody(GenerationBody):
    """A text with a gap to fill. `prompt` is the beginning of what fills the gap."""

    without_effect = ("user", *_WITHOUT_EFFECT)
    notices = (_infill_notices,)

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[InfillFile], Field(fail_fast=True, max_length=MAX_FILES)] | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class LlamaCompletionCreate:
    """A checked completion. `response_fields`: the fields that the answer has; None means all."""

    completion: CompletionCreate
    response_fields: tuple[str, ...] | None


def read_llama_completion(
    fields: Json, *, completion_id: str, default_model: str, partition: str = ""
) -> LlamaCompletionCreate:
    """Check a body of /completion, and return it: a ReadCompletion."""
    body = validate(LlamaCompletionBody, fields)
    return _create(body, read_prompts(body.prompt), completion_id, default_model, partition)


def read_infill(fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> LlamaCompletionCreate:
    """Check a body of /infill, and return it: a ReadCompletion."""
    kept = {name: value for name, value in fields.items() if name not in _WITHOUT_EFFECT}
    if isinstance(samplers := kept.get("samplers"), list):
        kept["samplers"] = [name for name in samplers if name != _INFILL_SAMPLER]
    body = validate(InfillBody, kept)
    files = tuple((file.filename or "tmp", file.text) for file in body.input_extra or ())
    prompt = TextPrompt(body.input_prefix + (body.prompt or ""), body.input_suffix, files=files)
    return _create(body, [prompt], completion_id, default_model, partition)


def _create(
    body: GenerationBody, prompts: Sequence[Prompt], completion_id: str, default_model: str, partition: str
) -> LlamaCompletionCreate:
    body.check_supported()
    request = replace(
        body.request(completion_id, default_model, partition, prompts[0]),
        format=body.schema_format(TextFormat()),
        # llama-server obeys n_predict if both limits are there.
        max_tokens=body.limit(body.n_predict, body.max_tokens),
        stop=tuple(body.stop or ()),
        logprobs=body.n_probs or None,
    )
    num_choices = body.n_cmpl or 1
    groups = groups_of(request, prompts, num_choices)
    completion = CompletionCreate(groups, num_choices, request.logprobs, body.delivery())
    return LlamaCompletionCreate(completion, None if body.response_fields is None else tuple(body.response_fields))


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
        stop, limit = _stop_type(finished), self.completion.requests[index].max_tokens
        body: LlamaCompletion = {
            **chunk_body(index, piece, finished.usage.num_output_tokens, finished.usage.num_prompt_tokens),
            "stop": True,
            "model": self.model,
            "stop_type": stop,
            "stopping_word": finished.stop,
            "has_new_line": any("\n" in part.text for part in choice.parts),
            # The context was full if less was generated than the request allows.
            "truncated": stop == "limit" and (limit is None or finished.usage.num_output_tokens < limit),
            "tokens_cached": finished.usage.num_cached_tokens,
            **self.generation_metrics(choice),
        }
        fields = cast("Json", body)
        return fields if self._response_fields is None else _chosen(fields, self._response_fields)


class LlamaChunks(Chunks):
    """The events of a streamed completion. The last one of each choice has its measurements, and nothing follows it."""

    _answer: LlamaAnswer
    end_mark = b""

    def __init__(self, answer: LlamaAnswer) -> None:
        super().__init__(answer, answer.completion.delivery, "")

    def of(self, index: int, step: Step) -> list[Json]:
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


_INFILL_PARAMS = {"input": "input_prefix", "suffix": "input_suffix", "text.format": "json_schema"}

routes = Routes()


@routes.add(
    "POST /completion",
    Scope.INFER,
    "llama-server",
    body=LlamaCompletionBody,
    answer=LlamaCompletion | list[LlamaCompletion],
    streams=SSE,
)
async def complete(request: Request) -> Response:
    """Continue one or more texts, as a stream or as one body. A client that disconnects cancels the request."""
    return await _respond(request, read_llama_completion, LlamaCompletionBody, TEXT_PARAMS)


@routes.add(
    "POST /infill",
    Scope.INFER,
    "llama-server",
    body=InfillBody,
    answer=LlamaCompletion | list[LlamaCompletion],
    streams=SSE,
)
async def infill(request: Request) -> Response:
    """Fill a gap in a text, if the model can, as a stream or as one body.

    A client that disconnects cancels the request.
    """
    return await _respond(request, read_infill, InfillBody, _INFILL_PARAMS)


async def _respond(
    request: Request, read: ReadCompletion[LlamaCompletionCreate], warns_as: type[Body], params: Mapping[str, str]
) -> Response:
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    create = await read_create(request, completion_id, read, warns_as)
    completion, answer = create.completion, LlamaAnswer(completion_id, create)
    chunks = LlamaChunks(answer) if completion.delivery.is_streamed else None
    return await respond(request, completion.requests, answer, chunks, params)
