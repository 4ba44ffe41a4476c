"""The owner's routes of the daemon: status, measurements, latency targets, load and unload of a model, and the stop."""

from __future__ import annotations

import os
import secrets
import time
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from edgeagent import __version__
from edgeagent.api.context import context_of
from edgeagent.api.ops.answers import AnswersReport, answers_report
from edgeagent.api.ops.remotes import RouteReport, route_report
from edgeagent.api.wire.body import OwnerBody, read_fields
from edgeagent.api.wire.fields import MAX_NAME_CHARS, KeepAlive
from edgeagent.api.wire.route import TEXT, Routes
from edgeagent.api.wire.shape import Json, Reported, Shape, report
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.metrics.exposition import CONTENT_TYPE, Snapshot, exposition
from edgeagent.metrics.slo import OBJECTIVE, TierFigures
from edgeagent.types import ModelStatus, Tier

routes = Routes()


class ModelChoice(OwnerBody):
    """`model`: a name of the model; without it, the default model."""

    model: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class LoadBody(ModelChoice):
    """`keep_alive`: from now on, how long the model stays loaded without use, in seconds or as a duration such as 5m.

    A negative value means forever. Without the field, nothing changes.
    """

    keep_alive: Annotated[KeepAlive | None, BeforeValidator(lambda value: None if value == "" else value)] = None


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
    answers: AnswersReport | None
    """What the answer cache has and did; null if it is off."""
    advice: list[str]
    """What would make requests faster, e.g. to move a clock to the end of the instructions."""
    models: list[Annotated[Json, Reported(ModelStatus)]]
    route: RouteReport


class TierTarget(Shape):
    """The latency target of a tier: to the first token (TTFT), and from one token to the next (ITL)."""

    ttft_ms: float
    itl_ms: float


class SloReport(Shape):
    """How many answers kept their latency targets in the last hour and day. `objective`: the share that should.

    `targets`: that of each tier; a request may ask for its own. `tiers`: no entry for a tier without answers.
    """

    objective: float
    targets: dict[Tier, TierTarget]
    tiers: list[Annotated[Json, Reported(TierFigures)]]


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
        "num_connections": len(context.connections),
        "num_live_requests": service.live.num_running,
        "num_requests_total": service.num_total,
        "tokens_per_second": round(sum(worker.tokens_per_second for worker in workers), 3),
        "default_model": service.models.default(),
        "token_trouble": context.keys.trouble or None,
        "response_trouble": context.responses.store.trouble,
        "answers": None if context.answers is None else answers_report(context.answers),
        "advice": [each.advice for each in service.changing_instructions],
        "models": [report(status) for status in models],
        "route": route_report(context),
    }
    return JSONResponse(body)


@routes.add("GET /edgeagent/slo", Scope.ADMIN, "daemon", answer=SloReport)
async def get_slo(request: Request) -> JSONResponse:
    """Return how many answers kept their latency targets, how long they took, and which stages broke the targets."""
    await read_fields(request, OwnerBody)
    context = context_of(request)
    body: SloReport = {
        "objective": OBJECTIVE,
        "targets": {
            tier: {"ttft_ms": 1000.0 * target.first_token_s, "itl_ms": 1000.0 * target.token_s}
            for tier, target in context.service.targets.items()
        },
        "tiers": [report(figures) for figures in context.slo.figures()],
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


@routes.add("GET /metrics", Scope.ADMIN, "daemon", text=(TEXT,))
async def get_metrics(request: Request) -> Response:
    """Return every measurement in Prometheus's text format."""
    context = context_of(request)
    models, remotes = context.service.models.statuses(), context.service.remotes()
    snapshot = Snapshot(models, len(context.connections), remotes, context.slo.figures())
    return Response(exposition(snapshot), media_type=CONTENT_TYPE)
