"""The stored responses of a client as conversations: a list of them, and all branches of one."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of, is_page
from edgeagent.api.responses.event_json import ResponseBody
from edgeagent.api.responses.items import item_body
from edgeagent.api.wire.body import Query, between, validate
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape, shaped
from edgeagent.conversation.history import ConversationTurn
from edgeagent.credentials.grants import GRANT
from edgeagent.credentials.keys import Scope
from edgeagent.errors import Forbidden, NotFound

routes = Routes()


class ConversationEntry(Shape):
    """A conversation: the id of its first stored response, its first words, and its number of responses.

    Times are in seconds since 1970.
    """

    id: str
    title: str
    num_responses: int
    created_at: float
    last_at: float


class ConversationList(Shape):
    """A client's conversations, the last continued first."""

    object: Literal["list"]
    data: list[ConversationEntry]


class Turn(Shape):
    """A response, and the items that it answered. Only the first response has the items before it too."""

    input: list[Json]
    response: ResponseBody


class ConversationBranches(Shape):
    """A response and all that continue it, the oldest first. `previous_response_id` of each says what it continues."""

    turns: list[Turn]


class ListQuery(Query):
    """`limit`: how many conversations to return at most."""

    limit: Annotated[int, between(1, 500)] = 100


@routes.add("GET /edgeagent/conversations", Scope.INFER, "page", answer=ConversationList, query=ListQuery)
async def list_conversations(request: Request) -> JSONResponse:
    """List the client's stored responses as conversations, the last continued first."""
    query = validate(ListQuery, dict(request.query_params))
    store = context_of(request).responses.store
    found = await store.conversations(_reader_of(request), query.limit)
    data = [shaped(ConversationEntry, each, created_at=each.created_s, last_at=each.last_s) for each in found]
    return JSONResponse(ConversationList(object="list", data=data))


@routes.add("GET /edgeagent/conversations/{response_id}", Scope.INFER, "page", answer=ConversationBranches)
async def get_conversation(request: Request) -> Response:
    """Return a stored response and all that continue it, with what each answered."""
    response_id = request.path_params["response_id"]
    turns = await context_of(request).responses.store.conversation(response_id, _reader_of(request))
    if not turns:
        raise NotFound(f"there is no stored response {response_id[:128]!r}")
    # A conversation may be large, so its JSON is made beside the event loop.
    return Response(await asyncio.to_thread(_shown, turns), media_type="application/json")


def _reader_of(request: Request) -> str:
    """Return the client whose conversations a request may read.

    Raise Forbidden for a web page without a token: an allow-listed page may ask models, and would otherwise find
    everything that the owner has ever asked.
    """
    if is_page(request.scope) and GRANT.get() is None:
        raise Forbidden("a web page needs a token to read conversations")
    return client_of(request)


def _shown(turns: list[ConversationTurn]) -> bytes:
    shown: list[Turn] = [
        {"input": [item_body(item) for item in turn.input], "response": from_json(turn.body)} for turn in turns
    ]
    return to_json(ConversationBranches(turns=shown))
