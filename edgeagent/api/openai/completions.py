"""POST /v1/chat/completions and /v1/completions: one or more generations as chunks of a stream, or as one body."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai import chat_body, text_body
from edgeagent.api.openai.chat_answer import ChatAnswer, ChatChunks
from edgeagent.api.openai.generations import respond
from edgeagent.api.openai.text_answer import TextAnswer, TextChunks
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields

_CHAT_PARAMS = {"input": "messages", "text.format": "response_format"}
_TEXT_PARAMS = {"input": "prompt", "text.format": "json_schema"}

router = APIRouter()

T = TypeVar("T")


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    create = await _read(request, completion_id, chat_body.read_chat, chat_body.KNOWN)
    model, num_choices, delivery = create.requests[0].model, len(create.requests), create.delivery
    answer = ChatAnswer(completion_id, model, num_choices, has_functions=create.has_functions)
    chunks = ChatChunks(answer, delivery) if delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, delivery.ping_interval_s, _CHAT_PARAMS)


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Complete one or more texts, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    create = await _read(request, completion_id, text_body.read_completion, text_body.KNOWN)
    answer = TextAnswer(completion_id, create)
    chunks = TextChunks(answer) if create.delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, create.delivery.ping_interval_s, _TEXT_PARAMS)


async def _read(request: Request, completion_id: str, read: Callable[..., T], known: KnownFields) -> T:
    default_model = context_of(request).service.models.default()
    reading = partial(read, completion_id=completion_id, default_model=default_model, partition=client_of(request))
    return await read_body(request, reading, known)
