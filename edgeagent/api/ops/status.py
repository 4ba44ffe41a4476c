"""The owner's routes of the daemon: its status and measurements, load, unload and reload of a model, and the stop."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.responses import JSONResponse
from msgspec import Struct
from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema
from starlette.responses import Response

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent import __version__
from edgeagent.api.context import context_of
from edgeagent.api.ops.remotes import RouteReport, route_report
from edgeagent.api.wire.body import OwnerBody, read_fields
from edgeagent.api.wire.fields import MAX_NAME_CHARS, KeepAlive
from edgeagent.api.wire.route import TEXT, Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.metrics.exposition import CONTENT_TYPE, Snapshot, exposition
from edgeagent.types import DeviceInfo, ModelInfo, ModelStatus, WorkerStatus

routes = Routes()


class ModelChoice(OwnerBody):
    """`model`: a name of the model; without it, the default model."""

    model: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class LoadBody(ModelChoice):
    """`keep_alive`: from now on, how long the model stays loaded without use, in seconds or as a duration such as 5m.

    A negative value means forever. Without the field, nothing changes.
    """

    keep_alive: Annotated[KeepAlive | None, BeforeValidator(lambda value: None if value == "" else value)] = None


# What the owner has no use for: hardware ids, points in time of a process, and what is long and in /props.
_UNSHOWN: dict[type[Struct], frozenset[str]] = {
    DeviceInfo: frozenset({"id", "backend", "is_integrated"}),
    ModelInfo: frozenset({"name", "chat_template", "sampling"}),
    WorkerStatus: frozenset({"step_started_at_s", "step_expected_s", "preparing_since_s", "preparing_id"}),
}


def shown_names(struct: type[Struct]) -> list[str]:
    """Return the names of the fields that a report on a struct has."""
    return [name for name in struct.__struct_fields__ if name not in _UNSHOWN.get(struct, ())]


def report(value: Any, name: str = "") -> Any:
    """Return a struct, or the value of its field `name`, as JSON.

    Times in milliseconds have one decimal, other numbers four.
    """
    match value:
        case Struct():
            return {name: report(getattr(value, name), name) for name in shown_names(type(value))}
        case tuple():
            return [report(each) for each in value]
        case float():
            return round(value, 1 if name.endswith("_ms") else 4)
    return value


@cache
def _shape_of(struct: type[Struct]) -> Any:
    hints = get_type_hints(struct)
    make: Any = TypedDict  # mypy wants the fields to stand here
    shape = make(struct.__name__, {name: _as_shape(hints[name]) for name in shown_names(struct)})
    shape.__doc__ = struct.__doc__
    shape.__pydantic_config__ = ConfigDict(extra="allow")
    return shape


def _as_shape(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _shape_of(hint)
    parts = tuple(part if part is ... else _as_shape(part) for part in get_args(hint))
    if get_origin(hint) is UnionType:
        return Union[parts]  # noqa: UP007 the parts are known at run time only
    return hint if not parts or get_origin(hint) is Literal else get_origin(hint)[parts]


@dataclass(frozen=True, slots=True)
class Reported:
    """In the API's documents, an object with this annotation is what `report` returns for the struct."""

    struct: type[Struct]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(_shape_of(self.struct))


class Status(Shape):
    """The daemon's status: its requests, its models, and what is wrong."""

    version: str
    pid: int
    uptime_s: float
    is_draining: bool
    trouble: str | None
    """What is wrong with the daemon itself, e.g. a disk too full for its runtime file; null if nothing is."""
    num_connections: int
    num_live_requests: int
    num_requests_total: int
    tokens_per_second: float
    default_model: str
    token_trouble: str | None
    """Why every token is refused: the files of the tokens cannot be trusted. null if they can be trusted."""
    response_trouble: str | None
    """Why stored responses are in memory only, e.g. a full disk; null if all are written."""
    models: list[Annotated[Json, Reported(ModelStatus)]]
    route: RouteReport


class Stopping(Shape):
    """The daemon finishes its live requests, and then ends."""

    status: Literal["stopping"]
    num_live_requests: int


class Reloading(Shape):
    """The model is being loaded again."""

    status: Literal["reloading"]
    model: str


