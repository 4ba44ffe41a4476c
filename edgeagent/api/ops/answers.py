"""The routes of the answer cache: what it has and did, and how answers are forgotten. Its clients have only DELETE."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, cast

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of, is_owners
from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.page.kiosk import MAX_CHARS, partition_of, pinned_fields
from edgeagent.api.responses.body import read_create
from edgeagent.api.wire.body import OwnerBody, read_fields
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape, shaped
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.config import KioskConfig
from edgeagent.conversation.history import ConnectionHistory, StoreResult
from edgeagent.credentials.keys import Scope
from edgeagent.errors import ConfigError, InternalError, InvalidRequest, NotFound, NotSupported
from edgeagent.kiosk_prompt import read_facts
from edgeagent.service.client_sink import Ending
from edgeagent.state_files import ANSWERS_FILE, SIMILAR_FILE
from edgeagent.types import AnswerPolicy, GenerateRequest, replace

if TYPE_CHECKING:
    from edgeagent.answers.answers import Answers

_OFF = "the answer cache is off: set exact = true in [answers] of config.toml"

routes = Routes()

Name = Annotated[str, Field(max_length=80)]


class AnswersBody(OwnerBody):
    """`client`: the client whose answers are meant; "" is the owner. Without the field: all clients."""

    client: Name | None = None


class ListBody(AnswersBody):
    """`limit`: how many answers at most. `offset`: how many to pass over. `whole`: with their texts."""

    model_config = ConfigDict(strict=False)  # values of a query are texts

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0)] = 0
    whole: bool = False


class WarmAnswerBody(OwnerBody):
    """A question to ask now, so that its answer is kept.

    `question`: what a user asks. `kiosk`: ask as the visitors of the kiosk with the token of this name do. `client`:
    the client that the answer is kept for; "" is the owner. `request`: the other fields of its chat completion, whose
    messages come before the question.
    """

    question: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)] | None = None
    kiosk: Name | None = None
    client: Name = ""
    request: Json | None = None


class WarmedAnswer(Shape):
    """What came of the question. `new`: its answer is kept from now on. `known`: it was kept before.

    `not_kept`: the model's answer may not be kept, for example since it was cut by the end of the context.
    """

    status: Literal["new", "known", "not_kept"]


class AnswersReport(Shape):
    """What the answer cache has and did since the start.

    `outcomes`: how often each came: exact, similar, joined, miss, slow; see the metric edgeagent_answer_cache_total.
    `trouble`: why it keeps nothing at the moment; null if it does. `similar`: null if similar questions are not
    answered.
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
    return JSONResponse(AnswersReport(is_on=False) if answers is None else answers_report(answers))


def answers_report(answers: Answers) -> AnswersReport:
    """Return what the answer cache has and did."""
    return cast(AnswersReport, {"is_on": True, **answers.status()})


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
    context = context_of(request)
    answers, folder = context.answers, context.config.state_dir
    if answers is None and (kept := await asyncio.to_thread(_kept_files, folder)):
        raise NotSupported(
            f"the answer cache is off, but what it kept before is still in {folder}: delete {' and '.join(kept)} "
            "there, or switch it on and forget then"
        )
    num = 0 if answers is None else await answers.forget(asked.client)
    return JSONResponse(Forgotten(status="forgotten", num_answers=num))


def _kept_files(folder: Path) -> list[str]:
    return [f"{name}*" for name in (ANSWERS_FILE, SIMILAR_FILE) if (folder / name).exists()]


@routes.add("POST /edgeagent/answers/warm", Scope.ADMIN, "daemon", body=WarmAnswerBody, answer=WarmedAnswer)
async def warm_answer(request: Request) -> JSONResponse:
    """Ask a question for a client or a kiosk, and keep the answer."""
    asked = await read_fields(request, WarmAnswerBody)
    context = context_of(request)
    answers = context.answers
    if answers is None:
        raise NotSupported(_OFF)
    facts = ""
    if asked.kiosk is not None:
        try:
            facts = await asyncio.to_thread(read_facts, context.config.kiosk.facts_file)
        except ConfigError as error:
            raise InvalidRequest(error.message) from None
    warming = _warming(asked, context.config.kiosk, context.service.models.default(), facts)
    if why := answers.why_not(warming):
        raise InvalidRequest(f"its answer would not be given: {why}")
    ending = Ending()
    with answers.patience():
        await unless_disconnected(request.receive, context.service.generate(warming, ending))
        if ending.finished is None:
            raise InternalError("a generation ended without its last event")
        if ending.finished.timings.origin is not None:
            return JSONResponse(WarmedAnswer(status="known"))
        return JSONResponse(WarmedAnswer(status="new" if await answers.has(warming) else "not_kept"))


def _warming(asked: WarmAnswerBody, kiosk: KioskConfig, default_model: str, facts: str) -> GenerateRequest:
    """Return the request that a client or a visitor would send. Raise InvalidRequest or NotSupported."""
    request_id = f"warm-{secrets.token_hex(12)}"
    if asked.kiosk is not None:
        if asked.question is None or asked.request is not None or asked.client:
            raise InvalidRequest("for a kiosk, give only the question", param="question")
        said = [{"type": "message", "role": "user", "content": asked.question}]
        create = read_create({"input": said, **pinned_fields(kiosk, default_model, facts)})
        conversation = ConnectionHistory().continue_from(None, create.items, StoreResult())
        model = create.body.model or default_model
        request = create.request(request_id, model, conversation, partition_of(asked.kiosk))
    else:
        fields = dict(asked.request or {})
        if asked.question is not None:
            fields["messages"] = [*(fields.get("messages") or []), {"role": "user", "content": asked.question}]
        if "messages" not in fields:
            raise InvalidRequest("give a question, or a request with messages", param="question")
        read = read_chat(fields, completion_id=request_id, default_model=default_model, partition=asked.client)
        request = read.requests[0]
    return replace(request, cache=replace(request.cache, answers=AnswerPolicy.USE))


@routes.add("DELETE /edgeagent/answers/{answer_id}", Scope.INFER, "daemon", answer=Forgotten)
async def forget_answer(request: Request) -> JSONResponse:
    """Forget one answer, which its client found wrong. Its id is in `edgeagent.cache.answer` of the answer."""
    answers = context_of(request).answers
    if answers is None:
        raise NotSupported(_OFF)
    partition = None if is_owners(request) else answers.partition_of(client_of(request))
    if not await answers.forget_one(request.path_params["answer_id"], partition):
        raise NotFound("there is no kept answer with this id")
    return JSONResponse(Forgotten(status="forgotten", num_answers=1))
