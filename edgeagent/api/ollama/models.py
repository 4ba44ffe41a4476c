"""Which models there are, in Ollama's words: /api/tags, /api/ps, /api/show.

A model is listed when it is served, or lies on disk; only those that are served can be asked.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from edgeagent.api.context import Context, context_of
from edgeagent.api.ollama.body import OllamaModelBody
from edgeagent.api.ollama.wire import OllamaRoute, known_name, rfc3339, tagged
from edgeagent.api.openai.models import listed
from edgeagent.api.wire.fields import validate
from edgeagent.api.wire.json_body import read_json_object
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.config import Config
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelDamaged, ModelLoadFailed, ModelNotFound
from edgeagent.store.gguf.header import GgufHeader
from edgeagent.store.hub.cache import named_sha256
from edgeagent.store.resolve import Library, LocalModel, current_header
from edgeagent.types import ModelInfo, ModelStatus, WorkerState

router = APIRouter(route_class=OllamaRoute)

# Clients want a date also of a model that stays loaded forever.
_NEVER = timedelta(days=36_500)


class OllamaDetails(Shape):
    """A model's file in short."""

    parent_model: str
    format: Literal["gguf"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Shape):
    """A model as Ollama lists it; the fields after `details` are of /api/tags, or of /api/ps."""

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
    """A model as Ollama describes it."""

    modelfile: str
    parameters: str
    template: str
    license: str
    details: OllamaDetails
    model_info: Json
    capabilities: list[str]
    modified_at: str


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as far as it is known: from its file (`header`), and once it is loaded (`info`)."""

    name: str
    path: Path | None = None
    size_bytes: int = 0
    header: GgufHeader | None = None
    info: ModelInfo | None = None
    is_loaded: bool = False
    unload_in_s: float | None = None


@router.api_route("/api/tags", methods=["GET", "HEAD"])
async def tags(request: Request) -> JSONResponse:
    """List every model that is served or on disk."""
    models = await asyncio.to_thread(_list, context_of(request).config, context_of(request).service.models())
    entries: list[OllamaModel] = [
        {**_entry(model), "modified_at": _modified_at(model), "capabilities": _capabilities(model)} for model in models
    ]
    return JSONResponse(OllamaModels(models=entries))


@router.get("/api/ps")
async def ps(request: Request) -> JSONResponse:
    """List the models that are loaded."""
    models = await asyncio.to_thread(_list, context_of(request).config, context_of(request).service.models())
    now = datetime.now(UTC)
    loaded: list[OllamaModel] = [
        {
            **_entry(model),
            "expires_at": rfc3339(now + _until_unload(model)),
            "size_vram": model.info.num_gpu_bytes if model.info else 0,
            "context_length": model.info.context_length if model.info else 0,
        }
        for model in models
        if model.is_loaded
    ]
    return JSONResponse(OllamaModels(models=loaded))


@router.post("/api/show")
async def show(request: Request) -> JSONResponse:
    """Describe one model."""
    context = context_of(request)
    name = validate(OllamaModelBody, await read_json_object(request)).model
    model = await asyncio.to_thread(_find, context, name, context.service.models())
    info = model.info
    body: OllamaDescription = {
        "modelfile": f"FROM {tagged(model.name)}\n",
        "parameters": "\n".join(f"{key} {value:g}" for key, value in _parameters(info)) if info else "",
        # The chat template is the file's own, not one in Ollama's language; clients look here for .Suffix only.
        "template": "{{ .Prompt }}{{ .Suffix }}" if info and info.supports_infill else "{{ .Prompt }}",
        "license": "",
        "details": _details(model),
        "model_info": _model_info(model),
        "capabilities": _capabilities(model),
        "modified_at": _modified_at(model),
    }
    return JSONResponse(body)


def _list(config: Config, served: Sequence[ModelStatus]) -> list[ListedModel]:
    """Return all models, each once: those that are served come first. Reads files: call it in a thread.

    Aliases are models of their own, and come last.
    """
    served, local = listed(config, served)
    on_disk = {model.name: ListedModel(model.name, model.paths[0], model.size_bytes, model.header) for model in local}
    models = [_served(status, on_disk.pop(status.name, None)) for status in served]
    paths = {model.path.resolve() for model in models if model.path is not None}
    models += [model for model in on_disk.values() if model.path is None or model.path.resolve() not in paths]
    by_name = {model.name: model for model in models}
    by_path = {model.path.resolve(): model for model in models if model.path is not None}
    found = [(model, by_name.get(model.name) or by_path.get(model.paths[0].resolve())) for model in local]
    named = [(alias, each) for model, each in found for alias in _names_beside(model) if alias not in by_name]
    return models + [replace(model, name=alias, is_loaded=False) for alias, model in named if model is not None]


def _names_beside(model: LocalModel) -> tuple[str, ...]:
    """Return a model's other names. A file without a name may be served by its path, under the file's name."""
    return (model.name, *model.aliases) if model.origin == "alias" else model.aliases


def _served(status: ModelStatus, known: ListedModel | None) -> ListedModel:
    info, header = status.info, known.header if known else None
    path = Path(info.path) if info is not None else known.path if known else None
    if header is None and path is not None:
        with suppress(EdgeAgentError):
            header = current_header(path)
    size_bytes = known.size_bytes if known else info.size_bytes if info else 0
    is_loaded = status.state is WorkerState.READY
    return ListedModel(status.name, path, size_bytes, header, info, is_loaded, status.unload_in_s)


def _until_unload(model: ListedModel) -> timedelta:
    if model.unload_in_s is None or model.unload_in_s > _NEVER.total_seconds():
        return _NEVER
    return timedelta(seconds=model.unload_in_s)


def _find(context: Context, name: str, served: Sequence[ModelStatus]) -> ListedModel:
    """Return the model that a client means; raise ModelNotFound. Reads files: call it in a thread."""
    models = {model.name: model for model in _list(context.config, served)}
    # It may be served under another name than the client's, or not at all.
    for known in (known_name(context.service, name), name):
        if known in models:
            return models[known]
    library = Library.of(context.config)
    base, _, adapter = name.rpartition("+")
    if base and name not in models and library.has_adapter(base, adapter):
        return replace(_find(context, base, served), name=name)
    try:
        library.refuse_path(name)
        found = library.local(name)
    except (ModelNotFound, InvalidRequest) as error:  # the latter for a name that no model can have
        why = error.message if "not found" in error.message else f"model '{name[:256]}' not found: {error.message}"
        raise ModelNotFound(why, param="model") from None
    if found.name in models:
        return models[found.name]
    if found.problem is not None:
        raise (ModelDamaged if found.is_damaged else ModelLoadFailed)(found.problem, param="model")
    raise ModelNotFound(f"model '{name[:256]}' not found", param="model")


def _entry(model: ListedModel) -> OllamaModel:
    name = tagged(model.name)
    digest = _digest(model)
    return {"name": name, "model": name, "size": model.size_bytes, "digest": digest, "details": _details(model)}


def _details(model: ListedModel) -> OllamaDetails:
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


def _digest(model: ListedModel) -> str:
    """Return a digest that changes with the model: its sha256 if the cache has it, else one of its size and time."""
    if model.path is None:
        return ""
    with suppress(OSError):
        promised = named_sha256(model.path)
        if promised is not None:
            return promised
        stamp = model.path.stat()
        return hashlib.sha256(f"{model.name}\n{stamp.st_size}\n{stamp.st_mtime_ns}".encode()).hexdigest()
    return ""


def _modified_at(model: ListedModel) -> str:
    if model.path is not None:
        with suppress(OSError):
            return rfc3339(datetime.fromtimestamp(model.path.stat().st_mtime, UTC))
    return rfc3339(datetime.fromtimestamp(0, UTC))


def _parameters(info: ModelInfo) -> Iterator[tuple[str, float]]:
    yield "num_ctx", info.context_length
    sampling = info.sampling
    for name in (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
    ):
        value = getattr(sampling, name)
        if value is not None:
            yield name, value


def _capabilities(model: ListedModel) -> list[str]:
    info, header = model.info, model.header
    if info is None:
        return ["embedding" if header is not None and header.memory_kind == "encoder" else "completion"]
    offered = {
        "completion": info.can_generate,
        "tools": info.supports_tools,
        "insert": info.supports_infill,
        "thinking": info.supports_reasoning,
        "embedding": bool(info.embedding_length),
    }
    return [name for name, is_offered in offered.items() if is_offered]


def _model_info(model: ListedModel) -> Json:
    """Return the file's metadata under its own keys, and facts known since it was loaded."""
    fields: Json = {}
    header, info = model.header, model.info
    if info is not None:
        fields |= {
            "general.architecture": info.architecture,
            "general.parameter_count": info.num_params,
            f"{info.architecture}.context_length": info.context_length_trained,
            f"{info.architecture}.block_count": info.num_layers,
            f"{info.architecture}.vocab_size": info.num_vocab,
            f"{info.architecture}.embedding_length": info.embedding_length or None,
        }
    if header is not None:
        fields |= {
            "general.architecture": header.architecture,
            "general.name": header.name,
            "general.parameter_count": header.num_params,
            f"{header.architecture}.context_length": header.context_length,
            f"{header.architecture}.block_count": header.num_layers,
            f"{header.architecture}.vocab_size": header.num_vocab,
            "tokenizer.ggml.model": header.tokenizer,
            "tokenizer.ggml.pre": header.pre_tokenizer,
        }
    return {key: value for key, value in fields.items() if value not in (None, "")}
