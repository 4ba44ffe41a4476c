"""The HTTP routes of the Responses API: create a response, read, stream, cancel or delete it by its id, compact.

A background response runs to its end without a connection. Any number of clients may follow one, that is, stream its
events. The events are made from the response itself (see `events_after`), so a slow follower, or one that disconnects,
affects nothing else. A WebSocket uses the same turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Annotated, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from edgeagent.api.context import Context, Responses, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses.body import CreateResponseBody, ResponseCreate, read_create
from edgeagent.api.responses.event_json import ResponseBody
from edgeagent.api.responses.events import TERMINAL, ResponseState, events_after, last_number, new_id
from edgeagent.api.responses.items import item_body
from edgeagent.api.responses.turn import (
    Drive,
    LiveTurn,
    Turn,
    begin_turn,
    compare,
    drive,
    find_turn,
    run_turn,
    why_kept_here,
)
from edgeagent.api.wire import sse
from edgeagent.api.wire.answer_stream import start_stream
from edgeagent.api.wire.body import Query, between, read_body, validate
from edgeagent.api.wire.fields import MAX_INT32, Name
from edgeagent.api.wire.generation import ResponseUsage, put_headers, responses_usage
from edgeagent.api.wire.route import SSE, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.conversation.compaction import SummaryCancelled, compacted, num_input_tokens, summarize
from edgeagent.conversation.history import ConnectionHistory
from edgeagent.conversation.items import Item
from edgeagent.credentials.grants import until_revoked
from edgeagent.credentials.keys import Scope
from edgeagent.errors import BackendUnavailable, InvalidRequest, NotFound, Unauthorized
from edgeagent.types import Usage, replace

routes = Routes()


@routes.add("POST /v1/responses", Scope.INFER, "openai", body=CreateResponseBody, answer=ResponseBody, streams=SSE)
async def create_response(request: Request) -> Response:
    """Create one response, streamed or whole. It is cancelled if the client disconnects, unless `background` is set."""
    create = await read_body(request, read_create, CreateResponseBody, partial(why_kept, request))
    is_streamed = bool(create.body.stream)
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    if turn.create.body.background:
        return start_background(turn, context, is_streamed=is_streamed)
    live = LiveTurn(turn, partial(context.service.cancel, turn.request.id))
    if not is_streamed:
        turn.request = replace(turn.request, is_whole=True)
        await sse.unless_disconnected(request.receive, drive(live, context))
        if turn.events.failure is not None:
            raise turn.events.failure
        response = JSONResponse(turn.events.response)
        put_headers(response, turn.events.started)
        return response
    writer = Drive(live, context)
    early = context.responses.early_summaries
    return await start_stream(request.receive, writer, lambda sinks: run_turn(turn, context.service, sinks[0], early))


async def why_kept(request: Request, create: ResponseCreate) -> str:
    """See `why_kept_here`."""
    store = context_of(request).responses.store
    return await why_kept_here(create.previous_id, create.items, ConnectionHistory(), store, client_of(request))


async def open_turn(create: ResponseCreate, context: Context, partition: str) -> Turn:
    """Begin a turn for a create over HTTP, and return it. The create can continue only stored responses.

    Raise what `begin_turn` raises.
    """
    if create.is_answered_ahead:
        raise InvalidRequest("an answer begins ahead only on a WebSocket", param="edgeagent.ahead")
    history = ConnectionHistory()
    found = await context.responses.store.find(history.missing(create.previous_id, create.items), partition)
    turn = begin_turn(create, context.service, history, found, partition=partition)
    await compare(turn, context.responses.store)
    return turn


def start_background(turn: Turn, context: Context, *, is_streamed: bool) -> Response:
    """Start a background response. Return its queued state or, if `is_streamed`, a stream of all of its events.

    Raise InvalidRequest if the response must not be stored, and what LiveService.holding raises.
    """
    if not turn.events.response["store"]:
        raise InvalidRequest("a background response is asked for by its id, so it must be stored", param="store")
    held = ExitStack()
    held.enter_context(context.service.holding(turn.request))
    turn.events.response["background"] = True
    turn.events.created(is_queued=True)
    # Clients may ask for the response by its id before the task below has started.
    live = LiveTurn(turn, partial(context.service.cancel, turn.request.id))
    context.service.live.show(live)
    context.responses.carry_on(_drive_held(live, context, held))
    return follow(live, -1) if is_streamed else JSONResponse(turn.events.so_far())


async def _drive_held(live: LiveTurn, context: Context, held: ExitStack) -> None:
    with held:
        await drive(live, context)


def follow(live: LiveTurn, after: int) -> Response:
    """Stream a live response's events with a number greater than `after` (-1: all), until the response ends.

    Raise InvalidRequest if it is not a background response, or if `after` is greater than its last number so far.
    """
    _check(live.turn.events.state, after)
    return sse.EventStream(_follow(live, after))


async def _follow(live: LiveTurn, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the events until the response is over, or until the follower's token is revoked.

    The response may have been created with another token. A stream that ends before the response has no terminal
    event. The client gets the reason when it asks for the remaining events.
    """
    is_over = is_revoked = False

    def end() -> None:
        nonlocal is_revoked
        is_revoked = True
        live.wake_followers()

    with suppress(Unauthorized), until_revoked(end):
        while not is_over:
            change = live.change
            for event in events_after(live.turn.events.state, after):
                is_over = event["type"] in TERMINAL
                if is_over:
                    # A client that has received the end may continue the response at once.
                    await live.over.wait()
                if is_revoked:
                    return
                yield sse.event(event, event["type"])
                after = event["sequence_number"]
            if is_over:
                yield sse.DONE
            elif is_revoked or live.over.is_set():
                return  # the token has ended, or the response ended without a terminal event (the daemon stops)
            else:
                await change.wait()


