"""The owner's routes of the prefix cache: list its blocks on disk, delete prompts, and compute a prompt in advance."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import Annotated, Literal, cast

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field

from edgeagent import cache_folder
from edgeagent.api.context import context_of
from edgeagent.api.openai.chat_body import ChatBody, read_chat
from edgeagent.api.wire.body import Body, OwnerBody, known_names, read_fields, read_merged, validate
from edgeagent.api.wire.fields import ModelName
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape, shaped
from edgeagent.credentials.keys import Scope
from edgeagent.errors import BackendUnavailable, InternalError, InvalidRequest
from edgeagent.service.client_sink import Ending
from edgeagent.service.service import purge_memory
from edgeagent.types import CachePolicy, FinishReason, GenerateRequest, TextPrompt, replace

routes = Routes()

Name = Annotated[str, Field(max_length=64)]


class PurgeBody(OwnerBody):
    """`client`: the client whose cached prompts to delete; "" is the owner. Without the field: all clients."""

    client: Name | None = None


class WarmBody(Body):
    """A prompt to compute in advance: a chat completion's messages and tools, or plain text in `prompt`.

    `client`: the client whose requests will reuse the cached prompt; "" is the owner. `pin`: keep the prompt cached
    until it is purged.
    """

    client: Name = ""
    pin: bool = False
    prompt: Annotated[str, Field(min_length=1)] | None = None
    model: ModelName | None = None


# The fields of WarmBody, and all known fields of a chat completion.
_WARM_NAMES = frozenset({*WarmBody.model_fields, *known_names(ChatBody)})


class CachePart(Shape):
    """The cached blocks on disk of one model, one client and one set of engine settings.

    `model` and `client` are null if they cannot be read. `unused_s`: seconds since the last use of one of the blocks.
    """

    model: str | None
    client: str | None
    num_blocks: int
    num_tokens: int
    num_bytes: int
    unused_s: float


class CacheReport(Shape):
    """The contents of the cache on disk: the folder, and the parts in it."""

    dir: str
    parts: list[CachePart]


class Purged(Shape):
    """The cached prompts are deleted."""

    status: Literal["purged"]


class Warmed(Shape):
    """The prompt is computed and cached. `num_cached_tokens` of its tokens were in the cache before."""

    num_prompt_tokens: int
    num_cached_tokens: int


@routes.add("GET /edgeagent/cache", Scope.ADMIN, "daemon", answer=CacheReport)
async def get_cache(request: Request) -> JSONResponse:
    """List the cached blocks on disk by model and client. The counts of each tier of the cache are in the status."""
    await read_fields(request, OwnerBody)
    folder = context_of(request).config.cache_dir
    try:
        parts = await asyncio.to_thread(cache_folder.list_parts, folder)
    except OSError as error:
        raise InternalError(f"cannot list {folder}: {error.strerror}") from None
    return JSONResponse(CacheReport(dir=str(folder), parts=[cast(CachePart, part.described()) for part in parts]))


@routes.add("POST /edgeagent/cache/purge", Scope.ADMIN, "daemon", answer=Purged, fields=PurgeBody)
async def purge(request: Request) -> JSONResponse:
    """Delete cached prompts in memory and on disk; running requests continue."""
    body = await read_fields(request, PurgeBody)
    context = context_of(request)
    context.responses.early_summaries.forget(body.client)
    await purge_memory(context.service, body.client)
    folder = context.config.cache_dir
    try:
        # This also deletes blocks that no worker has: those of other models, settings and processes.
        await asyncio.to_thread(cache_folder.purge, folder, body.client)
    except OSError as error:
        raise InternalError(f"cannot remove everything from {folder}: {error.strerror}") from None
    return JSONResponse(Purged(status="purged"))


@routes.add("POST /edgeagent/cache/warm", Scope.ADMIN, "daemon", body=WarmBody, answer=Warmed)
async def warm(request: Request) -> JSONResponse:
    """Compute a prompt and cache it, so that the first request with this prompt need not compute it."""
    service = context_of(request).service
    warming = await read_merged(request, partial(_read_known_warming, default_model=service.models.default()))
    computed = Ending()
    await service.generate(warming, computed)
    if computed.finished is None:
        raise InternalError("a generation ended without its last event")
    if computed.finished.reason is FinishReason.CANCELLED:
        raise BackendUnavailable("the prompt was not computed: the daemon is stopping")
    return JSONResponse(shaped(Warmed, computed.finished.usage))


def read_warming(fields: Json, default_model: str) -> GenerateRequest:
    """Check a WarmBody, and return the request that computes its prompt; raise InvalidRequest or NotSupported.

    Unknown fields are ignored.
    """
    body = validate(WarmBody, fields)
    if (body.prompt is None) == ("messages" not in fields):
        raise InvalidRequest("give either messages (and tools), or prompt", param="prompt")
    request_id = f"warm-{secrets.token_hex(12)}"
    cache = CachePolicy(partition=body.client, pin=body.pin)
    if body.prompt is not None:
        return GenerateRequest(
            request_id, body.model or default_model, TextPrompt(body.prompt), cache=cache, prefill_only=True
        )
    chat = read_chat(fields, completion_id=request_id, default_model=default_model).requests[0]
    return replace(chat, cache=cache, prefill_only=True)


def _read_known_warming(fields: Json, default_model: str) -> GenerateRequest:
    for name in fields:
        if name not in _WARM_NAMES:
            raise InvalidRequest(f"{name[:64]} is unknown", param=name)
    return read_warming(fields, default_model)
