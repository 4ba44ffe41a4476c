"""POST /completion and POST /infill: completions of raw text in llama-server's own shape."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.llama_server.completion_answer import LlamaAnswer, LlamaChunks
from edgeagent.api.llama_server.completion_body import (
    KNOWN,
    KNOWN_INFILL,
    LlamaCompletionCreate,
    read_infill,
    read_llama_completion,
)
from edgeagent.api.openai.generations import respond
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields

_PARAMS = {"input": "prompt", "text.format": "json_schema"}
_INFILL_PARAMS = {"input": "input_prefix", "suffix": "input_suffix", "text.format": "json_schema"}

router = APIRouter()


@router.post("/completion")
async def complete(request: Request) -> Response:
    """Continue one or more texts, as a stream or as one body. A client that disconnects cancels the request."""
    return await _respond(request, read_llama_completion, KNOWN, _PARAMS)


@router.post("/infill")
async def infill(request: Request) -> Response:
    """Fill a gap in a text, if the model can, as a stream or as one body.

    A client that disconnects cancels the request.
    """
    return await _respond(request, read_infill, KNOWN_INFILL, _INFILL_PARAMS)


async def _respond(
    request: Request, read: Callable[..., LlamaCompletionCreate], known: KnownFields, params: Mapping[str, str]
) -> Response:
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    default_model = context_of(request).service.models.default()
    reading = partial(read, completion_id=completion_id, default_model=default_model, partition=client_of(request))
    create = await read_body(request, reading, known)
    completion, answer = create.completion, LlamaAnswer(completion_id, create)
    chunks = LlamaChunks(answer) if completion.delivery.is_streamed else None
    return await respond(request, completion.requests, answer, chunks, completion.delivery.ping_interval_s, params)
