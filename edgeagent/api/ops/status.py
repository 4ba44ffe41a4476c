"""The owner's view of the daemon: its status, reloading a model, and the stop."""

from __future__ import annotations

import os
import secrets
import time
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from edgeagent import __version__
from edgeagent.api.context import context_of
from edgeagent.api.ops.remotes import route_report
from edgeagent.api.wire.fields import keep_alive_s
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.types import CacheStatus, Choice, DeviceInfo, ModelInfo, ModelStatus, WorkerStatus

router = APIRouter(prefix="/edgeagent")


@router.get("/status")
async def get_status(request: Request) -> JSONResponse:
    """Return what runs: models and their workers, live requests, tokens a second, devices, connections."""
    context = context_of(request)
    service = context.service
    models = service.models()
    workers = [status.worker for status in models if status.worker is not None]
    return JSONResponse(
        {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - context.started_at_s, 3),
            "is_draining": service.is_draining,
            "trouble": context.trouble(),
            "num_connections": context.num_connections(),
            "num_live_requests": service.num_live,
            "num_requests_total": service.num_total,
            "tokens_per_second": round(sum(worker.tokens_per_second for worker in workers), 3),
            "default_model": service.default_model(),
            # Why every token is refused, where the files of the tokens cannot be trusted.
            "token_trouble": context.keys.trouble or None,
            # Why stored responses are in memory only, e.g. a full disk.
            "response_trouble": context.history.trouble,
            "models": [_model(status) for status in models],
            "route": route_report(context),
        }
    )


@router.post("/reload")
async def reload(request: Request, model: str = "") -> JSONResponse:
    """Load a model again, also a failed or quarantined one; requests of a running one continue."""
    service = context_of(request).service
    service.reload(model)
    return JSONResponse({"status": "reloading", "model": model or service.default_model()}, HTTPStatus.ACCEPTED)


@router.post("/load")
async def load(request: Request, model: str = "", keep_alive: str = "") -> JSONResponse:
    """Load a model and answer when it is ready. `keep_alive`: how long it stays without use, from now on."""
    context = context_of(request)
    seconds = keep_alive_s(keep_alive) if keep_alive else None
    began_s = time.monotonic()
    loading = context.service.load(model, f"load-{secrets.token_hex(12)}", seconds)
    name = await unless_disconnected(request.receive, loading)
    return JSONResponse({"status": "loaded", "model": name, "took_s": round(time.monotonic() - began_s, 3)})


@router.post("/unload")
async def unload(request: Request, model: str = "") -> JSONResponse:
    """End a model's worker, which frees its memory; one that serves ends with its last request."""
    service = context_of(request).service
    name = await service.locate(model)
    num_live = await service.unload(name)
    status, code = ("unloading", HTTPStatus.ACCEPTED) if num_live else ("unloaded", HTTPStatus.OK)
    return JSONResponse({"status": status, "model": name, "num_live_requests": num_live}, code)


@router.post("/stop")
async def stop(request: Request) -> JSONResponse:
    """Ask the daemon to finish live requests and stop; answer before that."""
    context = context_of(request)
    num_live = context.service.num_live
    context.stop()
    return JSONResponse({"status": "stopping", "num_live_requests": num_live}, status_code=HTTPStatus.ACCEPTED)


def _model(status: ModelStatus) -> Json:
    return {
        "name": status.name,
        "state": status.state.value,
        "progress": status.progress,
        "cause": status.cause,
        "pid": status.pid,
        "retry_after_s": status.retry_after_s,
        "num_restarts": status.num_restarts,
        "is_pinned": status.is_pinned,
        "unload_in_s": None if status.unload_in_s is None else round(status.unload_in_s, 1),
        "idle_s": round(status.idle_s, 1),
        "sha256": status.sha256 or None,
        "info": None if status.info is None else _info(status.info),
        "worker": None if status.worker is None else _worker(status.worker),
    }


def _info(info: ModelInfo) -> Json:
    return {
        "path": info.path,
        "architecture": info.architecture,
        "description": info.description,
        "size_bytes": info.size_bytes,
        "num_params": info.num_params,
        "context_length": info.context_length,
        "context_length_trained": info.context_length_trained,
        "max_sequences": info.max_sequences,
        "num_parallel": info.num_parallel,
        "memory_kind": info.memory_kind.value,
        "draft": info.draft,
        "num_gpu_layers": info.num_gpu_layers,
        "num_layers": info.num_layers,
        "devices": [_device(device) for device in info.devices],
        "sandbox": list(info.sandbox),
        "llama_cpp_commit": info.llama_cpp_commit,
        "system_description": info.system_description,
        "load_ms": round(info.load_ms, 1),
        "choices": [_choice(choice) for choice in info.choices],
    }


def _choice(choice: Choice) -> Json:
    return {
        "name": choice.name,
        "value": choice.value,
        "by": choice.by,
        "why": choice.why,
        "alternatives": [{"value": each.value, "work_ms": dict(each.work_ms)} for each in choice.alternatives],
    }


def _worker(worker: WorkerStatus) -> Json:
    return {
        "num_running": worker.num_running,
        "num_waiting": worker.num_waiting,
        "num_steps": worker.num_steps,
        "num_cells_used": worker.num_cells_used,
        "num_cells": worker.num_cells,
        "num_cached_tokens": worker.num_cached_tokens,
        "num_prompt_tokens_total": worker.num_prompt_tokens_total,
        "num_cached_tokens_total": worker.num_cached_tokens_total,
        "num_tokens_from_memory_total": worker.num_tokens_from_memory_total,
        "num_tokens_from_disk_total": worker.num_tokens_from_disk_total,
        "num_output_tokens_total": worker.num_output_tokens_total,
        "tokens_per_second": round(worker.tokens_per_second, 3),
        "step_error_median": round(worker.step_error_median, 4),
        "step_error_p95": round(worker.step_error_p95, 4),
        "drafts": [
            {
                "source": draft.source,
                "num_chosen": list(draft.num_chosen),
                "num_judged": list(draft.num_judged),
                "num_stood": list(draft.num_stood),
            }
            for draft in worker.drafts
        ],
        "draft_gain": round(worker.draft_gain, 3),
        "num_threads": worker.num_threads,
        "rss_bytes": worker.rss_bytes,
        "memory_cache": None if worker.memory_cache is None else _cache(worker.memory_cache),
        "disk_cache": None if worker.disk_cache is None else _cache(worker.disk_cache),
    }


def _cache(cache: CacheStatus) -> Json:
    return {
        "num_blocks": cache.num_blocks,
        "num_bytes": cache.num_bytes,
        "max_bytes": cache.max_bytes,
        "num_hits": cache.num_hits,
        "num_misses": cache.num_misses,
        "num_offered": cache.num_offered,
        "num_dropped": cache.num_dropped,
        "num_evicted": cache.num_evicted,
        "read_bytes_per_s": round(cache.read_bytes_per_s),
        "trouble": cache.trouble,
    }


def _device(device: DeviceInfo) -> Json:
    return {
        "name": device.name,
        "description": device.description,
        "kind": device.kind,
        "memory_total_bytes": device.memory_total_bytes,
        "memory_free_bytes": device.memory_free_bytes,
    }
