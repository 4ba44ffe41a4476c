"""POST /v1/chat/completions: steps of one or more generations as chunks of a stream, or as one body at the end."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai.chat_answer import ChatAnswer, ChatChunks
from edgeagent.api.openai.chat_body import KNOWN, read_chat
from edgeagent.api.openai.choices import respond
from edgeagent.api.wire.json_body import read_body

_PARAMS = {"input": "messages", "text.format": "response_format"}

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, streamed or whole; cancelled if the client disconnects."""
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    read = partial(
        read_chat,
        completion_id=completion_id,
        default_model=context_of(request).service.default_model(),
        partition=client_of(request),
    )
    completion = await read_body(request, read, KNOWN)
    model, num_choices = completion.requests[0].model, len(completion.requests)
    answer = ChatAnswer(completion_id, model, num_choices, has_functions=completion.has_functions)
    chunks = ChatChunks(answer, completion.delivery) if completion.delivery.is_streamed else None
    return await respond(request, completion.requests, answer, chunks, completion.delivery.ping_interval_s, _PARAMS)
