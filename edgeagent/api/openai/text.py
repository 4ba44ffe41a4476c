"""POST /v1/completions: raw text completion, streamed or whole."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai.choices import respond
from edgeagent.api.openai.text_answer import TextAnswer, TextChunks
from edgeagent.api.openai.text_body import KNOWN, read_completion
from edgeagent.api.wire.json_body import read_body

_PARAMS = {"input": "prompt", "text.format": "json_schema"}

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Complete one or more texts, streamed or whole; cancelled if the client disconnects."""
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    read = partial(
        read_completion,
        completion_id=completion_id,
        default_model=context_of(request).service.default_model(),
        partition=client_of(request),
    )
    completion = await read_body(request, read, KNOWN)
    answer = TextAnswer(completion_id, completion)
    chunks = TextChunks(answer) if completion.delivery.is_streamed else None
    return await respond(request, completion.requests, answer, chunks, completion.delivery.ping_interval_s, _PARAMS)
