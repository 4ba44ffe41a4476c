"""POST /edgeagent/choose: how likely is each of a closed set of answers? Nothing is generated.

The model's worker computes all choices behind one prompt, whose beginning is usually cached, as one batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Discriminator, Field, Tag

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses.body import ResponseCreate, read_create
from edgeagent.api.responses.items import InputBody
from edgeagent.api.responses.routes import open_turn, why_kept
from edgeagent.api.wire import sse
from edgeagent.api.wire.body import OwnerBody, read_body, validate
from edgeagent.api.wire.fields import EdgeagentBody, ModelName, Name
from edgeagent.api.wire.generation import (
    MIN_LOGPROB,
    DeliveryTime,
    LlamaTimings,
    ResponseUsage,
    Run,
    edgeagent_body,
    put_headers,
    responses_usage,
    timings_body,
)
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.backends.base import Models
from edgeagent.credentials.keys import Scope
from edgeagent.errors import BackendUnavailable, EdgeAgentError, InvalidRequest, NotSupported
from edgeagent.service.live_service import LiveService
from edgeagent.service.service import status_of
from edgeagent.types import (
    ChatPrompt,
    ChoiceScores,
    Finished,
    GenerateRequest,
    Sink,
    Started,
    Step,
    Usage,
    replace,
)

MIN_CHOICES, MAX_CHOICES = 2, 256

ChoiceText = Annotated[str, Field(min_length=1, max_length=300)]


class Choice(OwnerBody):
    """One of the answers: its text as the model would write it, and the id by which the client knows it."""

    id: Annotated[Name, Field(min_length=1)]
    text: ChoiceText


_AnyChoice = Annotated[
    Annotated[ChoiceText, Tag("#text")] | Annotated[Choice, Tag("#choice")],
    Discriminator(
        lambda value: {str: "#text", dict: "#choice"}.get(type(value)),
        custom_error_type="choice",
        custom_error_message="must be a string or an object with id and text",
    ),
]


class ChooseBody(InputBody):
    """A closed set of answers to an input. The input, the instructions and the conversation are those of a response."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName | None = None
    instructions: str | None = None
    previous_response_id: Annotated[Name, Field(min_length=1)] | None = None
    store: Annotated[
        bool | None, Field(description="False: the prompt is not kept on disk. Nothing else is stored in any case.")
    ] = None
    choices: Annotated[
        list[_AnyChoice],
        Field(
            fail_fast=True,
            min_length=MIN_CHOICES,
            max_length=MAX_CHOICES,
            description="The answers as the model would write them. The id of a string is the string itself.",
        ),
    ]
    calibrate: Annotated[
        bool | None,
        Field(
            description="Compare with how likely each answer is after an empty input, so that an answer is not chosen "
            "because it is short or common. The empty input is computed beside the other. Default: false."
        ),
    ] = None
    edgeagent: EdgeagentBody | None = None

    def named(self) -> list[tuple[str, str]]:
        """Return the id and text of each choice; raise InvalidRequest if two have the same id or the same text."""
        named = [(each, each) if isinstance(each, str) else (each.id, each.text) for each in self.choices]
        for field, values in zip(("id", "text"), zip(*named, strict=True), strict=True):
            first: dict[str, int] = {}
            for index, value in enumerate(values):
                if (other := first.setdefault(value, index)) != index:
                    raise InvalidRequest(
                        f"choices[{index}] has the same {field} as choices[{other}]; send each choice once",
                        param=f"choices[{index}]",
                    )
        return named


class Chance(Shape):
    """How likely a choice is among the choices.

    `logprob`: the natural log of the probability that the model answers with exactly this text and then ends.
    `empty_logprob`: the same after an empty input, if the choices are calibrated.
    """

    id: str
    text: str
    probability: float
    logprob: float
    empty_logprob: NotRequired[float]


class ChoiceUsage(ResponseUsage):
    """Token counts of the prompts, and of the choices that were computed behind each of them."""

    choice_tokens: int


class Chosen(Shape):
    """The likeliest choice, and how likely each one is: the likeliest first. The probabilities sum to 1."""

    id: str
    object: Literal["edgeagent.choice"]
    model: str
    choice: str
    probabilities: list[Chance]
    usage: ChoiceUsage
    timings: LlamaTimings
    edgeagent: Run


