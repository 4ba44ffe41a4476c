"""All metrics, each declared once. Code that measures uses these objects; `metrics.exposition` exports them.

The registry is our own, because prometheus_client's default one also collects from the interpreter. Labels are bounded:
route templates, error codes, and names of served models, but never a client's own text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

from prometheus_client.metrics import Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry


class Series:
    """The observations of one combination of label values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is at least the value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound as text with the number of values up to that bound; the last bound is infinity."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class FastHistogram(Collector):
    """A histogram for values of every step.

    An observation takes 0.2 µs; prometheus_client's histogram takes 2 µs. It has no lock, because only the event loop's
    thread observes. Call `labels` once for each stream, and `observe` on the result.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label_names: Sequence[str] = (),
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self.label_names = tuple(label_names)
        self.bounds = tuple(map(float, bounds))
        self.series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """Return the series of these label values, in the order of their names, creating it if needed."""
        series = self.series.get(values)
        if series is None:
            series = self.series[values] = Series(self.bounds)
        return series

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self.label_names or None)
        for values, series in self.series.items():
            family.add_metric(values, series.cumulative(), series.sum)
        yield family


# Do not export a second series with each counter's creation time, which is not used.
disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
# Memory, descriptors and CPU time of the daemon itself, on systems that report them (Linux).
ProcessCollector(registry=REGISTRY)

_counter, _gauge = partial(Counter, registry=REGISTRY), partial(Gauge, registry=REGISTRY)
_histogram, _fast_histogram = partial(Histogram, registry=REGISTRY), partial(FastHistogram, registry=REGISTRY)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_SECONDS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

requests_total = _counter(
    "edgeagent_requests_total",
    "Requests of clients, by route and outcome: an HTTP status, or how a response on a WebSocket or Wyoming ended.",
    ["route", "method", "outcome"],
)
refused_total = _counter(
    "edgeagent_refused_total",
    "Requests refused by a check (connections, Host, Origin, token), a queue or a model, by error code; "
    "wrong bodies count among the requests, by their status.",
    ["reason"],
)
generations_total = _counter(
    "edgeagent_generations_total",
    "Generations that ended, by their finish reason or error code; abandoned: the client left.",
    ["model", "end"],
)
live_requests = _gauge(
    "edgeagent_live_requests",
    "Generations that are waiting or running.",
    ["model", "state"],
)
# Where an answer ran is where it began: a stream that moves keeps its series.
_OF_AN_ANSWER = ("model", "tier", "served_by")
first_token_seconds = _fast_histogram(
    "edgeagent_first_token_seconds",
    "Time from a request's acceptance to its first output (TTFT).",
    _OF_AN_ANSWER,
    bounds=_SECONDS,
)
usable_seconds = _fast_histogram(
    "edgeagent_usable_seconds",
    "Time from a request's acceptance to the first whole sentence of its answer, or its first whole tool call (TTUA).",
    _OF_AN_ANSWER,
    bounds=_SECONDS,
)
inter_token_seconds = _fast_histogram(
    "edgeagent_inter_token_seconds",
    "Time from one output of a stream to the next (ITL). An output may have several tokens.",
    _OF_AN_ANSWER,
    bounds=_GAP_SECONDS,
)
generation_seconds = _fast_histogram(
    "edgeagent_generation_seconds",
    "Time from a request's acceptance to its end.",
    _OF_AN_ANSWER,
    bounds=_SECONDS,
)
stage_seconds = _fast_histogram(
    "edgeagent_stage_seconds",
    "Time of each stage of a finished generation. The stage queue is the wait for a free sequence.",
    ("stage", "tier", "served_by"),
    bounds=_SECONDS,
)
answers_total = _counter(
    "edgeagent_answers_total",
    "Answers that have ended, by whether they kept their latency target: met, the stage that broke it, or failed. "
    "Requests that were refused, or cancelled before their first token was due, are not counted.",
    [*_OF_AN_ANSWER, "outcome"],
)
prefill_tokens_total = _counter(
    "edgeagent_prefill_tokens_total",
    "Prompt tokens that were computed.",
    ["model"],
)
prefix_cache_hit_tokens_total = _counter(
    "edgeagent_prefix_cache_hit_tokens_total",
    "Prompt tokens that were found in the prefix cache.",
    ["model"],
)
shifted_tokens_total = _counter(
    "edgeagent_shifted_tokens_total",
    "Prompt tokens that were used at other positions than those at which they were computed (--cache-shift).",
    ["model"],
)
recomputed_tokens_total = _counter(
    "edgeagent_recomputed_tokens_total",
    "Prompt tokens that an earlier prompt of the client also has, and that were computed since the prompts differ "
    "before them, by the part that differs: instructions, messages.",
    ["model", "part"],
)
decode_tokens_total = _counter("edgeagent_decode_tokens_total", "Generated tokens.", ["model"])
answer_cache_total = _counter(
    "edgeagent_answer_cache_total",
    "Requests that may use the answer cache, by outcome. exact: a kept answer was given; similar: one to a similar "
    "question; joined: an equal request was running; miss: a model answered; slow: too, since the store did not answer "
    "in time. And checks of answers from similarity. checked: it was right; wrong: it was not.",
    ["outcome"],
)
answer_similar_refused_total = _counter(
    "edgeagent_answer_similar_refused_total",
    "Questions that a rule kept from the answer to a similar one, by rule.",
    ["rule"],
)
answer_lookup_seconds = _histogram(
    "edgeagent_answer_lookup_seconds",
    "What a look-up of similar questions takes. embedding: until the question's vector is there; search: from then "
    "until it is known which kept question is near, and whether its answer may be given.",
    ["part"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
)
answer_similar_error = _gauge(
    "edgeagent_answer_similar_error",
    "The share of wrong ones among answers from similarity. bound: the largest that the owner allows; expected: of "
    "those that this daemon gave since its start; measured: what checks found.",
    ["kind"],
)
answer_similar_off = _gauge(
    "edgeagent_answer_similar_off",
    "Whether no answer is given from similarity, since checks contradict the bound.",
)
answer_cache_entries = _gauge("edgeagent_answer_cache_entries", "Answers that are kept.")
answer_cache_bytes = _gauge("edgeagent_answer_cache_bytes", "Space that kept answers take.")
draft_tokens_total = _counter(
    "edgeagent_draft_tokens_total",
    "Draft tokens, by whether the target accepted them.",
    ["accepted"],
)
open_websockets = _gauge("edgeagent_open_websockets", "WebSockets that are open.")
slow_clients_cut_total = _counter(
    "edgeagent_slow_clients_cut_total",
    "Connections that were cut because their clients did not read, by transport.",
    ["transport"],
)
# Create both series at the start, with 0. If a cut created its series, a rate would not show that cut.
for _transport in ("http", "websocket"):
    slow_clients_cut_total.labels(_transport)
loop_lag_seconds = _fast_histogram(
    "edgeagent_loop_lag_seconds",
    "How late the daemon's event loop ran a timer, once a second.",
    bounds=_LAG_SECONDS,
)
placement_seconds = _histogram(
    "edgeagent_placement_seconds",
    "Time to decide where a request runs.",
    buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05),
)
placements_total = _counter(
    "edgeagent_placements_total",
    "Answers that have begun, by place and reason.",
    ["served_by", "reason"],
)
handovers_total = _counter(
    "edgeagent_handovers_total",
    "Answers that continued at another place or in a new worker, by cause.",
    ["source", "target", "reason"],
)
prediction_error_seconds = _histogram(
    "edgeagent_first_token_prediction_error_seconds",
    "How far the predicted time to the first token was off.",
    ["served_by"],
    buckets=_SECONDS,
)
remote_requests_total = _counter(
    "edgeagent_remote_requests_total",
    "Attempts at a remote that have ended, by outcome: completed, cancelled, or the failure.",
    ["remote", "outcome"],
)
remote_sent_bytes_total = _counter(
    "edgeagent_remote_sent_bytes_total",
    "Bodies of requests that left this machine.",
    ["remote"],
)
remote_tokens_total = _counter(
    "edgeagent_remote_tokens_total",
    "Tokens that remotes have counted, by kind: prompt, output.",
    ["remote", "kind"],
)
remote_money_total = _counter(
    "edgeagent_remote_money_total",
    "Money spent at remotes, computed with the owner's prices, in the owner's currency.",
    ["remote"],
)
remote_stage_seconds = _histogram(
    "edgeagent_remote_stage_seconds",
    "Time of each stage of reaching a remote: name, connect and tls of each new connection, and first_byte from the "
    "sending of a request to the head of its answer.",
    ["remote", "stage"],
    buckets=_SECONDS,
)
log_lines_dropped_total = _counter(
    "edgeagent_log_lines_dropped_total",
    "Lines of output that were dropped because the output was not read.",
)
