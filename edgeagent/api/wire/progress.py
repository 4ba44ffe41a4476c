"""A stream's progress while it runs, in llama-server's format: the computed part of the prompt, and timings so far."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.usage import LlamaTimings, timings_body
from edgeagent.types import PromptProgress, Started, Step, Timings, Usage


class GenerationProgress:
    """The progress of one generation, measured from its steps. The exact numbers come with the last step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = Started(0, 0)
        self._began_s = clock()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_tokens = 0

    @property
    def started(self) -> Started:
        """The start of the generation: where it runs, and its warnings. Empty if no step has said it yet."""
        return self._started

    def add_step(self, step: Step) -> None:
        """Count the tokens of a step, and note where the generation runs."""
        at_s = step.at_s or self._clock()
        for delta in step.deltas:
            if isinstance(delta, Started):
                self._started, self._began_s = delta, at_s
        if step.tokens:
            self._first_s = self._first_s or at_s
            self._last_s = at_s
            self._num_tokens += len(step.tokens)

    def timings(self) -> LlamaTimings:
        """Return llama-server's `timings`, measured up to the last added step."""
        prompt_s, first_s = self._began_s, self._first_s
        return timings_body(
            Usage(self._started.num_prompt_tokens, self._started.num_cached_tokens, self._num_tokens),
            Timings(
                prefill_ms=0.0 if first_s is None else (first_s - prompt_s) * 1000,
                decode_ms=0.0 if first_s is None else (self._last_s - first_s) * 1000,
            ),
        )

    def prompt_progress(self, delta: PromptProgress) -> Json:
        """Return llama-server's `prompt_progress` for a delta that reports how much of the prompt is computed."""
        return {
            "total": self._started.num_prompt_tokens,
            "cache": self._started.num_cached_tokens,
            "processed": delta.num_tokens,
            "time_ms": round((self._clock() - self._began_s) * 1000),
        }
