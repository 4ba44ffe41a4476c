"""POST /v1/responses/compact shortens a conversation. POST /v1/responses/input_tokens counts its tokens."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses.body import KNOWN, ResponseCreate, read_create
from edgeagent.api.responses.events import new_id
from edgeagent.api.responses.items.as_json import item_body
from edgeagent.api.responses.routes import open_turn
from edgeagent.api.wire import sse
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.usage import ResponseUsage, responses_usage
from edgeagent.conversation.compaction import SummaryCancelled, compacted, num_input_tokens, summarize
from edgeagent.errors import BackendUnavailable, InvalidRequest

router = APIRouter()


class InputTokens(Shape):
    """A prompt's number of tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Compaction(Shape):
    """A shortened conversation: `output` is the input of a new conversation."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Json]
    usage: ResponseUsage


@router.post("/v1/responses/compact")
async def compact(request: Request) -> Response:
    """Return a shortened conversation, as the input of a new conversation."""
    create = await read_body(request, _read_compaction, KNOWN)
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    items = turn.conversation.items
    summarized = summarize(turn.request, turn.create.body.instructions, items, context.service)
    try:
        summary, usage = await sse.unless_disconnected(request.receive, summarized)
    except SummaryCancelled:
        raise BackendUnavailable(
            "the summary was cut short: the daemon is stopping, or the request was cancelled"
        ) from None
    compaction: Compaction = {
        "id": turn.request.id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item_body(item) for item in compacted(items, summary, new_id("cmp"))],
        "usage": responses_usage(usage),
    }
    return JSONResponse(compaction)


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """Return how many tokens a request's prompt has, with its tools and the conversation that it continues."""
    create = await read_body(request, read_create, KNOWN)
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    num_tokens = 0 if turn.is_empty else await num_input_tokens(turn.request, context.service)
    return JSONResponse(InputTokens(object="response.input_tokens", input_tokens=num_tokens))


def _read_compaction(fields: Json) -> ResponseCreate:
    if not isinstance(fields.get("model"), str):
        raise InvalidRequest("model is missing: name the model that is to write the summary", param="model")
    return read_create(fields)
