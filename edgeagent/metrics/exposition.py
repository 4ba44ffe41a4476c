"""Exports all metrics in Prometheus's format: those of the registry, and those that are read from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from edgeagent import __version__
from edgeagent.metrics import REGISTRY
from edgeagent.metrics.slo import OBJECTIVE, TierFigures
from edgeagent.types import CacheStatus, ModelStatus, RemoteStatus, WorkerState, WorkerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_WORKER_GAUGES: dict[str, tuple[str, Callable[[WorkerStatus], float]]] = {
    "edgeagent_worker_running": ("Sequences the engine is computing.", lambda worker: worker.num_running),
    "edgeagent_worker_waiting": ("Requests that wait inside the worker.", lambda worker: worker.num_waiting),
    "edgeagent_kv_cells_used": ("KV cells in use, idle prefixes included.", lambda worker: worker.num_cells_used),
    "edgeagent_kv_cells": ("All KV cells.", lambda worker: worker.num_cells),
    "edgeagent_worker_threads": ("CPU threads a decode uses.", lambda worker: worker.num_threads),
    "edgeagent_step_prediction_error_median": (
        "The median error of the predicted times of the latest 200 steps, as a share of the measured time.",
        lambda worker: worker.step_error_median,
    ),
    "edgeagent_step_prediction_error_p95": (
        "The 95th percentile of the same error.",
        lambda worker: worker.step_error_p95,
    ),
    "edgeagent_draft_step_prediction_error_median": (
        "The same median for the draft model's steps; 0 without a draft model.",
        lambda worker: worker.draft_step_error_median,
    ),
    "edgeagent_draft_step_prediction_error_p95": (
        "The 95th percentile for the draft model's steps.",
        lambda worker: worker.draft_step_error_p95,
    ),
    "edgeagent_draft_gain": (
        "The token rate of steps with drafts, or beside which the draft model computed, relative to the rate without "
        "drafts; 0 if there was no such step.",
        lambda worker: worker.draft_gain,
    ),
    "edgeagent_shift_divergence_nats": (
        "The median distance of answers with moved cells from exact ones (--cache-shift): the Kullback-Leibler "
        "divergence of the first token's probabilities.",
        lambda worker: worker.shift.median_distance if worker.shift is not None else 0.0,
    ),
    "edgeagent_worker_resident_bytes": ("Memory of the worker's process.", lambda worker: worker.rss_bytes),
}
_WORKER_COUNTERS: dict[str, tuple[str, Callable[[WorkerStatus], float]]] = {
    "edgeagent_worker_decodes": ("Batches that llama.cpp was asked to compute.", lambda worker: worker.num_decodes),
    "edgeagent_worker_graphs_reused": (
        "Batches for which llama.cpp kept the graph of the batch before, because they had the same size and outputs.",
        lambda worker: worker.num_graphs_reused,
    ),
}
_SLO_GAUGES: dict[str, tuple[str, Callable[[TierFigures], float | None]]] = {
    "edgeagent_slo_attainment": (
        "The share of answers of the last hour (1h) or day (1d) that kept their latency targets.",
        lambda figures: figures.attainment,
    ),
    "edgeagent_slo_goodput": (
        "How many requests a second were answered within their latency targets.",
        lambda figures: figures.goodput_per_s,
    ),
    "edgeagent_slo_budget_burn": (
        f"How many times faster the error budget is spent than an objective of {OBJECTIVE:.0%} allows.",
        lambda figures: figures.budget_burn,
    ),
}
_BREAKERS = {"closed": 0.0, "half_open": 1.0, "open": 2.0}
_CACHE_GAUGES: dict[str, tuple[str, Callable[[CacheStatus], float]]] = {
    "edgeagent_cache_bytes": ("Bytes in a tier of the prefix cache below the cells.", lambda cache: cache.num_bytes),
    "edgeagent_cache_max_bytes": ("Most bytes that the tier may hold.", lambda cache: cache.max_bytes),
}
_CACHE_COUNTERS: dict[str, tuple[str, Callable[[CacheStatus], float]]] = {
    "edgeagent_cache_hits": ("Blocks that were found in the tier.", lambda cache: cache.num_hits),
    "edgeagent_cache_misses": ("Blocks that were looked for and not found.", lambda cache: cache.num_misses),
    "edgeagent_cache_evicted": ("Blocks that were evicted.", lambda cache: cache.num_evicted),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of models and remotes at the time of an export.

    A worker's values are those of its last answer to a ping. They are usually at most a second old.
    """

    models: Sequence[ModelStatus]
    num_connections: int
    remotes: Sequence[RemoteStatus] = ()
    slo: Sequence[TierFigures] = ()


def exposition(snapshot: Snapshot) -> bytes:
    """Return all metrics in Prometheus's text format."""
    from prometheus_client.exposition import generate_latest  # with it come http.server and others

    registry = CollectorRegistry()
    registry.register(_Gauges(snapshot))
    return generate_latest(REGISTRY) + generate_latest(registry)


