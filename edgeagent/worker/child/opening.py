"""Opens the model of a Load, if this machine has the memory for its context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import devices
from edgeagent.engine.llama.model import Model
from edgeagent.worker.fit import check_memory
from edgeagent.worker.protocol import Load


def open_model(load: Load, on_progress: Callable[[float], None] = lambda _: None) -> Model:
    """Return the model; `on_progress` gets how much of it is loaded, 0 to 1. Raise ModelLoadFailed."""
    check_memory(load.num_cells, load.kv_bytes_per_token, devices(), load.num_trained)
    return Model(Path(load.path), EngineConfig.model_validate_json(load.engine_config), on_progress)
