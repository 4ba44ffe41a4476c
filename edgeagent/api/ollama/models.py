"""Routes of the Ollama API that generate nothing: its version, the models, pull, delete and copy.

A model is listed if it is served or on disk. If `load.on_demand` is true, a request for a model on disk loads it. To
pull, delete or copy a model, a client needs the scope `models`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent import __version__
from edgeagent.api.context import Context, context_of
from edgeagent.api.ollama.body import OllamaCopyBody, OllamaModelBody, OllamaPullBody, known_name, line, rfc3339, tagged
from edgeagent.api.wire.body import read_valid
from edgeagent.api.wire.errors import OllamaRefusal, ollama_refusal, to_client_error
from edgeagent.api.wire.fields import sampling_defaults
from edgeagent.api.wire.route import LINES, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import Stream, last_of, unless_disconnected
from edgeagent.config import Config
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelNotFound
from edgeagent.service.inventory import KnownModel, find_known, known_models
from edgeagent.store.hub.cache import named_sha256
from edgeagent.store.library import Library
from edgeagent.store.library_editor import LibraryEditor, Removal
from edgeagent.text.tool_format import declares_reasoning, declares_tools
from edgeagent.types import ModelInfo, ModelStatus, WorkerState

if TYPE_CHECKING:
    from edgeagent.store.hub.pull import Progress

routes = Routes()


def plan_removal(config: Config, name: str, served: Sequence[ModelStatus]) -> tuple[Removal, list[ModelStatus]]:
    """Return the planned removal, and the served models that use the files to delete. Nothing is deleted yet.

    Raise the errors of `LibraryEditor.plan`, and ModelNotFound if `name` is a path, because clients may not name paths.
    This function reads files: call it in a thread.
    """
    library = Library.of(config)
    try:
        library.refuse_path(name)
        removal = LibraryEditor(config).plan(name)
    except ModelNotFound as error:
        raise ModelNotFound.for_client(name, error) from None
    files = {path.resolve() for path in removal.files}
    if not files:
        return removal, []
    return removal, [status for status in served if _uses(status, removal, files, library)]


def refuse_if_used(status: ModelStatus, default_model: str) -> None:
    """Raise InvalidRequest if a model may not be unloaded: the default model, or a model with live requests."""
    name, num_live = status.name, status.num_live
    if default_model in status.names:
        raise InvalidRequest(f"{name} is the model that this daemon serves; serve another one first", param="model")
    if num_live:
        requests = "a request" if num_live == 1 else f"{num_live} requests"
        raise InvalidRequest(f"{name} has {requests} to answer; delete it afterwards", param="model")


def _uses(status: ModelStatus, removal: Removal, files: set[Path], library: Library) -> bool:
    """Whether a served model, or its draft model once that is known, uses one of the files that `removal` deletes.

    If the model has not been loaded yet, its own files are looked up by its name. If that fails, return whether it has
    the name that `removal` removes.
    """
    if status.info is not None:
        return any(Path(path).resolve() in files for path in (status.info.path, status.info.draft) if path)
    if status.state is WorkerState.READY:
        return False  # a remote's model
    with suppress(EdgeAgentError, OSError):
        return any(path.resolve() in files for path in library.find(status.name).paths)
    return status.name == removal.name  # its file is damaged or missing


# Clients want a date also of a model that stays loaded forever.
_NEVER = timedelta(days=36_500)


class OllamaDetails(Shape):
    """A summary of a model's file."""

    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Shape):
    """A model as Ollama lists it.

    Only /api/tags has modified_at and capabilities. Only /api/ps has expires_at, size_vram and context_length.
    """

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: NotRequired[str]
    capabilities: NotRequired[list[str]]
    expires_at: NotRequired[str]
    size_vram: NotRequired[int]
    context_length: NotRequired[int]


class OllamaModels(Shape):
    """Models as Ollama lists them."""

    models: list[OllamaModel]


class OllamaDescription(Shape):
    """The description of one model in Ollama's format. `model_info` has the file's metadata under GGUF's keys."""

    modelfile: str
    parameters: str
    template: str
    license: str
    details: OllamaDetails
    model_info: Json
    capabilities: list[str]
    modified_at: str


@routes.add("GET|HEAD /api/tags", Scope.INFER, "ollama", answer=OllamaModels)
async def tags(request: Request) -> JSONResponse:
    """List every model that is served or on disk, and the aliases of each."""
    models, aliases = await _known(context_of(request))
    entries: list[OllamaModel] = [
        {**_entry(model), "modified_at": _modified_at(model), "capabilities": capabilities(model)}
        for model in (*models, *aliases)
    ]
    return JSONResponse(OllamaModels(models=entries))


