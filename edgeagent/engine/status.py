"""The status that an engine reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgeagent.engine.costs.cost_model import PredictionError
from edgeagent.types import CacheStatus, DraftCounts, ShiftStatus


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Counts and rates of an engine for the status page and metrics.

    The three rates are the values of `StepCosts.rates`. `host`: the blocks in host memory.
    """

    num_steps: int
    num_running: int
    num_waiting: int
    num_cells_used: int
    prefill_tokens_per_s: float
    prefill_tokens_per_s_beside: float
    token_s: float
    step_errors: tuple[PredictionError | None, ...]  # of the model's steps, and of its draft model's if it has one
    drafts: tuple[DraftCounts, ...]
    draft_gain: float  # the factor by which drafts raised the tokens per second; 0 if there were no drafts
    num_side_bytes: int  # bytes of memory that a side context may take
    shift: ShiftStatus | None  # None if no cells may be moved
    host: CacheStatus


def sum_up(caches: Iterable[CacheStatus]) -> CacheStatus:
    """Return the sums of the counts of several caches in host memory, such as a model's and its draft model's.

    `read_bytes_per_s` and `trouble` keep their defaults, since they do not apply to host memory.
    """
    each = list(caches)
    return CacheStatus(
        num_blocks=sum(cache.num_blocks for cache in each),
        num_bytes=sum(cache.num_bytes for cache in each),
        max_bytes=sum(cache.max_bytes for cache in each),
        num_hits=sum(cache.num_hits for cache in each),
        num_misses=sum(cache.num_misses for cache in each),
        num_offered=sum(cache.num_offered for cache in each),
        num_dropped=sum(cache.num_dropped for cache in each),
        num_evicted=sum(cache.num_evicted for cache in each),
    )
