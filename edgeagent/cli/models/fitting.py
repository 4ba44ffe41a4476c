"""Estimates whether models fit into this machine's memory, as if no other program used memory.

The commands that list models use this module. `edgeagent fit` shows more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.config import EngineConfig
    from edgeagent.store.gguf.header import GgufHeader

# If only a file's size is known, its memory is estimated as twice this size, since its matrices may be kept twice, plus
# a fixed size for the KV cells, the buffers and the process.
_TIMES_FILE, _BESIDE_BYTES = 2, 1 << 30


def fitting_context(header: GgufHeader, engine: EngineConfig) -> int:
    """Return the context, in tokens, that a model can have on this machine without GPUs; 0 if it does not fit."""
    from edgeagent.fit.placement import FreeMemory
    from edgeagent.fit.plan import make_plan

    plan = make_plan([header.shape], engine, FreeMemory(_machine_bytes()))
    return plan.num_cells if plan.fits else 0


def file_fits(num_bytes: int) -> bool:
    """Whether a model file of about this size should fit into this machine's memory."""
    return _TIMES_FILE * num_bytes + _BESIDE_BYTES <= _machine_bytes()


def _machine_bytes() -> int:
    from edgeagent.fit.need import margin_bytes
    from edgeagent.usable import usable_memory

    total = usable_memory().total
    return total - margin_bytes(total)