class Loaded(Shape):
    """The model is loaded."""

    status: Literal["loaded"]
    model: str
    took_s: float


class Unloaded(Shape):
    """The model is unloaded (status 200), or will be unloaded when its live requests have ended (status 202)."""

    status: Literal["unloaded", "unloading"]
    model: str
    num_live_requests: int


@routes.add("GET /edgeagent/status", Scope.ADMIN, "daemon", answer=Status)
async def get_status(request: Request) -> JSONResponse:
    """Return what runs: models and their workers, live requests, tokens a second, devices, connections."""
    await read_fields(request, OwnerBody)
    context = context_of(request)
    service = context.service
    models = service.models.statuses()
    workers = [status.worker for status in models if status.worker is not None]
    body: Status = {
        "version": __version__,
        "pid": os.getpid(),
        "uptime_s": round(time.monotonic() - context.started_at_s, 3),
        "is_draining": service.is_draining,
        "trouble": context.trouble(),
        "num_connections": context.num_connections(),
        "num_live_requests": service.live.num_running,
        "num_requests_total": service.num_total,
        "tokens_per_second": round(sum(worker.tokens_per_second for worker in workers), 3),
        "default_model": service.models.default(),
        "token_trouble": context.keys.trouble or None,
        "response_trouble": context.responses.trouble,
        "models": [report(status) for status in models],
        "route": route_report(context),
    }
    return JSONResponse(body)


@routes.add(
    "POST /edgeagent/reload", Scope.ADMIN, "daemon", answer=Reloading, status=HTTPStatus.ACCEPTED, fields=ModelChoice
)
async def reload(request: Request) -> JSONResponse:
    """Load a model again, also if it failed or is quarantined. Requests of a running model continue."""
    asked = await read_fields(request, ModelChoice)
    service, model = context_of(request).service, asked.model or ""
    service.models.reload(model)
    reloading = Reloading(status="reloading", model=model or service.models.default())
    return JSONResponse(reloading, HTTPStatus.ACCEPTED)


@routes.add("POST /edgeagent/load", Scope.ADMIN, "daemon", answer=Loaded, fields=LoadBody)
async def load(request: Request) -> JSONResponse:
    """Load a model and answer when it is ready. `keep_alive`: how long it stays loaded without use, from now on."""
    asked = await read_fields(request, LoadBody)
    context = context_of(request)
    began_s = time.monotonic()
    loading = context.service.load(asked.model or "", f"load-{secrets.token_hex(12)}", asked.keep_alive)
    name = await unless_disconnected(request.receive, loading)
    return JSONResponse(Loaded(status="loaded", model=name, took_s=round(time.monotonic() - began_s, 3)))


@routes.add("POST /edgeagent/unload", Scope.ADMIN, "daemon", answer=Unloaded, fields=ModelChoice)
async def unload(request: Request) -> JSONResponse:
    """End a model's worker, which frees its memory. A worker that serves requests ends after its last request."""
    asked = await read_fields(request, ModelChoice)
    service = context_of(request).service
    name = await service.models.locate(asked.model or "")
    num_live = await service.models.unload(name)
    unloaded: Unloaded = {
        "status": "unloading" if num_live else "unloaded",
        "model": name,
        "num_live_requests": num_live,
    }
    return JSONResponse(unloaded, HTTPStatus.ACCEPTED if num_live else HTTPStatus.OK)


@routes.add("POST /edgeagent/stop", Scope.ADMIN, "daemon", answer=Stopping, status=HTTPStatus.ACCEPTED)
async def stop(request: Request) -> JSONResponse:
    """Ask the daemon to finish live requests and stop. The answer comes before the stop."""
    await read_fields(request, OwnerBody)
    context = context_of(request)
    num_live = context.service.live.num_running
    context.stop()
    return JSONResponse(Stopping(status="stopping", num_live_requests=num_live), status_code=HTTPStatus.ACCEPTED)


@routes.add("GET /metrics", Scope.ADMIN, "daemon", text=TEXT)
async def get_metrics(request: Request) -> Response:
    """Return every measurement in Prometheus's text format."""
    context = context_of(request)
    snapshot = Snapshot(context.service.models.statuses(), context.num_connections(), context.service.remotes())
    return Response(exposition(snapshot), media_type=CONTENT_TYPE)
