"""DELETE /api/delete and POST /api/copy: a model deleted, or given another name. Both are the owner's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.ollama.models import MAX_NAME_CHARS, asked_model
from edgeagent.api.ollama.wire import OllamaRoute
from edgeagent.api.wire.json_body import read_json_object
from edgeagent.config import Config
from edgeagent.errors import InvalidRequest
from edgeagent.store.resolve import Library
from edgeagent.store.shelf import Shelf

router = APIRouter(route_class=OllamaRoute)


@router.delete("/api/delete")
async def delete(request: Request) -> Response:
    """Delete a model from this machine, or forget an alias or an imported model; a model that is loaded is refused."""
    context = context_of(request)
    name = asked_model(await read_json_object(request))
    await asyncio.to_thread(_delete, context.config, name, _loaded(context))
    return Response()


@router.post("/api/copy")
async def copy(request: Request) -> Response:
    """Give a model another name; no file is copied."""
    context = context_of(request)
    fields = await read_json_object(request)
    source, alias = (_name(fields, key) for key in ("source", "destination"))
    await asyncio.to_thread(_copy, context.config, source, alias)
    return Response()


def _name(fields: dict[str, Any], key: str) -> str:
    name = fields.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"{key} is required, a string of 1 to {MAX_NAME_CHARS} characters", param=key)
    return name


def _delete(config: Config, name: str, loaded: Sequence[Path]) -> None:
    Library.of(config).refuse_path(name)
    shelf = Shelf(config)
    removal = shelf.plan(name)
    files = {path.resolve() for path in removal.files}
    if any(path.resolve() in files for path in loaded):
        raise InvalidRequest(f"{removal.name} is loaded; unload it first, or serve another model", param="model")
    shelf.remove(removal)


def _copy(config: Config, source: str, alias: str) -> None:
    Library.of(config).refuse_path(source)
    Shelf(config).copy(source, alias)


def _loaded(context: Context) -> list[Path]:
    """Return the files of the models that workers have open."""
    return [Path(status.info.path) for status in context.service.models() if status.info is not None]
