"""Routes that list the models, and that report the daemon's health, readiness and version."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable
from http import HTTPStatus
from importlib import metadata
from typing import Literal, NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from edgeagent import __version__
from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.errors import error_answer
from edgeagent.api.wire.shape import Shape
from edgeagent.errors import ModelNotFound
from edgeagent.router.models import NO_MODEL
from edgeagent.service.inventory import KnownModel, known_models
from edgeagent.service.service import status_of
from edgeagent.types import UNUSABLE, ModelStatus, WorkerState

router = APIRouter()


class ModelDetails(Shape):
    """edgeagent's own fields of a model."""

    state: WorkerState
    context_length: NotRequired[int]
    supports_tools: NotRequired[bool]


class Model(Shape):
    """A model that a request may name. `created`: when the daemon started, in seconds since 1970."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    edgeagent: ModelDetails
    parent: NotRequired[str]
    """The base model, if this entry is a LoRA adapter. Other entries do not have this field."""


class ModelList(Shape):
    """The models that a request may name: those that are served, then those that a request would load."""

    object: Literal["list"]
    data: list[Model]


class HealthError(Shape):
    """Why the daemon is not ready, in llama-server's words."""

    code: int
    message: str
    type: str


class NotHealthy(Shape):
    """The answer of a daemon that is not ready."""

    error: HealthError


class Health(Shape):
    """The daemon is not stopping, and the default model is loaded, or the next request will load it."""

    status: Literal["ok"]


class Ready(Shape):
    """Requests can be served: the default model passed a test. If it cannot run here, any ready model is enough."""

    status: Literal["ready"]


class Version(Shape):
    """The versions that run. `llama_cpp_commit` is null until a model has been loaded."""

    version: str
    llama_cpp_commit: str | None
    llama_cpp_python: str | None
    python: str


@router.get("/v1/models")
async def list_models(request: Request) -> JSONResponse:
    """List the models that are served, loaded or not, and then the models on this machine that a request would load."""
    context = context_of(request)
    served, others = context.service.models.statuses(), list[KnownModel]()
    if context.config.load.on_demand and context.config.model != NO_MODEL:
        known, _ = await asyncio.to_thread(known_models, context.config, served)
        served = [model.status for model in known if model.status is not None]
        others = [model for model in known if model.status is None]
    models = [
        *(body for each in served for body in _model_bodies(each, context)),
        *(body for each in others for body in _bodies_of_file(each, context)),
    ]
    return JSONResponse(ModelList(object="list", data=models))


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> JSONResponse:
    """Return one model, by any name that a request may use; a name may contain slashes."""
    context = context_of(request)
    if not model_id:
        raise ModelNotFound("put a model's name after the slash; GET /v1/models lists the models", param="model")
    name = await context.service.models.locate(model_id)
    status = status_of(context.service.models, name)
    assert status is not None, "what is located is served"
    return JSONResponse(_model_bodies(status, context)[status.names.index(name)])


def _bodies_of_file(model: KnownModel, context: Context) -> list[Model]:
    details: ModelDetails = {"state": WorkerState.STOPPED}
    if model.header is not None and model.header.context_length:
        details["context_length"] = model.header.context_length
    names = (f"{model.name}+{adapter}" for adapter in model.adapters)
    return _with_adapters(model.name, names, details, context)


def _model_bodies(status: ModelStatus, context: Context) -> list[Model]:
    details: ModelDetails = {"state": status.state}
    if status.info is not None:
        details["context_length"] = status.info.context_length
        details["supports_tools"] = status.info.supports_tools
    return _with_adapters(status.name, status.names[1:], details, context)


def _with_adapters(name: str, others: Iterable[str], details: ModelDetails, context: Context) -> list[Model]:
    """Return the entry of a model, then one for each of its adapters. The `parent` of an adapter is the model."""
    model = _body(name, details, context)
    adapted: list[Model] = [{**model, "id": other, "parent": name} for other in others]
    return [model, *adapted]


def _body(name: str, details: ModelDetails, context: Context) -> Model:
    return {
        "id": name,
        "object": "model",
        "created": context.started_unix_s,
        "owned_by": "edgeagent",
        "edgeagent": details,
    }


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> JSONResponse:
    """Report whether the default model is loaded, or will be loaded by the next request, and no stop has begun.

    The format is llama-server's. No token is needed.
    """
    service = context_of(request).service
    status = status_of(service.models, service.models.default())
    state = None if status is None else status.state
    # An unloaded model is loaded again by its next request.
    if state in (WorkerState.READY, WorkerState.STOPPED) and not service.is_draining:
        return JSONResponse(Health(status="ok"))
    if service.is_draining:
        message = "Stopping"
    else:
        message = "No model is ready" if state in (None, *UNUSABLE) else "Loading model"
    error: HealthError = {
        "code": HTTPStatus.SERVICE_UNAVAILABLE.value,
        "message": message,
        "type": "unavailable_error",
    }
    return JSONResponse(NotHealthy(error=error), HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "1"})


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> JSONResponse:
    """Report whether requests can be served. The result of a test of the default model is reused for a few seconds."""
    error = await context_of(request).probe.result()
    if error is None:
        return JSONResponse(Ready(status="ready"))
    answer = error_answer(request.scope["path"], error)
    answer.status_code = max(answer.status_code, HTTPStatus.SERVICE_UNAVAILABLE)
    return answer


@router.get("/version")
async def version(request: Request) -> JSONResponse:
    """Return the versions of edgeagent, of the llama.cpp inside, and of Python."""
    infos = [status.info for status in context_of(request).service.models.statuses() if status.info is not None]
    commit = next((info.llama_cpp_commit for info in infos if info.llama_cpp_commit), None)
    versions: Version = {
        "version": __version__,
        "llama_cpp_commit": commit,
        "llama_cpp_python": _installed("llama-cpp-python"),
        "python": platform.python_version(),
    }
    return JSONResponse(versions)


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
