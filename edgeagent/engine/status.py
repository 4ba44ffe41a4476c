"""What an engine reports of itself."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.engine.cost_model import PredictionError
from edgeagent.types import CacheStatus


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Counts for observers."""

    num_steps: int
    num_running: int
    num_waiting: int
    num_cells_used: int
    prefill_tokens_per_s: float
    token_s: float
    step_error: PredictionError | None
    host: CacheStatus
