"""Whether models fit into this machine's memory if nothing else uses it, for lists of models. See `fit` for details."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.config import EngineConfig
    from edgeagent.store.gguf.header import GgufHeader

# For a file that is not on this machine: its matrices are kept twice, plus bytes for cells, buffers and the process.
_TIMES_FILE, _BESIDE_BYTES = 2, 1 << 30


def fitting_context(header: GgufHeader, engine: EngineConfig) -> int:
    """Return the tokens of context that a model would have in this machine's memory, without GPUs; 0 if too large."""
    from edgeagent.fit.placement import Room
    from edgeagent.fit.plan import make_plan

    plan = make_plan([header.shape], engine, Room(_machine_bytes()))
    return plan.num_cells if plan.fits else 0


def file_fits(num_bytes: int) -> bool:
    """Whether a model whose file has about this size should fit."""
    return _TIMES_FILE * num_bytes + _BESIDE_BYTES <= _machine_bytes()


def _machine_bytes() -> int:
    import psutil

    from edgeagent.fit.need import margin_bytes

    total: int = psutil.virtual_memory().total
    return total - margin_bytes(total)