async def _replay(state: ResponseState, after: int) -> AsyncGenerator[bytes, None]:
    for event in events_after(state, after):
        yield sse.event(event, event["type"])
    yield sse.DONE


def _check(state: ResponseState, after: int) -> None:
    if not state.response["background"]:
        raise InvalidRequest(
            "only a background response can be streamed by its id; ask for this one without stream", param="stream"
        )
    last = last_number(state)
    if after > last:
        raise InvalidRequest(f"starting_after is {after}, but the last event so far is {last}", param="starting_after")


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


@routes.add("POST /v1/responses/compact", Scope.INFER, "openai", body=CreateResponseBody, answer=Compaction)
async def compact(request: Request) -> Response:
    """Return a shortened conversation, as the input of a new conversation."""
    create = await read_body(request, _read_compaction, CreateResponseBody, partial(why_kept, request))
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
    return Response(await asyncio.to_thread(_compaction_json, turn.request.id, items, summary, usage), media_type=_JSON)


def _compaction_json(response_id: str, items: Sequence[Item], summary: str, usage: Usage) -> bytes:
    compaction: Compaction = {
        "id": response_id,
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item_body(item) for item in compacted(items, summary, new_id("cmp"))],
        "usage": responses_usage(usage),
    }
    return to_json(compaction)


@routes.add("POST /v1/responses/input_tokens", Scope.INFER, "openai", body=CreateResponseBody, answer=InputTokens)
async def count_input_tokens(request: Request) -> Response:
    """Return how many tokens a request's prompt has, with its tools and the conversation that it continues."""
    create = await read_body(request, read_create, CreateResponseBody, partial(why_kept, request))
    context = context_of(request)
    turn = await open_turn(create, context, client_of(request))
    num_tokens = 0 if turn.is_empty else await num_input_tokens(turn.request, context.service)
    return JSONResponse(InputTokens(object="response.input_tokens", input_tokens=num_tokens))


def _read_compaction(fields: Json) -> ResponseCreate:
    if not isinstance(fields.get("model"), str):
        raise InvalidRequest("model is missing: name the model that is to write the summary", param="model")
    return read_create(fields)


_JSON = "application/json"


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


@routes.add(
    "GET /v1/responses/{response_id}", Scope.INFER, "openai", answer=ResponseBody, streams=SSE, query=EventsQuery
)
async def get_response(request: Request) -> Response:
    """Return a response, or what exists of it so far. A background response can also be sent as a stream.

    The stream has the events with a number greater than `starting_after`, or all events, up to the response's end.
    """
    response_id = request.path_params["response_id"]
    after = _starting_after(request)
    live = _live(request, response_id)
    if live is not None:
        return JSONResponse(live.turn.events.so_far()) if after is None else follow(live, after)
    body = await _stored(request, response_id)
    if after is None:
        return Response(body, media_type=_JSON)
    response: ResponseBody = from_json(body)
    state = ResponseState(response, response["output"])
    _check(state, after)
    return sse.EventStream(_replay(state, after))


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


@routes.add("DELETE /v1/responses/{response_id}", Scope.INFER, "openai", answer=ResponseDeleted)
async def delete_response(request: Request) -> Response:
    """Delete a stored response. Its continuations keep what they inherited. A running response must end first."""
    response_id = request.path_params["response_id"]
    if _live(request, response_id):
        raise InvalidRequest(f"Response with id '{response_id}' is not over; cancel it before you delete it.")
    if not await _responses(request).store.remove(response_id, client_of(request)):
        raise _unknown(response_id)
    _responses(request).early_summaries.forget(client_of(request))  # they may tell of it
    return JSONResponse(ResponseDeleted(id=response_id, object="response", deleted=True))


@routes.add("POST /v1/responses/{response_id}/cancel", Scope.INFER, "openai", answer=ResponseBody)
async def cancel_response(request: Request) -> Response:
    """Cancel a response that is being generated on any route, and return it. A finished response does not change."""
    response_id = request.path_params["response_id"]
    live = _live(request, response_id)
    if live is None:
        return Response(await _stored(request, response_id), media_type=_JSON)
    live.cancel()
    # A cancelled response ends within a step, unless its worker hangs.
    with suppress(TimeoutError):
        async with asyncio.timeout(30.0):
            await live.over.wait()
    return JSONResponse(live.turn.events.so_far())


@routes.add("GET /v1/responses/{response_id}/input_items", Scope.INFER, "openai", answer=ItemPage, query=PageQuery)
async def list_input_items(request: Request) -> Response:
    """Return a page of the items that a response answered, with inherited items. By default the latest come first."""
    response_id = request.path_params["response_id"]
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
    return context_of(request).responses


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
