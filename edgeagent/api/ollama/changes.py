"""DELETE /api/delete and POST /api/copy: a model deleted, or given another name. Both are the owner's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.ollama.body import OllamaCopyBody, OllamaModelBody
from edgeagent.api.ollama.wire import OllamaRoute
from edgeagent.api.wire.fields import validate
from edgeagent.api.wire.json_body import read_json_object
from edgeagent.config import Config
from edgeagent.errors import InvalidRequest
from edgeagent.store.resolve import Library
from edgeagent.store.shelf import Removal, Shelf
from edgeagent.types import ModelStatus, WorkerState

router = APIRouter(route_class=OllamaRoute)


@router.delete("/api/delete")
async def delete(request: Request) -> Response:
    """Delete a model from this machine, or forget an alias or an imported model. A loaded model is unloaded first.

    A model that answers requests or is being loaded is refused, and so is the one that the daemon serves by default.
    """
    context = context_of(request)
    name = validate(OllamaModelBody, await read_json_object(request)).model
    removal, in_use = await asyncio.to_thread(_plan, context.config, name, context.service.models())
    for each in in_use:
        _check_idle(context, each)
    for each in in_use:
        if await context.service.unload(each.name):
            raise InvalidRequest(f"{each.name} has a request to answer; delete it afterwards", param="model")
    await asyncio.to_thread(Shelf(context.config).remove, removal)
    return Response()


@router.post("/api/copy")
async def copy(request: Request) -> Response:
    """Give a model another name; no file is copied."""
    context = context_of(request)
    asked = validate(OllamaCopyBody, await read_json_object(request))
    await asyncio.to_thread(_copy, context.config, asked.source, asked.destination)
    return Response()


def _plan(config: Config, name: str, served: Sequence[ModelStatus]) -> tuple[Removal, list[ModelStatus]]:
    """Return the planned removal, and the served models whose files it deletes."""
    Library.of(config).refuse_path(name)
    removal = Shelf(config).plan(name)
    files = {path.resolve() for path in removal.files}
    if not files:
        return removal, []
    return removal, [status for status in served if _uses(status, removal.name, files)]


def _uses(status: ModelStatus, name: str, files: set[Path]) -> bool:
    """Whether a model has one of these files open, or is about to: until it is loaded only its name is known."""
    if status.info is None:
        return status.name == name and status.state is WorkerState.STARTING
    return Path(status.info.path).resolve() in files


def _check_idle(context: Context, status: ModelStatus) -> None:
    """Refuse to unload the default model, or a model with live requests, which would only be unloaded after them."""
    name, num_live = status.name, status.num_live
    if context.service.default_model() in status.names:
        raise InvalidRequest(f"{name} is the model that this daemon serves; serve another one first", param="model")
    if num_live:
        requests = "a request" if num_live == 1 else f"{num_live} requests"
        raise InvalidRequest(f"{name} has {requests} to answer; delete it afterwards", param="model")


def _copy(config: Config, source: str, alias: str) -> None:
    Library.of(config).refuse_path(source)
    Shelf(config).copy(source, alias)
