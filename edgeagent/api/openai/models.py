"""Routes that list and pull models, and that report the daemon's health, readiness and version."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from http import HTTPStatus
from importlib import metadata
from typing import TYPE_CHECKING, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent import __version__
from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.body import Settings, read_valid
from edgeagent.api.wire.errors import Refusal, error_answer, error_body
from edgeagent.api.wire.fields import ModelName
from edgeagent.api.wire.route import SSE, Routes
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.api.wire.sse import DONE, EventStream, event, last_of, unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, ModelNotFound
from edgeagent.router.models import NO_MODEL
from edgeagent.service.inventory import KnownModel, known_models
from edgeagent.service.service import status_of
from edgeagent.types import UNUSABLE, MediaKind, ModelStatus, WorkerState

if TYPE_CHECKING:
    from edgeagent.store.hub.background import Pulled
    from edgeagent.store.hub.pull import Progress

routes = Routes()


class ModelDetails(Shape):
    """edgeagent's own fields of a model."""

    state: WorkerState
    context_length: NotRequired[int]
    supports_tools: NotRequired[bool]
    media: NotRequired[list[MediaKind]]
    """What the model reads besides text. It is absent for a remote's model, of which it is not known."""


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


@routes.add("GET /v1/models", Scope.INFER, "openai", answer=ModelList)
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


@routes.add("GET /v1/models/{model_id:path}", Scope.INFER, "openai", answer=Model)
async def get_model(request: Request) -> JSONResponse:
    """Return one model, by any name that a request may use; a name may contain slashes."""
    context, model_id = context_of(request), request.path_params["model_id"]
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
    details["media"] = list(model.media)
    names = (f"{model.name}+{adapter}" for adapter in model.adapters)
    return _with_adapters(model.name, names, details, context)


def _model_bodies(status: ModelStatus, context: Context) -> list[Model]:
    details: ModelDetails = {"state": status.state}
    if status.info is not None:
        details["context_length"] = status.info.context_length
        details["supports_tools"] = status.info.supports_tools
        details["media"] = list(status.info.media)
    return _with_adapters(status.name, status.names[1:], details, context)


def _with_adapters(name: str, others: Iterable[str], details: ModelDetails, context: Context) -> list[Model]:
    """Return the entry of a model, then one for each of its adapters. The `parent` of an adapter is the model."""
    model: Model = {
        "id": name,
        "object": "model",
        "created": context.started_unix_s,
        "owned_by": "edgeagent",
        "edgeagent": details,
    }
    adapted: list[Model] = [{**model, "id": other, "parent": name} for other in others]
    return [model, *adapted]


@routes.add("GET|HEAD /health", None, "daemon", answer=Health, unavailable=NotHealthy)
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


@routes.add("GET|HEAD /ready", Scope.INFER, "daemon", answer=Ready)
async def ready(request: Request) -> JSONResponse:
    """Report whether requests can be served. The result of a test of the default model is reused for a few seconds."""
    error = await context_of(request).probe.result()
    if error is None:
        return JSONResponse(Ready(status="ready"))
    answer = error_answer(request.scope["path"], error)
    answer.status_code = max(answer.status_code, HTTPStatus.SERVICE_UNAVAILABLE)
    return answer


@routes.add("GET /version", Scope.INFER, "daemon", answer=Version)
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


class PullBody(Settings):
    """`model`: the model to download. `draft`: download its draft too.

    `stream`: send the progress as events; if false, send one answer at the end.
    """

    model: ModelName
    stream: bool = True
    draft: bool = True


class PullProgress(Shape):
    """The progress of a pull, as an event of a stream. Bytes are sums over all files of the model.

    `stage`: waiting (another process pulls the same file), downloading or verifying. `resumed_bytes`: bytes of partial
    files that were on disk before. `sha256`: the hash that `file` must have.
    """

    object: Literal["model.pull.progress"]
    stage: str
    file: str
    done_bytes: int
    total_bytes: int
    resumed_bytes: int
    sha256: str


class PulledFile(Shape):
    """A model that is now on this machine. `is_current` is false if the hub did not say whether a newer version exists.

    `downloaded_bytes`: the bytes that this pull has downloaded.
    """

    id: str
    size_bytes: int
    downloaded_bytes: int
    is_current: bool


class ModelPull(PulledFile):
    """The pulled model. A stream sends `model.pull.progress` events first.

    `draft`: the draft model. It is null if it was not requested, does not exist, or could not be downloaded.
    """

    object: Literal["model.pull"]
    draft: PulledFile | None


@routes.add("POST /v1/models/pull", Scope.MODELS, "openai", body=PullBody, answer=ModelPull, streams=SSE)
async def pull(request: Request) -> Response:
    """Download a model and its draft if they are not on this machine. A client that disconnects cancels the download.

    The next pull continues an unfinished download. While a pull runs, another one is refused with BackendUnavailable.
    """
    asked = await read_valid(request, PullBody)
    steps = context_of(request).pulls.run(asked.model, with_draft=asked.draft)
    if asked.stream:
        # A refusal comes instead of the first step, and gets its status.
        return EventStream(_events(await anext(steps), steps))
    return JSONResponse(_shown(await unless_disconnected(request.receive, last_of(steps))))


def _shown(step: Progress | Pulled) -> PullProgress | ModelPull:
    if not isinstance(step, tuple):
        return shaped(PullProgress, step, object="model.pull.progress")
    pulled, draft = step
    brought = None if draft is None else shaped(PulledFile, draft, id=draft.name)
    return shaped(ModelPull, pulled, id=pulled.name, object="model.pull", draft=brought)


async def _events(
    first: Progress | Pulled, steps: AsyncGenerator[Progress | Pulled, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        yield event(_shown(first))
        try:
            async for step in steps:
                yield event(_shown(step))
        except EdgeAgentError as error:
            yield event(Refusal(error=error_body(error)))
    yield DONE