def gauges(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield the metrics that are read from a snapshot, with their labels: gauges, and counters of workers."""
    return _Gauges(snapshot).collect()


class _Gauges(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("edgeagent_build_info", "The version that runs.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        yield GaugeMetricFamily(
            "edgeagent_open_connections", "Connections that are open.", value=self._snapshot.num_connections
        )
        yield from _model_metrics(self._snapshot.models)
        yield from _draft_metrics(self._snapshot.models)
        yield from _cache_metrics(self._snapshot.models)
        yield from _remote_metrics(self._snapshot.remotes)
        yield from _slo_metrics(self._snapshot.slo)


def _model_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    ready = GaugeMetricFamily("edgeagent_model_ready", "Whether a model can answer now.", labels=["model"])
    restarts = CounterMetricFamily(
        "edgeagent_worker_restarts", "How often a model's process was replaced.", labels=["model"]
    )
    read_by = {name: read for name, (_, read) in (_WORKER_GAUGES | _WORKER_COUNTERS).items()}
    of_worker: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        name: family(name, documentation, labels=["model"])
        for family, entries in ((GaugeMetricFamily, _WORKER_GAUGES), (CounterMetricFamily, _WORKER_COUNTERS))
        for name, (documentation, _) in entries.items()
    }
    for model in models:
        ready.add_metric([model.name], float(model.state is WorkerState.READY))
        restarts.add_metric([model.name], model.num_restarts)
        if model.worker is not None:
            for name, metric in of_worker.items():
                metric.add_metric([model.name], read_by[name](model.worker))
    yield ready
    yield restarts
    yield from of_worker.values()


def _draft_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    lengths = CounterMetricFamily(
        "edgeagent_drafts",
        "Drafts by source and number of tokens. Length 0: the source was considered, and nothing was drafted.",
        labels=["model", "source", "length"],
    )
    tokens = CounterMetricFamily(
        "edgeagent_verified_draft_tokens",
        "Draft tokens that the target verified, by source, position from 1, and whether it accepted them.",
        labels=["model", "source", "position", "accepted"],
    )
    for model in models:
        for draft in model.worker.drafts if model.worker is not None else ():
            labels = [model.name, draft.source]
            for length, count in enumerate(draft.num_chosen):
                lengths.add_metric([*labels, str(length)], count)
            accepted = [*draft.num_accepted, *[0] * len(draft.num_verified)]
            for position, verified in enumerate(draft.num_verified):
                tokens.add_metric([*labels, str(position + 1), "true"], accepted[position])
                tokens.add_metric([*labels, str(position + 1), "false"], verified - accepted[position])
    yield from (lengths, tokens)


def _remote_metrics(remotes: Sequence[RemoteStatus]) -> Iterator[Metric]:
    live = GaugeMetricFamily("edgeagent_remote_live_requests", "Requests that run at a remote.", labels=["remote"])
    usable = GaugeMetricFamily("edgeagent_remote_usable", "Whether requests may go to a remote now.", labels=["remote"])
    breaker = GaugeMetricFamily(
        "edgeagent_remote_breaker",
        "An endpoint's circuit breaker: 0 closed, 1 half open, 2 open.",
        labels=["remote", "endpoint"],
    )
    for remote in remotes:
        live.add_metric([remote.name], remote.num_live)
        is_open = all(endpoint.breaker == "open" for endpoint in remote.endpoints)
        usable.add_metric([remote.name], float(not remote.trouble and not is_open))
        for endpoint in remote.endpoints:
            breaker.add_metric([remote.name, endpoint.url], _BREAKERS[endpoint.breaker])
    yield from (live, usable, breaker)


def _slo_metrics(tiers: Sequence[TierFigures]) -> Iterator[Metric]:
    for name, (documentation, read) in _SLO_GAUGES.items():
        gauge = GaugeMetricFamily(name, documentation, labels=["tier", "window"])
        for figures in tiers:
            if (value := read(figures)) is not None:
                gauge.add_metric([figures.tier, figures.window], value)
        yield gauge


def _cache_metrics(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    labels = ["model", "tier"]
    caches = [
        ([model.name, tier], cache)
        for model in models
        if model.worker is not None
        for tier, cache in (("memory", model.worker.memory_cache), ("disk", model.worker.disk_cache))
        if cache is not None
    ]
    restored = CounterMetricFamily(
        "edgeagent_cache_restored_tokens", "Prompt tokens that came back from a tier below the cells.", labels=labels
    )
    for model in models:
        if model.worker is not None and model.worker.memory_cache is not None:
            restored.add_metric([model.name, "memory"], model.worker.num_tokens_from_memory_total)
        if model.worker is not None and model.worker.disk_cache is not None:
            restored.add_metric([model.name, "disk"], model.worker.num_tokens_from_disk_total)
    yield restored
    for family, entries in ((GaugeMetricFamily, _CACHE_GAUGES), (CounterMetricFamily, _CACHE_COUNTERS)):
        for name, (documentation, read) in entries.items():
            metric = family(name, documentation, labels=labels)
            for values, cache in caches:
                metric.add_metric(values, read(cache))
            yield metric
