"""The HTTP routes of one response, by its id: read, stream, cancel, delete. Only the client that made it finds it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses import background
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.items.as_json import item_body
from edgeagent.api.responses.live_turn import LiveTurn, find_turn
from edgeagent.api.wire.fields import MAX_INT32, Name, Query, between, validate
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.conversation.items import Item
from edgeagent.errors import InvalidRequest, NotFound

# How long a cancel waits for the response to end. A cancelled response ends within a step, unless its worker hangs.
CANCEL_S = 30.0
_JSON = "application/json"

router = APIRouter(prefix="/v1/responses/{response_id}")


class ResponseDeleted(Shape):
    """A stored response was deleted."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemPage(Shape):
    """A page of the items that a response answered. `first_id` and `last_id` are empty if the page is empty."""

    object: Literal["list"]
    data: list[Json]
    first_id: str
    last_id: str
    has_more: bool


class EventsQuery(Query):
    """`stream`: send the response's events. `starting_after`: send only events with a greater number."""

    stream: bool = False
    starting_after: Annotated[int, between(0, MAX_INT32)] | None = None


class PageQuery(Query):
    """Which page to return: at most `limit` items after the item `after`. `asc` begins with the oldest item."""

    order: Literal["asc", "desc"] = "desc"
    after: Name | None = None
    limit: Annotated[int, between(1, 100)] = 20


@router.get("")
async def get_response(request: Request, response_id: str) -> Response:
    """Return a response, or what exists of it so far. A background response can also be sent as a stream.

    The stream has the events with a number greater than `starting_after`, or all events, up to the response's end.
    """
    after = _starting_after(request)
    live = _live(request, response_id)
    if live is not None:
        return JSONResponse(live.turn.events.so_far()) if after is None else background.follow(live, after)
    body = await _stored(request, response_id)
    return Response(body, media_type=_JSON) if after is None else background.stream_finished(from_json(body), after)


def _starting_after(request: Request) -> int | None:
    """Return the number after which events are wanted: -1 for all events, None if no stream is wanted.

    Raise InvalidRequest for a wrong query.
    """
    query = validate(EventsQuery, dict(request.query_params))
    if query.stream:
        return -1 if query.starting_after is None else query.starting_after
    if query.starting_after is not None:
        raise InvalidRequest("starting_after needs stream=true", param="starting_after")
    return None


@router.delete("")
async def delete_response(request: Request, response_id: str) -> Response:
    """Delete a stored response. Its continuations keep what they inherited. A running response must end first."""
    if _live(request, response_id):
        raise InvalidRequest(f"Response with id '{response_id}' is not over; cancel it before you delete it.")
    if not await _responses(request).store.remove(response_id, client_of(request)):
        raise _unknown(response_id)
    return JSONResponse(ResponseDeleted(id=response_id, object="response", deleted=True))


@router.post("/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a response that is being generated on any route, and return it. A finished response does not change."""
    live = _live(request, response_id)
    if live is None:
        return Response(await _stored(request, response_id), media_type=_JSON)
    live.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await live.over.wait()
    return JSONResponse(live.turn.events.so_far())


@router.get("/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """Return a page of the items that a response answered, with inherited items. By default the latest come first."""
    live = _live(request, response_id)
    if live is not None:
        items = live.turn.conversation.items
    else:
        stored = await _responses(request).store.get(response_id, client_of(request))
        if stored is None:
            raise _unknown(response_id)
        items = stored.context
    # Items may be large, so their JSON is made beside the event loop.
    return Response(await asyncio.to_thread(lambda: to_json(_page(items, request))), media_type=_JSON)


def _page(items: tuple[Item, ...], request: Request) -> ItemPage:
    query = validate(PageQuery, dict(request.query_params))
    rest = list(items if query.order == "asc" else reversed(items))
    if query.after is not None:
        index = next((index for index, item in enumerate(rest) if item.id == query.after), None)
        if index is None:
            message = f"after must be an item of this response, not {query.after[:128]!r}"
            raise InvalidRequest(message, param="after")
        rest = rest[index + 1 :]
    page = rest[: query.limit]
    return {
        "object": "list",
        "data": [item_body(item) for item in page],
        "first_id": page[0].id if page else "",
        "last_id": page[-1].id if page else "",
        "has_more": len(rest) > len(page),
    }


def _responses(request: Request) -> Responses:
    return context_of(request).frontends.get(Responses)


def _live(request: Request, response_id: str) -> LiveTurn | None:
    return find_turn(context_of(request).service.live, response_id, client_of(request))


async def _stored(request: Request, response_id: str) -> bytes:
    """Return the JSON of a stored response; raise NotFound if the client has no such response."""
    body = await _responses(request).store.body(response_id, client_of(request))
    if body is None:
        raise _unknown(response_id)
    return body


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:128]}' not found.")
