"""POST /v1/completions: raw prompts, gone on with, streamed or whole."""

from __future__ import annotations

import secrets
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.access import client_of
from edgeagent.api.choices import collect, events, run, stream
from edgeagent.api.context import context_of
from edgeagent.api.first_step import begun
from edgeagent.api.limits import read_body
from edgeagent.api.schemas_completions import read_completion
from edgeagent.api.sse import unless_disconnected
from edgeagent.api.text_completion import TextChoices, TextChunks
from edgeagent.errors import EdgeAgentError

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Go on with one or more texts, streamed or whole; the client's leaving cancels it."""
    service = context_of(request).service
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    read = partial(
        read_completion,
        completion_id=completion_id,
        default_model=service.default_model(),
        partition=client_of(request),
    )
    completion = await read_body(request, read)
    answer = TextChoices(completion_id, completion)
    steps = run(service, completion.requests)
    try:
        if completion.delivery.is_streamed:
            steps = await unless_disconnected(request.receive, begun(steps))
            written = events(steps, answer, TextChunks(answer), _in_completions_words)
            return stream(written, completion.delivery.ping_interval_s)
        return JSONResponse(await unless_disconnected(request.receive, collect(steps, answer)))
    except EdgeAgentError as error:
        raise _in_completions_words(error) from None


def _in_completions_words(error: EdgeAgentError) -> EdgeAgentError:
    # The worker calls what the model reads `input`, as the Responses API does.
    if error.param == "input":
        error.param = "prompt"
    return error
