"""llama-server's request fields that OpenAI's APIs do not have.

Most of these fields work as in llama-server. A field that is not supported is refused if ignoring it would change the
answer. Three harmless fields are accepted without effect. `id_slot`: a prefix is found in any slot. `n_keep`: no
context is shifted. `response_fields`: the body always has all fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from pydantic import Field

from edgeagent.api.wire.body import Settings, between
from edgeagent.api.wire.fields import (
    MAX_INT32,
    EdgeagentBody,
    MaxTokens,
    ModelName,
    Name,
    NumTopLogprobs,
    SamplingBody,
    Schema,
    with_adapter,
)
from edgeagent.api.wire.latency import asked_latency, with_own_fields
from edgeagent.api.wire.request_id import NUM_HOPS
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    AnswerPolicy,
    GenerateRequest,
    JsonSchemaFormat,
    OutputFormat,
    Prompt,
    SamplingParams,
    TextFormat,
    replace,
)

MAX_CHOICES = 8
_NO_PINGS_S = 86_400.0


# The chain of samplers in its fixed order, each with the parameters under which it does nothing.
_CHAIN: dict[str, Json] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
# llama-server's other samplers. They do nothing without parameters, and here they have no parameters.
_IDLE = ("dry", "top_n_sigma", "typ_p", "typical_p", "xtc")

NumChoices = Annotated[int, between(1, MAX_CHOICES)]


T_co = TypeVar("T_co", covariant=True)


class ReadCompletion(Protocol[T_co]):
    """Checks a body, and returns the completion. Raises InvalidRequest or NotSupported, which names the field.

    `completion_id`: the id of the first request; the ids of the others begin with it. `default_model`: the model if the
    body names none. `partition`: the client's partition of the prefix cache.
    """

    def __call__(self, fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> T_co: ...


class StreamOptions(Settings):
    """The field `stream_options`. With `include_usage`, a last chunk of the stream has the token counts."""

    include_usage: bool | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is written.

    `is_usage_streamed`: a last chunk of the stream has the token counts. `has_timings`: each chunk has the timings so
    far. `counts_tokens`: each chunk has the number of tokens so far, for another edgeagent, which may have to continue
    the answer elsewhere. `has_tokens`: the answer has the ids of its tokens. `ping_interval_s`: a comment is sent if a
    stream is silent for this long; None means the default.
    """

    is_streamed: bool
    is_usage_streamed: bool
    has_timings: bool
    counts_tokens: bool
    has_tokens: bool
    ping_interval_s: float | None