@routes.add("GET /api/ps", Scope.ADMIN, "ollama", answer=OllamaModels)
async def ps(request: Request) -> JSONResponse:
    """List the models that are loaded on this machine."""
    models, _ = await _known(context_of(request))
    now = datetime.now(UTC)
    loaded: list[OllamaModel] = [
        {
            **_entry(model),
            "expires_at": rfc3339(now + _until_unload(model.status)),
            "size_vram": model.info.num_gpu_bytes if model.info else 0,
            "context_length": model.info.context_length if model.info else 0,
        }
        for model in models
        if model.status is not None and model.status.state is WorkerState.READY and not model.status.is_remote
    ]
    return JSONResponse(OllamaModels(models=loaded))


@routes.add("POST /api/show", Scope.INFER, "ollama", body=OllamaModelBody, answer=OllamaDescription)
async def show(request: Request) -> JSONResponse:
    """Describe one model: its file, default parameters, metadata and capabilities."""
    context = context_of(request)
    name = (await read_valid(request, OllamaModelBody)).model
    served_name = partial(known_name, context.service)
    model = await asyncio.to_thread(find_known, context.config, context.service.models.statuses(), name, served_name)
    info = model.info
    body: OllamaDescription = {
        "modelfile": f"FROM {tagged(model.name)}\n",
        "parameters": "\n".join(f"{key} {value:g}" for key, value in _parameters(info)) if info else "",
        # The chat template is the file's own, not one in Ollama's language; clients look here for .Suffix only.
        "template": "{{ .Prompt }}{{ .Suffix }}" if info and info.supports_infill else "{{ .Prompt }}",
        "license": "",
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": capabilities(model),
        "modified_at": _modified_at(model),
    }
    return JSONResponse(body)


async def _known(context: Context) -> tuple[list[KnownModel], list[KnownModel]]:
    return await asyncio.to_thread(known_models, context.config, context.service.models.statuses())


def _until_unload(status: ModelStatus) -> timedelta:
    if status.unload_in_s is None or status.unload_in_s > _NEVER.total_seconds():
        return _NEVER
    return timedelta(seconds=status.unload_in_s)


def _entry(model: KnownModel) -> OllamaModel:
    name = tagged(model.name)
    digest = _digest(model)
    return {"name": name, "model": name, "size": model.size_bytes, "digest": digest, "details": _details(model)}


def _details(model: KnownModel) -> OllamaDetails:
    header, info = model.header, model.info
    family = header.architecture if header else info.architecture if info else ""
    num_params = header.num_params if header else info.num_params if info else 0
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _rounded(num_params),
        "quantization_level": header.quant if header else "",
    }


