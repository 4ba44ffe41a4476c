"""What became of a response, and of what it was made: by its id, over HTTP, for the credential that made it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeagent.api.access import client_of
from edgeagent.api.context import context_of
from edgeagent.api.item_bodies import item_body
from edgeagent.api.items import Item
from edgeagent.api.turn import Turn
from edgeagent.errors import InvalidRequest, NotFound, NotSupported

# A cancelled request ends within a step; a worker that hangs is the watchdog's business, not this client's.
CANCEL_S = 30.0
MAX_PAGE = 100
DEFAULT_PAGE = 20

router = APIRouter(prefix="/v1/responses/{response_id}")


@router.get("")
async def get_response(request: Request, response_id: str) -> Response:
    """Return a stored response, or one that is being generated as far as it has come."""
    if request.query_params.get("stream", "").lower() == "true":
        raise NotSupported("a response's events are not kept; ask for it without stream", param="stream")
    if turn := _live(request, response_id):
        return JSONResponse(turn.events.so_far())
    return await _stored(request, response_id)


@router.delete("")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response; those that continued it keep what they inherited. One that runs must be over first."""
    if _live(request, response_id):
        raise InvalidRequest(f"Response with id '{response_id}' is not over; cancel it before you delete it.")
    if not await context_of(request).history.remove(response_id, client_of(request)):
        raise _unknown(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a response that is being generated, wherever it was created, and return it; one that is over stays so."""
    turn = _live(request, response_id)
    if turn is None:
        return await _stored(request, response_id)
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await context_of(request).turns.cancel(response_id)
    return JSONResponse(turn.events.so_far())


@router.get("/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """Return a page of the items that a response answered, those it inherited too; the latest first by default."""
    turn = _live(request, response_id)
    if turn is not None:
        items = turn.conversation.items
    else:
        stored = await context_of(request).history.get(response_id, client_of(request))
        if stored is None:
            raise _unknown(response_id)
        items = stored.context
    return JSONResponse(_page(items, request))


def _page(items: tuple[Item, ...], request: Request) -> dict[str, object]:
    query = request.query_params
    order, after, limit = query.get("order", "desc"), query.get("after"), query.get("limit", str(DEFAULT_PAGE))
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order must be asc or desc; got {order[:64]!r}", param="order")
    if not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE:
        raise InvalidRequest(f"limit must be from 1 to {MAX_PAGE}; got {limit[:64]!r}", param="limit")
    rest = list(items if order == "asc" else reversed(items))
    if after is not None:
        index = next((index for index, item in enumerate(rest) if item.id == after), None)
        if index is None:
            raise InvalidRequest(f"after must be an item of this response; got {after[:128]!r}", param="after")
        rest = rest[index + 1 :]
    page = rest[: int(limit)]
    return {
        "object": "list",
        "data": [item_body(item) for item in page],
        "first_id": page[0].id if page else "",
        "last_id": page[-1].id if page else "",
        "has_more": len(rest) > len(page),
    }


def _live(request: Request, response_id: str) -> Turn | None:
    return context_of(request).turns.get(response_id, client_of(request))


async def _stored(request: Request, response_id: str) -> Response:
    body = await context_of(request).history.body(response_id, client_of(request))
    if body is None:
        raise _unknown(response_id)
    return Response(body, media_type="application/json")


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:128]}' not found.")
