"""The body of POST /v1/completions: prompts as text or token ids, checked and turned into requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import WithJsonSchema

from edgeagent.api.wire.body import validate
from edgeagent.api.wire.fields import MAX_INT32, MaxTokens, NumTopLogprobs, Stops
from edgeagent.api.wire.llama_fields import AnswerForm, ExtendedBody, NumChoices, choices_of
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import GenerateRequest, Prompt, TextFormat, TextPrompt, TokenPrompt, replace

MAX_PROMPTS = 128
MAX_PROMPT_TOKENS = 1 << 20


_IDS = {"type": "array", "items": {"type": "integer"}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
TextsOrTokens = Annotated[
    str | list[Any], WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS}]})
]
"""One text, one list of token ids, a list of texts, or a list of lists of token ids."""


class CompletionBody(ExtendedBody):
    """The body of a completion of raw text. All fields but the prompt may be null. Unknown fields are ignored."""

    without_effect = ("response_fields", "user")

    prompt: TextsOrTokens
    suffix: str | None = None
    echo: bool | None = None
    n: NumChoices | None = None
    best_of: NumChoices | None = None
    max_tokens: MaxTokens | None = None
    stop: Stops | None = None
    logprobs: NumTopLogprobs | None = None


@dataclass(frozen=True, slots=True)
class CompletionCreate:
    """A checked completion: for each prompt a group of requests, one for each choice to generate.

    `num_kept`: how many choices of each group the answer has; they are the best ones. `num_alternatives`: how many
    alternatives the answer's `logprobs` list for each token; None if the answer has no `logprobs`.
    """

    groups: tuple[tuple[GenerateRequest, ...], ...]
    num_kept: int
    num_alternatives: int | None
    delivery: AnswerForm

    @property
    def requests(self) -> tuple[GenerateRequest, ...]:
        """Every request, group by group."""
        return tuple(request for group in self.groups for request in group)


def read_completion(fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> CompletionCreate:
    """Check the body of a completion of raw text, and return it: a ReadCompletion."""
    body = validate(CompletionBody, fields)
    body.check_supported()
    prompts = read_prompts(body.prompt, body.suffix or None)
    if body.suffix and body.echo:
        raise NotSupported("echo and suffix exclude each other", param="echo")
    num_kept, num_tried = _read_counts(body)
    num_alternatives = body.logprobs if body.logprobs is not None else body.n_probs or None
    limit = body.limit(body.max_tokens)
    if limit is None and body.max_tokens is None and body.n_predict is None:
        limit = 16  # OpenAI's default: raw text has no end of a turn at which the model would stop
    request = replace(
        body.request(completion_id, default_model, partition, prompts[0]),
        format=body.schema_format(TextFormat()),
        max_tokens=limit,
        stop=tuple(body.stop or ()),
        # The best choices are those whose tokens have the highest probability.
        logprobs=0 if num_alternatives is None and num_tried > num_kept else num_alternatives,
        echo=bool(body.echo),
    )
    return CompletionCreate(groups_of(request, prompts, num_tried), num_kept, num_alternatives, body.delivery())


def groups_of(
    request: GenerateRequest, prompts: Sequence[Prompt], num_choices: int
) -> tuple[tuple[GenerateRequest, ...], ...]:
    """Return for each prompt `num_choices` copies of a request. The first copy keeps the id, and the others extend it.

    Raise InvalidRequest for too many copies.
    """
    if num_choices * len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(
            f"{len(prompts)} prompts with {num_choices} answers each are too many; at most {MAX_PROMPTS} at a time",
            param="prompt",
        )
    ids = (request.id, *(f"{request.id}-p{index}" for index in range(1, len(prompts))))
    return tuple(
        choices_of(replace(request, id=each_id, prompt=prompt), num_choices)
        for each_id, prompt in zip(ids, prompts, strict=True)
    )


def _read_counts(body: CompletionBody) -> tuple[int, int]:
    """Return how many choices of each prompt to send, and how many to generate; raise InvalidRequest."""
    num_kept = body.n or 1
    num_tried = body.best_of or num_kept
    if num_tried < num_kept:
        raise InvalidRequest(f"best_of is {num_tried}; it must be at least n, which is {num_kept}", param="best_of")
    if num_tried > num_kept and body.stream:
        raise InvalidRequest("best_of over n cannot be streamed: which are best is known at the end", param="best_of")
    return num_kept, num_tried


def read_prompts(raw: str | list[Any], suffix: str | None = None) -> list[Prompt]:
    """Return the prompts of the field `prompt`; raise InvalidRequest or NotSupported.

    `suffix`: the text after the gap that follows each prompt; None if there is no gap.
    """
    match raw:
        case str() | [int(), *_]:
            return [_read_prompt(raw, suffix, "prompt")]
        case []:
            raise InvalidRequest("prompt must be text, a list of texts, or token ids; it is empty", param="prompt")
        case list(items):
            if len(items) > MAX_PROMPTS:
                raise InvalidRequest(f"prompt holds {len(items)} prompts; at most {MAX_PROMPTS}", param="prompt")
            return [_read_prompt(item, suffix, f"prompt[{index}]") for index, item in enumerate(items)]


def _read_prompt(raw: object, suffix: str | None, path: str) -> Prompt:
    match raw:
        case str():
            # The text is the client's own from end to end, so control tokens in it are meant as such.
            return TextPrompt(raw, suffix, parse_special=True)
        case list() if raw:
            if suffix is not None:
                raise NotSupported("suffix needs a prompt of text, not token ids", param="suffix")
            return TokenPrompt(read_tokens(raw, path))
    raise InvalidRequest(f"{path} must be text or a list of token ids", param=path)


def read_tokens(raw: Sequence[object], path: str) -> tuple[int, ...]:
    """Return `raw` as token ids; raise InvalidRequest for too many ids, or for a value that cannot be an id.

    `path`: the field's name, for the error. Only the worker checks whether the model has these tokens.
    """
    if len(raw) > MAX_PROMPT_TOKENS:
        raise InvalidRequest(f"{path} holds {len(raw)} tokens; at most {MAX_PROMPT_TOKENS}", param=path)
    for token in raw:
        if type(token) is not int or not 0 <= token <= MAX_INT32:
            raise InvalidRequest(f"{path} must hold token ids, integers from 0; not {token!r:.80}", param=path)
    return tuple(raw)  # type: ignore[arg-type]