def _rounded(count: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    return str(count)


def _digest(model: KnownModel) -> str:
    """Return the sha256 that the download cache records for a model's file; "" if there is no file.

    If it records none, return a hash of the model's name and of the file's size and time of change.
    """
    if model.path is None:
        return ""
    with suppress(OSError):
        promised = named_sha256(model.path)
        if promised is not None:
            return promised
        stamp = model.path.stat()
        return hashlib.sha256(f"{model.name}\n{stamp.st_size}\n{stamp.st_mtime_ns}".encode()).hexdigest()
    return ""


def _modified_at(model: KnownModel) -> str:
    if model.path is not None:
        with suppress(OSError):
            return rfc3339(datetime.fromtimestamp(model.path.stat().st_mtime, UTC))
    return rfc3339(datetime.fromtimestamp(0, UTC))


def _parameters(info: ModelInfo) -> Iterator[tuple[str, float]]:
    yield "num_ctx", info.context_length
    for name, value in sampling_defaults(info.sampling).items():
        if value is not None:
            yield name, value


def capabilities(model: KnownModel) -> list[str]:
    """Return what a model can do, in Ollama's words. For a model that is not loaded, its file's header says it."""
    info, header = model.info, model.header
    if info is not None:
        offered = {
            "completion": info.can_generate,
            "tools": info.supports_tools,
            "insert": info.supports_infill,
            "thinking": info.supports_reasoning,
            "embedding": bool(info.embedding_length),
        }
    elif header is not None:
        generates = header.memory_kind != "encoder"
        offered = {
            "completion": generates,
            "tools": generates and declares_tools(header.chat_template),
            "insert": generates and header.has_infill_tokens,
            "thinking": generates and declares_reasoning(header.chat_template),
            "embedding": not header.is_ranking,
        }
    else:
        offered = {"completion": True}
    offered |= {"vision": "image" in model.media, "audio": "audio" in model.media}
    return [name for name, is_offered in offered.items() if is_offered]


def _model_info(model: KnownModel) -> Json:
    """Return metadata under the keys of GGUF files: from the file's header and, where it has none, the loaded model."""
    loaded: Json = {}
    filed: Json = {}
    header, info = model.header, model.info
    if info is not None:
        loaded = {
            "general.architecture": info.architecture,
            "general.parameter_count": info.num_params,
            f"{info.architecture}.context_length": info.context_length_trained,
            f"{info.architecture}.block_count": info.num_layers,
            f"{info.architecture}.vocab_size": info.num_vocab,
            f"{info.architecture}.embedding_length": info.embedding_length or None,
        }
    if header is not None:
        filed = {
            "general.architecture": header.architecture,
            "general.name": header.name,
            "general.parameter_count": header.num_params,
            f"{header.architecture}.context_length": header.context_length,
            f"{header.architecture}.block_count": header.num_layers,
            f"{header.architecture}.vocab_size": header.num_vocab,
            "tokenizer.ggml.model": header.tokenizer,
            "tokenizer.ggml.pre": header.pre_tokenizer,
        }
    return {**_with_values(loaded), **_with_values(filed)}


def _with_values(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value not in (None, "")}


@routes.add("DELETE /api/delete", Scope.MODELS, "ollama", body=OllamaModelBody)
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


@routes.add("POST /api/copy", Scope.MODELS, "ollama", body=OllamaCopyBody)
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


class OllamaPull(Shape):
    """The progress of a download, or `status: success` at the end. Bytes are sums over all files of the model."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


@routes.add("POST /api/pull", Scope.MODELS, "ollama", body=OllamaPullBody, answer=OllamaPull, streams=LINES)
async def pull(request: Request) -> Response:
    """Download a model and its draft if they are not on this machine. A client that disconnects cancels the download.

    The next pull continues an unfinished download.
    """
    context = context_of(request)
    asked = await read_valid(request, OllamaPullBody)
    lines = _lines(context, asked.model)
    if asked.stream is not False:
        return Stream(_encoded(lines), LINES)
    await unless_disconnected(request.receive, last_of(lines))
    return JSONResponse(OllamaPull(status="success"))


async def _encoded(lines: AsyncGenerator[OllamaPull, None]) -> AsyncGenerator[bytes, None]:
    """Yield the lines as bytes. If an error is raised, it is the last line."""
    async with aclosing(lines):
        try:
            async for each in lines:
                yield line(each)
        except Exception as error:
            yield line(ollama_refusal(to_client_error("pull", error)))


async def _lines(context: Context, name: str) -> AsyncGenerator[OllamaPull, None]:
    yield {"status": "pulling manifest"}
    known, statuses = known_name(context.service, name), context.service.models.statuses()
    if not any(status.name == known and not status.is_remote for status in statuses):
        async with aclosing(context.pulls.run(name)) as steps:
            async for step in steps:
                if not isinstance(step, tuple):
                    yield _line(step)
    yield {"status": "success"}


def _line(progress: Progress) -> OllamaPull:
    match progress.stage:
        case "waiting":
            return {"status": "waiting for another download of the same file"}
        case "verifying":
            return {"status": "verifying sha256 digest"}
    return {
        "status": f"pulling {progress.sha256[:12]}",
        "digest": f"sha256:{progress.sha256}",
        "total": progress.total_bytes,
        "completed": progress.done_bytes,
    }


# Clients read from Ollama's version what a server supports. All routes of this version are served: it brought
# /v1/messages. The next versions brought /v1/images/generations, which is not served.
API_VERSION = "0.14.0"


class OllamaVersion(Shape):
    """The version of Ollama whose API is served, and edgeagent's own version."""

    version: str
    edgeagent: str


@routes.add("GET|HEAD /api/version", Scope.INFER, "ollama", answer=OllamaVersion)
async def version(_: Request) -> JSONResponse:
    """Return the version of Ollama whose API is served, and edgeagent's own version."""
    return JSONResponse(OllamaVersion(version=API_VERSION, edgeagent=__version__))


@routes.add("POST /api/create", Scope.MODELS, "ollama", status=HTTPStatus.NOT_IMPLEMENTED, answer=OllamaRefusal)
@routes.add("POST /api/push", Scope.MODELS, "ollama", status=HTTPStatus.NOT_IMPLEMENTED, answer=OllamaRefusal)
@routes.add(
    "HEAD|POST /api/blobs/{digest}", Scope.MODELS, "ollama", status=HTTPStatus.NOT_IMPLEMENTED, answer=OllamaRefusal
)
async def change(_: Request) -> JSONResponse:
    """Refuse: this daemon does not create or push models."""
    text = "edgeagent does not make or push models; see /api/pull, and `edgeagent import` for a file of your own"
    return JSONResponse(OllamaRefusal(error=text), status_code=HTTPStatus.NOT_IMPLEMENTED)
