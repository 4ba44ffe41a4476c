"""Measures one generation, from its acceptance to its end. It counts tokens and does not read the text."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent import metrics
from edgeagent.errors import ModelNotFound
from edgeagent.types import (
    Finished,
    ReasoningDelta,
    Sink,
    Started,
    Step,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    is_remote,
    remote_of,
)

ABANDONED = "abandoned"

_OUTPUT = frozenset({TextDelta, ReasoningDelta, ToolCallStarted, ToolCallDelta})


class Meter(Sink):
    """The measurements of one generation, which counts as live until `end`. Call `end` once.

    It measures each step, and then passes it on to `sink`. `label` returns the name of a served model; the model's
    canonical name may become known only after the request has arrived.
    """

    def __init__(self, label: Callable[[], str], sink: Sink) -> None:
        self._label = label
        self._sink = sink
        self.model = model = label()
        self.began_s = time.monotonic()
        self.first_s: float | None = None
        self.last_s = 0.0
        self.ended_s = 0.0
        self.has_begun = False
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.num_tokens = 0
        self._gaps = metrics.inter_token_seconds.labels(model)
        metrics.live_requests.labels(model, "waiting").inc()

    @property
    def usage(self) -> Usage:
        """The token counts of the Finished delta, or of the steps so far if there is none yet."""
        if self.finished is not None:
            return self.finished.usage
        started = self.started or Started(0, 0)
        return Usage(started.num_prompt_tokens, started.num_cached_tokens, self.num_tokens)

    def put(self, step: Step) -> None:
        """Count a step, in about half a microsecond, and pass it on."""
        if not self.has_begun:
            self._begin(step)
        if step.deltas and type(step.deltas[-1]) is Finished:
            self.finished = step.deltas[-1]
        if step.tokens or (step.deltas and type(step.deltas[-1]) in _OUTPUT):
            self.num_tokens += len(step.tokens)
            if self.first_s is None:
                self.first_s = time.monotonic()
                self._observe_first(self.first_s - self.began_s)
            else:
                self._gaps.observe(step.at_s - self.last_s)
            self.last_s = step.at_s
        self._sink.put(step)

    async def room(self) -> None:
        await self._sink.room()

    def end(self, code: str = ABANDONED) -> str:
        """Count the end of the generation. Return its finish reason, or `code` if it has none.

        `code` is an error's code, or ABANDONED if the client left.
        """
        self.ended_s = time.monotonic()
        if not self.has_begun:
            self._rename()
        metrics.live_requests.labels(self.model, "running" if self.has_begun else "waiting").dec()
        end = self.finished.reason.value if self.finished is not None else code
        # The requested model does not exist, and `model` is then the name of the default model, which was not used.
        metrics.generations_total.labels("unknown" if end == ModelNotFound.code else self.model, end).inc()
        if self.has_begun:
            metrics.generation_seconds.labels(self.model).observe(self.ended_s - self.began_s)
            self._count_tokens()
        elif self.finished is None and code != ABANDONED:
            metrics.refused_total.labels(code).inc()
        return end

    def _rename(self) -> None:
        """Count the generation under its model's present name."""
        if (model := self._label()) != self.model:
            metrics.live_requests.labels(self.model, "waiting").dec()
            metrics.live_requests.labels(model, "waiting").inc()
            self.model, self._gaps = model, metrics.inter_token_seconds.labels(model)

    def _begin(self, step: Step) -> None:
        self._rename()
        self.has_begun = True
        if step.deltas and isinstance(step.deltas[0], Started):
            self.started = step.deltas[0]
        metrics.live_requests.labels(self.model, "waiting").dec()
        metrics.live_requests.labels(self.model, "running").inc()

    def _observe_first(self, seconds: float) -> None:
        metrics.first_token_seconds.labels(self.model).observe(seconds)
        placement = None if self.started is None else self.started.placement
        if placement is not None and is_remote(placement.served_by):
            metrics.remote_first_token_seconds.labels(remote_of(placement.served_by)).observe(seconds)

    def _count_tokens(self) -> None:
        usage = self.usage
        metrics.prefill_tokens_total.labels(self.model).inc(usage.num_prompt_tokens - usage.num_cached_tokens)
        metrics.prefix_cache_hit_tokens_total.labels(self.model).inc(usage.num_cached_tokens)
        metrics.decode_tokens_total.labels(self.model).inc(usage.num_output_tokens)
        if self.finished is not None:
            _observe_stages(self.finished.timings)


def _observe_stages(timings: Timings) -> None:
    metrics.draft_tokens_total.labels("true").inc(timings.num_accepted_tokens)
    metrics.draft_tokens_total.labels("false").inc(timings.num_draft_tokens - timings.num_accepted_tokens)
    stages_ms = timings.stages_before_first_token_ms | {"decode": timings.decode_ms}
    for stage, milliseconds in stages_ms.items():
        metrics.stage_seconds.labels(stage).observe(milliseconds / 1000.0)
