"""Decides whether a model is loaded with its draft model.

There must be memory for both. The draft model must not change the model's context, KV types or layers on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeagent.config import EngineConfig
from edgeagent.fit.need import predict
from edgeagent.fit.placement import FreeMemory, Layout
from edgeagent.fit.plan import RunPlan, make_plan
from edgeagent.sizes import memory_text
from edgeagent.types import FileShape


def why_no_draft(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> str:
    """Return why a model is loaded without its draft model; "" if both fit, or if there is no draft model.

    The first shape is the model, the others its draft model. Both fit if there is memory for both, and if the model
    gets the same context, KV types, parallel requests and layers on GPUs as without the draft model. It must also keep
    at least as many earlier states.
    """
    if len(shapes) == 1:
        return ""
    pair, alone = make_plan(shapes, config, free_memory), make_plan(shapes[:1], config, free_memory)
    keeps_states = pair.layout.max_rewind >= alone.layout.max_rewind
    if pair.fits and keeps_states and pair.config == alone.config and _of_model(pair) == _of_model(alone):
        return ""
    needed = predict(shapes[1:], pair.config, pair.num_cells)
    return (
        f"it takes about {memory_text(needed.total_bytes - needed.worker_bytes)} of memory, which the model needs "
        "itself: there is too little for both"
    )


def _of_model(plan: RunPlan) -> Layout:
    return replace(plan.layout, num_draft_gpu_layers=0, max_rewind=0)
