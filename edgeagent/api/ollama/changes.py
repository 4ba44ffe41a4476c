"""DELETE /api/delete and POST /api/copy: delete a model, or add a second name for it. Both need the scope `models`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.ollama.body import OllamaCopyBody, OllamaModelBody
from edgeagent.api.wire.json_body import read_valid
from edgeagent.config import Config
from edgeagent.errors import InvalidRequest, ModelNotFound
from edgeagent.service.removal import plan_removal, refuse_if_used
from edgeagent.store.library_editor import LibraryEditor
from edgeagent.store.resolve import Library

router = APIRouter()


@router.delete("/api/delete")
async def delete(request: Request) -> Response:
    """Delete a model from this machine, or forget an alias or an imported model. A loaded model is unloaded first.

    Raise InvalidRequest if the files to delete are those of the default model, or of a model that has requests.
    """
    context = context_of(request)
    name = (await read_valid(request, OllamaModelBody)).model
    removal, in_use = await asyncio.to_thread(plan_removal, context.config, name, context.service.models.statuses())
    for each in in_use:
        refuse_if_used(each, context.service.models.default())
    for each in in_use:
        if await context.service.models.unload(each.name):
            raise InvalidRequest(f"{each.name} has a request to answer; delete it afterwards", param="model")
    await asyncio.to_thread(LibraryEditor(context.config).remove, removal)
    return Response()


@router.post("/api/copy")
async def copy(request: Request) -> Response:
    """Give a model another name; no file is copied."""
    context = context_of(request)
    asked = await read_valid(request, OllamaCopyBody)
    await asyncio.to_thread(_copy, context.config, asked.source, asked.destination)
    return Response()


def _copy(config: Config, source: str, alias: str) -> None:
    try:
        Library.of(config).refuse_path(source)
        LibraryEditor(config).copy(source, alias)
    except ModelNotFound as error:
        raise ModelNotFound.for_client(source, error) from None
