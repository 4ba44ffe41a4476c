"""The bodies of POST /completion and POST /infill, checked and turned into requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edgeagent.api.openai.text_body import CompletionCreate, TextsOrTokens, groups_of, read_prompts
from edgeagent.api.wire.fields import MaxTokens, Name, Settings, Stops, validate
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.llama_fields import ExtendedBody, NumChoices
from edgeagent.api.wire.shape import Json
from edgeagent.types import Prompt, TextFormat, TextPrompt, replace

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

    prompt: TextsOrTokens


class InfillFile(Settings):
    """Another file that the model reads first."""

    text: str
    filename: Name | None = None


class InfillBody(GenerationBody):
    """A text with a gap to fill. `prompt` is the beginning of what fills the gap."""

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
    """Check a body of /completion, and return the completion. Raise InvalidRequest or NotSupported.

    `completion_id`: the id of the first request. `default_model`: the model if the body names none. `partition`: the
    client's partition of the prefix cache.
    """
    body = validate(LlamaCompletionBody, fields)
    return _create(body, read_prompts(body.prompt), completion_id, default_model, partition)


def read_infill(fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> LlamaCompletionCreate:
    """Check a body of /infill as `read_llama_completion` does."""
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


def _infill_notices(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of an editor's fields that have no effect here."""
    yield from (f"{name} has no effect" for name in _WITHOUT_EFFECT if fields.get(name))
    samplers = fields.get("samplers")
    if isinstance(samplers, list) and _INFILL_SAMPLER in samplers:
        yield f"the sampler {_INFILL_SAMPLER} has no effect"


KNOWN = KnownFields.of(LlamaCompletionBody, "user")
KNOWN_INFILL = KnownFields.of(InfillBody, *_WITHOUT_EFFECT, "user", notices=(_infill_notices,))
