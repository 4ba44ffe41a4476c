"""POST /v1/chat/completions: steps of one or more generations as chunks of a stream, or as one body at the end."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.access import client_of
from edgeagent.api.choices import collect, events, run, stream
from edgeagent.api.completion import Answer, Chunks
from edgeagent.api.context import context_of
from edgeagent.api.first_step import begun
from edgeagent.api.limits import read_body
from edgeagent.api.schemas import read_chat
from edgeagent.api.sse import unless_disconnected
from edgeagent.errors import EdgeAgentError

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole; the client's leaving cancels it."""
    service = context_of(request).service
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    read = partial(
        read_chat,
        completion_id=completion_id,
        default_model=service.default_model(),
        partition=client_of(request),
    )
    completion = await read_body(request, read)
    answer = Answer(completion_id, completion.requests[0].model, len(completion.requests))
    steps = run(service, completion.requests)
    delivery = completion.delivery
    try:
        if delivery.is_streamed:
            steps = await unless_disconnected(request.receive, begun(steps))
            written = events(steps, answer, Chunks(answer, delivery), _in_chats_words)
            return stream(written, delivery.ping_interval_s)
        return JSONResponse(await unless_disconnected(request.receive, collect(steps, answer)))
    except EdgeAgentError as error:
        raise _in_chats_words(error) from None


def _in_chats_words(error: EdgeAgentError) -> EdgeAgentError:
    # The worker calls what the model reads `input`, as the Responses API does.
    if error.param == "input":
        error.param = "messages"
    return error