class _Scored(Sink):
    """The sink of a request with choices."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.scores: ChoiceScores | None = None
        self.finished: Finished | None = None
        self.delivery_time = DeliveryTime()

    def put(self, step: Step) -> None:
        for delta in step.deltas:
            match delta:
                case Started():
                    self.started = delta
                case ChoiceScores():
                    self.scores = delta
                    self.delivery_time.add(step.at_s)
                case Finished():
                    self.finished = delta
                case _:
                    pass


routes = Routes()


@routes.add("POST /edgeagent/choose", Scope.INFER, "daemon", body=ChooseBody, answer=Chosen)
async def choose(request: Request) -> JSONResponse:
    """Return how likely each of a closed set of answers is, without generating text. Only local models can do it.

    A client that disconnects cancels the request.
    """
    named, is_calibrated, create = await read_body(request, _read, why_kept=lambda read: why_kept(request, read[-1]))
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    asked = replace(turn.request, choices=tuple(text for _, text in named), is_whole=True)
    _check_place(asked.model, context.service.models)
    requests = [asked, _without_input(asked)] if is_calibrated else [asked]
    scored = await sse.unless_disconnected(request.receive, _score(context.service, requests))
    response = JSONResponse(_chosen(asked, named, scored))
    put_headers(response, scored[0].started)
    return response


def _read(fields: Json) -> tuple[list[tuple[str, str]], bool, ResponseCreate]:
    """Return the id and text of each choice, whether they are calibrated, and the create of the response to choose."""
    body = validate(ChooseBody, fields)
    create = {name: value for name, value in fields.items() if name not in ("choices", "calibrate")}
    # The choices are answers, so the model must not be about to reason.
    return body.named(), bool(body.calibrate), read_create({**create, "reasoning": {"effort": "none"}})


def _check_place(model: str, models: Models) -> None:
    """Raise NotSupported if only a remote serves a model. An unknown model is refused when the request runs."""
    try:
        status = status_of(models, models.find(model))
    except EdgeAgentError:
        return
    if status is not None and status.is_remote:
        raise NotSupported(
            f"the model {model!r} runs at a remote, which cannot say how likely choices are; name a model of this "
            "machine",
            param="model",
        )


def _without_input(request: GenerateRequest) -> GenerateRequest:
    """Return a request with the same choices, whose last message is empty; raise InvalidRequest if it is no user's."""
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    if prompt.messages[-1].role != "user":
        raise InvalidRequest(
            "calibrate compares with an empty message of the user, but the last item of the input is something else; "
            "end the input with a message of the user, or send calibrate: false",
            param="calibrate",
        )
    messages = (*prompt.messages[:-1], replace(prompt.messages[-1], content="", media=()))
    return replace(request, id=f"{request.id}-empty", prompt=replace(prompt, messages=messages))


async def _score(service: LiveService, requests: Sequence[GenerateRequest]) -> list[_Scored]:
    """Run the requests, and return the scores of each. Raise the first error of any of them."""
    sinks = [_Scored() for _ in requests]
    await service.generate_all(requests, sinks)
    if any(sink.finished is None or sink.scores is None for sink in sinks):
        raise BackendUnavailable("nothing was chosen: the daemon is stopping, or the request was cancelled")
    return sinks


def probabilities_of(logprobs: Sequence[float], empty: Sequence[float] | None = None) -> list[float]:
    """Return the probability of each choice among the choices.

    Let x be the prompt, x0 the same prompt with an empty input, and log P(c | x) the sum of the log probabilities of
    the tokens of choice c, and of the end of the answer, behind x. Then the probability of c is

    - exp(log P(c | x)) / (sum over all choices c' of exp(log P(c' | x))), or, if it is calibrated,
    - exp(log P(c | x) - log P(c | x0)) / (sum over all choices c' of exp(log P(c' | x) - log P(c' | x0))).

    The difference is the pointwise mutual information of choice and input, PMI-DC with x0 as the domain premise:
    Holtzman et al. 2021, "Surface Form Competition: Why the Highest Probability Answer Isn't Always Right". It gives
    the same order as contextual calibration with W = diag(P(c | x0))^-1 and b = 0: Zhao et al. 2021, "Calibrate Before
    Use: Improving Few-Shot Performance of Language Models".
    """
    scores = list(logprobs)
    for index, before in enumerate(empty or ()):
        if logprobs[index] > MIN_LOGPROB:  # what the model can never write is not likely because of that
            scores[index] -= before
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def _chosen(request: GenerateRequest, named: Sequence[tuple[str, str]], scored: Sequence[_Scored]) -> Chosen:
    found = [each.scores for each in scored if each.scores is not None]
    logprobs = [[max(logprob, MIN_LOGPROB) for logprob in scores.logprobs] for scores in found]
    empty = logprobs[1] if len(logprobs) > 1 else None
    chances = [
        Chance(id=choice_id, text=text, probability=probability, logprob=logprob)
        for (choice_id, text), probability, logprob in zip(
            named, probabilities_of(logprobs[0], empty), logprobs[0], strict=True
        )
    ]
    for chance, before in zip(chances, empty or (), strict=False):
        chance["empty_logprob"] = before
    chances.sort(key=lambda chance: -chance["probability"])
    ends = [each.finished for each in scored if each.finished is not None]
    usage = Usage(sum(end.usage.num_prompt_tokens for end in ends), sum(end.usage.num_cached_tokens for end in ends))
    num_tokens = sum(scores.num_tokens for scores in found)
    return {
        "id": request.id,
        "object": "edgeagent.choice",
        "model": request.model,
        "choice": chances[0]["id"],
        "probabilities": chances,
        "usage": {**responses_usage(usage), "choice_tokens": num_tokens},
        "timings": timings_body(ends[0].usage, ends[0].timings),
        "edgeagent": edgeagent_body(ends[0].timings, scored[0].delivery_time.mean_ms),
    }
