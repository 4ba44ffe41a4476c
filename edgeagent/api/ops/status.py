"""The owner's routes of the daemon: its status and measurements, load, unload and reload of a model, and the stop."""

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
from edgeagent.api.ops.remotes import RouteReport, route_report
from edgeagent.api.wire.body import OwnerBody, read_fields
from edgeagent.api.wire.fields import MAX_NAME_CHARS, KeepAlive
from edgeagent.api.wire.route import TEXT, Routes
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.metrics.exposition import CONTENT_TYPE, Snapshot, exposition
from edgeagent.types import CacheStatus, MemoryKind, ModelInfo, ModelStatus, SettingChoice, WorkerState, WorkerStatus

routes = Routes()


class ModelChoice(OwnerBody):
    """`model`: a name of the model; without it, the default model."""

    model: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class LoadBody(ModelChoice):
    """`keep_alive`: from now on, how long the model stays loaded without use, in seconds or as a duration such as 5m.

    A negative value means forever. Without the field, nothing changes.
    """

    keep_alive: Annotated[KeepAlive | None, BeforeValidator(lambda value: None if value == "" else value)] = None


class TierReport(Shape):
    """A tier of the cache: its contents, and how often blocks were found, missed, offered, dropped and evicted.

    `num_offered` counts the blocks that were given to the tier, and `num_dropped` those of them that it did not store.
    `read_bytes_per_s` is measured; 0 if nothing was read. `trouble`: why the tier stores nothing at the moment; null if
    nothing is wrong.
    """

    num_blocks: int
    num_bytes: int
    max_bytes: int
    num_hits: int
    num_misses: int
    num_offered: int
    num_dropped: int
    num_evicted: int
    read_bytes_per_s: int
    trouble: str | None


class DraftReport(Shape):
    """Counts of the drafts of one source.

    `num_chosen[n]`: how many drafts of n tokens were made; with n = 0, how often the source was considered but drafted
    nothing. `num_verified[i]` and `num_accepted[i]`: how many draft tokens at position i were verified, and accepted.
    """

    source: str
    num_chosen: list[int]
    num_verified: list[int]
    num_accepted: list[int]


class WorkerReport(Shape):
    """The state of a model's process.

    `step_error_median` and `step_error_p95`: the median and the 95th percentile of the recent errors of predicted step
    times; an error is a fraction of the measured time. `draft_step_error_median` and `draft_step_error_p95`: the same
    for the steps of the draft model; 0 without a draft model. `draft_gain`: the factor by which drafts raised the
    tokens per second; 0 if there were no drafts.
    """

    num_running: int
    num_waiting: int
    num_steps: int
    num_cells_used: int
    num_cells: int
    num_cached_tokens: int
    num_prompt_tokens_total: int
    num_cached_tokens_total: int
    num_tokens_from_memory_total: int
    num_tokens_from_disk_total: int
    num_output_tokens_total: int
    tokens_per_second: float
    step_error_median: float
    step_error_p95: float
    draft_step_error_median: float
    draft_step_error_p95: float
    drafts: list[DraftReport]
    draft_gain: float
    num_threads: int
    max_threads: int
    rss_bytes: int
    memory_cache: TierReport | None
    disk_cache: TierReport | None


class DeviceReport(Shape):
    """A device that llama.cpp computes on."""

    name: str
    description: str
    kind: str
    memory_total_bytes: int
    memory_free_bytes: int


class AlternativeReport(Shape):
    """A value that could be chosen, and the milliseconds that each kind of work is expected to take with it."""

    value: str
    work_ms: dict[str, float]


class ChoiceReport(Shape):
    """The value chosen for a setting when the model was loaded. `why`: the reason in words.

    `by`: what decided: option, measurement, memory, model (the model's shape), trial (something was tried and failed)
    or default.
    """

    name: str
    value: str
    by: str
    why: str
    alternatives: list[AlternativeReport]


