"""Every measurement, named once. Whoever measures calls the object; who exports them reads REGISTRY.

The registry is our own: prometheus_client's default one also collects from the process and the interpreter.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from edgeagent.types import Finished

REGISTRY = CollectorRegistry()

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

requests_total = Counter(
    "edgeagent_requests_total",
    "Generations that ended, by their finish reason or error code.",
    ["end"],
    registry=REGISTRY,
)
live_requests = Gauge("edgeagent_live_requests", "Generations that run or wait.", registry=REGISTRY)
prompt_tokens_total = Counter(
    "edgeagent_prompt_tokens_total", "Prompt tokens, by whether the cache had them.", ["cached"], registry=REGISTRY
)
output_tokens_total = Counter("edgeagent_output_tokens_total", "Generated tokens.", registry=REGISTRY)
draft_tokens_total = Counter(
    "edgeagent_draft_tokens_total",
    "Draft tokens, by whether the target accepted them.",
    ["accepted"],
    registry=REGISTRY,
)
stage_seconds = Histogram(
    "edgeagent_stage_seconds", "Time of a generation's stages.", ["stage"], buckets=_SECONDS, registry=REGISTRY
)
refused_total = Counter(
    "edgeagent_refused_total", "Requests the access rules refused, by HTTP status.", ["status"], registry=REGISTRY
)


def observe_finished(finished: Finished) -> None:
    """Count a generation that came to its end."""
    usage, timings = finished.usage, finished.timings
    requests_total.labels(finished.reason.value).inc()
    prompt_tokens_total.labels("true").inc(usage.num_cached_tokens)
    prompt_tokens_total.labels("false").inc(usage.num_prompt_tokens - usage.num_cached_tokens)
    output_tokens_total.inc(usage.num_output_tokens)
    draft_tokens_total.labels("true").inc(timings.num_accepted_tokens)
    draft_tokens_total.labels("false").inc(timings.num_draft_tokens - timings.num_accepted_tokens)
    stages_ms = {
        "queue": timings.queue_ms,
        "load": timings.load_ms,
        "render": timings.render_ms,
        "cache": timings.cache_ms,
        "prefill": timings.prefill_ms,
        "first_token": timings.first_token_ms,
        "decode": timings.decode_ms,
    }
    for stage, milliseconds in stages_ms.items():
        stage_seconds.labels(stage).observe(milliseconds / 1000.0)
