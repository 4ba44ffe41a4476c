"""The routes of the answer cache: what it has and did, and how answers are forgotten. Its clients have only DELETE."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of, is_owners
from edgeagent.api.wire.body import OwnerBody, read_fields
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape, shaped
from edgeagent.credentials.keys import Scope
from edgeagent.errors import NotFound, NotSupported

MAX_LISTED = 1000

routes = Routes()

Name = Annotated[str, Field(max_length=80)]


class AnswersBody(OwnerBody):
    """`client`: the client whose answers are meant; "" is the owner. Without the field: all clients."""

    client: Name | None = None


class ListBody(AnswersBody):
    """`limit`: how many answers at most. `offset`: how many to pass over. `whole`: with their texts."""

    model_config = ConfigDict(strict=False)  # values of a query are texts

    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100
    offset: Annotated[int, Field(ge=0)] = 0
    whole: bool = False


class AnswersReport(Shape):
    """What the answer cache has and did since the start.

    `outcomes`: how often each came: exact, joined, miss, slow; see the metric edgeagent_answer_cache_total. `trouble`:
    why it keeps nothing at the moment; null if it does. `similar`: null if similar questions are not answered.
    """

    is_on: bool
    store: NotRequired[str]
    trouble: NotRequired[str | None]
    num_answers: NotRequired[int | None]
    num_bytes: NotRequired[int | None]
    max_bytes: NotRequired[int]
    outcomes: NotRequired[dict[str, int]]
    similar: NotRequired[Json | None]


class KeptAnswer(Shape):
    """A kept answer. `question`: the beginning of what was asked last. `num_uses`: how often it was given.

    `client`: whose it is; "" for the owner, "*" if the owner shares all answers. `text` is there if it was asked for.
    """

    id: str
    client: str
    model: str
    question: str
    age_s: float
    num_uses: int
    num_bytes: int
    text: NotRequired[str]


class AnswerList(Shape):
    """Kept answers, the last used first."""

    answers: list[KeptAnswer]


class Forgotten(Shape):
    """Answers are forgotten."""

    status: Literal["forgotten"]
    num_answers: int


@routes.add("GET /edgeagent/answers", Scope.ADMIN, "daemon", answer=AnswersReport)
async def get_answers(request: Request) -> JSONResponse:
    """Return what the answer cache has, and how often it gave an answer."""
    await read_fields(request, OwnerBody)
    answers = context_of(request).answers
    if answers is None:
        return JSONResponse(AnswersReport(is_on=False))
    return JSONResponse(AnswersReport(is_on=True, **answers.status()))  # type: ignore[typeddict-item]


@routes.add("GET /edgeagent/answers/list", Scope.ADMIN, "daemon", answer=AnswerList, query=ListBody)
async def list_answers(request: Request) -> JSONResponse:
    """List kept answers, the last used first."""
    asked = await read_fields(request, ListBody)
    answers = context_of(request).answers
    if answers is None:
        return JSONResponse(AnswerList(answers=[]))
    listed = await answers.listed(asked.client, asked.limit, asked.offset)
    kept = [shaped(KeptAnswer, each, client=each.partition) for each in listed]
    if not asked.whole:
        for answer in kept:
            del answer["text"]
    return JSONResponse(AnswerList(answers=kept))


@routes.add("POST /edgeagent/answers/forget", Scope.ADMIN, "daemon", answer=Forgotten, fields=AnswersBody)
async def forget_answers(request: Request) -> JSONResponse:
    """Forget all kept answers, or those of one client. An answer that is being generated is not kept either."""
    asked = await read_fields(request, AnswersBody)
    answers = context_of(request).answers
    num = 0 if answers is None else await answers.forget(asked.client)
    return JSONResponse(Forgotten(status="forgotten", num_answers=num))


@routes.add("DELETE /edgeagent/answers/{answer_id}", Scope.INFER, "daemon", answer=Forgotten)
async def forget_answer(request: Request) -> JSONResponse:
    """Forget one answer, which its client found wrong. Its id is in `edgeagent.cache.answer` of the answer."""
    answers = context_of(request).answers
    if answers is None:
        raise NotSupported("the answer cache is off: set answers.exact = true")
    partition = None if is_owners(request) else answers.partition_of(client_of(request))
    if not await answers.forget_one(request.path_params["answer_id"], partition):
        raise NotFound("there is no kept answer with this id")
    return JSONResponse(Forgotten(status="forgotten", num_answers=1))