class InfoReport(Shape):
    """What is known about a model once it is loaded.

    `num_gpu_layers`: -1 means all. `draft`: the draft model's file, "ngram" if only n-grams of the text give drafts, or
    null. `draft_why`: the reason for the value of `draft`. `sandbox`: in words, what the worker's process may not do.
    """

    path: str
    architecture: str
    description: str
    size_bytes: int
    num_params: int
    context_length: int
    context_length_trained: int
    max_sequences: int
    num_parallel: int
    memory_kind: MemoryKind
    draft: str | None
    draft_why: str
    num_gpu_layers: int
    num_layers: int
    devices: list[DeviceReport]
    sandbox: list[str]
    llama_cpp_commit: str
    system_description: str
    load_ms: float
    choices: list[ChoiceReport]


class ModelReport(Shape):
    """A model, and the state of its worker.

    `progress`: the loaded fraction, 0 to 1. `cause`: why the last worker ended or could not load the model; null if no
    worker failed. `retry_after_s`: seconds until a request may load a failed or quarantined model again; null
    otherwise. `is_pinned`: the model is never unloaded to make room. `unload_in_s`: seconds until the model is unloaded
    if no client uses it; null if never, or if it is not loaded. `idle_s`: seconds since its last use.
    """

    name: str
    state: WorkerState
    progress: float
    cause: str | None
    pid: int | None
    retry_after_s: float | None
    num_restarts: int
    is_pinned: bool
    unload_in_s: float | None
    idle_s: float
    sha256: str | None
    info: InfoReport | None
    worker: WorkerReport | None


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
    models: list[ModelReport]
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
    report: Status = {
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
        "models": [_model(status) for status in models],
        "route": route_report(context),
    }
    return JSONResponse(report)


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


def _model(status: ModelStatus) -> ModelReport:
    return shaped(
        ModelReport,
        status,
        unload_in_s=None if status.unload_in_s is None else round(status.unload_in_s, 1),
        idle_s=round(status.idle_s, 1),
        sha256=status.sha256 or None,
        info=None if status.info is None else _info(status.info),
        worker=None if status.worker is None else _worker(status.worker),
    )


def _info(info: ModelInfo) -> InfoReport:
    return shaped(
        InfoReport,
        info,
        devices=[shaped(DeviceReport, device) for device in info.devices],
        load_ms=round(info.load_ms, 1),
        choices=[_choice(choice) for choice in info.choices],
    )


def _choice(choice: SettingChoice) -> ChoiceReport:
    return shaped(ChoiceReport, choice, alternatives=[shaped(AlternativeReport, each) for each in choice.alternatives])


def _worker(worker: WorkerStatus) -> WorkerReport:
    return shaped(
        WorkerReport,
        worker,
        tokens_per_second=round(worker.tokens_per_second, 3),
        step_error_median=round(worker.step_error_median, 4),
        step_error_p95=round(worker.step_error_p95, 4),
        draft_step_error_median=round(worker.draft_step_error_median, 4),
        draft_step_error_p95=round(worker.draft_step_error_p95, 4),
        drafts=[shaped(DraftReport, draft) for draft in worker.drafts],
        draft_gain=round(worker.draft_gain, 3),
        memory_cache=None if worker.memory_cache is None else _cache(worker.memory_cache),
        disk_cache=None if worker.disk_cache is None else _cache(worker.disk_cache),
    )


def _cache(cache: CacheStatus) -> TierReport:
    return shaped(TierReport, cache, read_bytes_per_s=round(cache.read_bytes_per_s))


@routes.add("GET /metrics", Scope.ADMIN, "daemon", text=TEXT)
async def get_metrics(request: Request) -> Response:
    """Return every measurement in Prometheus's text format."""
    context = context_of(request)
    snapshot = Snapshot(context.service.models.statuses(), context.num_connections(), context.service.remotes())
    return Response(exposition(snapshot), media_type=CONTENT_TYPE)