class ExtendedBody(SamplingBody):
    """The fields that chat completions and completions share, llama-server's among them; all may be null."""

    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n_predict: MaxTokens | None = None
    n_probs: NumTopLogprobs | None = None
    post_sampling_probs: bool | None = None
    cache_prompt: bool | None = None
    store: bool | None = None
    no_store: bool | None = None
    id_slot: Annotated[int, between(-1, MAX_INT32)] | None = None
    n_keep: Annotated[int, between(-1, MAX_INT32)] | None = None
    t_max_predict_ms: int | None = None
    return_progress: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    sse_ping_interval: Annotated[int, between(-1, MAX_INT32)] | None = None
    json_schema: Schema | None = None
    grammar: str | None = None
    samplers: Annotated[list[str], Field(fail_fast=True, max_length=16)] | None = None
    lora: Annotated[list[Json], Field(fail_fast=True)] | None = None
    service_tier: Name | None = None
    edgeagent: EdgeagentBody | None = None

    def check_supported(self) -> None:
        """Raise NotSupported if a field is set that is not supported and would change the answer."""
        refused = {
            "grammar": (self.grammar, "grammars are not taken; describe the output with json_schema"),
            "lora": (self.lora, "an adapter is chosen by its name: model MODEL+ADAPTER, or edgeagent.adapter"),
            "post_sampling_probs": (self.post_sampling_probs, "probabilities are those before sampling"),
            "t_max_predict_ms": (max(0, self.t_max_predict_ms or 0), "bound the answer with max_tokens, or hang up"),
        }
        for name, (value, advice) in refused.items():
            if value:
                raise NotSupported(f"{name} is not supported: {advice}", param=name)

    def sampling(self) -> SamplingParams:
        """Return the checked sampling parameters. A sampler that the field `samplers` leaves out is disabled.

        Raise NotSupported if `samplers` names unknown samplers or has another order than the fixed one. Raise
        InvalidRequest for a wrong `logit_bias`.
        """
        params = super().sampling()
        return params if self.samplers is None else replace(params, **_without(self.samplers))

    def request(self, request_id: str, default_model: str, partition: str, prompt: Prompt) -> GenerateRequest:
        """Return the request that generates from a prompt with these settings.

        Raise the errors of `sampling` and `asked_latency`.

        With `store: false` or `no_store: true`, the prefix cache writes nothing to disk, and no answer is kept.
        """
        latency = asked_latency(self.service_tier, self.edgeagent)
        is_cached = self.cache_prompt is not False
        is_kept = self.store is not False and not self.no_store
        request = GenerateRequest(
            id=request_id,
            model=with_adapter(self.model or default_model, self.edgeagent),
            prompt=prompt,
            sampling=self.sampling(),
            reports_progress=bool(self.stream) and bool(self.return_progress),
        )
        return with_own_fields(
            request, latency, self.edgeagent, partition=partition, is_cached=is_cached, is_kept=is_kept
        )

    def schema_format(self, chosen: OutputFormat) -> OutputFormat:
        """Return the output format of the field `json_schema`; `chosen` if the request does not have this field.

        `chosen`: the format of OpenAI's `response_format`. Raise InvalidRequest if both fields set a format.
        """
        if self.json_schema is None:
            return chosen
        if not isinstance(chosen, TextFormat):
            raise InvalidRequest("response_format and json_schema exclude each other", param="json_schema")
        return JsonSchemaFormat(self.json_schema, strict=False)

    def limit(self, *openai: int | None) -> int | None:
        """Return the most tokens to generate; None: no limit.

        The first of the values `openai` (from OpenAI's fields) that is set counts, otherwise n_predict.
        """
        given = next((count for count in (*openai, self.n_predict) if count is not None), None)
        return None if given == -1 else given

    def delivery(self) -> AnswerForm:
        """Return how the answer is to be written."""
        interval = self.sse_ping_interval
        return AnswerForm(
            is_streamed=bool(self.stream),
            is_usage_streamed=bool(self.stream_options and self.stream_options.include_usage),
            has_timings=bool(self.timings_per_token),
            counts_tokens=NUM_HOPS.get() > 0,
            has_tokens=bool(self.return_tokens),
            ping_interval_s=None if interval is None else (_NO_PINGS_S if interval < 1 else float(interval)),
        )


def choices_of(request: GenerateRequest, num: int) -> tuple[GenerateRequest, ...]:
    """Return `num` copies of a request, which differ in their ids, and in their seeds if `request` has a seed.

    Without a seed, only the first may get an answer of the answer cache. If all could, all would get the same answer.
    """
    seed = request.sampling.seed
    cache = request.cache if seed is not None else replace(request.cache, answers=AnswerPolicy.NONE)
    return (
        request,
        *(
            replace(
                request,
                id=f"{request.id}-{index}",
                cache=cache,
                sampling=request.sampling if seed is None else replace(request.sampling, seed=seed + index),
            )
            for index in range(1, num)
        ),
    )


def _without(samplers: Sequence[str]) -> Json:
    """Return the parameters that disable the samplers which are not in `samplers`.

    Raise NotSupported for an unknown or repeated name, or if the order is not that of _CHAIN.
    """
    names = [name for name in samplers if name not in _IDLE]
    order = [name for name in _CHAIN if name in names]
    if names != order:
        raise NotSupported(
            f"samplers must be some of {', '.join(_CHAIN)}, in this order; not {', '.join(names)!r:.200}",
            param="samplers",
        )
    return {key: value for name, neutral in _CHAIN.items() if name not in names for key, value in neutral.items()}
