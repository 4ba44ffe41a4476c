"""The conditions under which measured times are valid. Times measured under other conditions are not used."""

from __future__ import annotations

from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention
from edgeagent.engine.llama.bindings import commit, devices, system_description
from edgeagent.engine.llama.cores import num_usable_cores, processor_name
from edgeagent.engine.llama.fingerprint import library_stamp
from edgeagent.engine.llama.model import Model

# Increase it when the measured work changes.
_VERSION = 4


def machine_conditions(path: Path) -> dict[str, str]:
    """Return the conditions of a profile by name: the model's file, llama.cpp's build, the processor, the devices."""
    status = path.stat()
    return {
        "version": str(_VERSION),
        "model file": f"{status.st_size} {status.st_mtime_ns}",
        "llama.cpp": f"{commit()} {library_stamp()}",
        "processor": processor_name(),
        "instructions": system_description()[:2048],
        "cores": str(num_usable_cores()),
        "devices": ", ".join(device.description for device in devices())[:2048],
    }


def load_conditions(model: Model, config: EngineConfig, attention: Attention, num_cells: int) -> dict[str, str]:
    """Return the conditions of step times by name: those of the machine, and the settings of the context."""
    return machine_conditions(model.path) | {
        "threads": str(config.threads or num_usable_cores()),
        "cells": str(num_cells),
        "batch": str(config.batch),
        "parallel": str(config.num_parallel),
        "KV types": f"{config.kv_type_k} {config.kv_type_v}",
        "flash attention": attention.flash,
        "layers on a GPU": str(model.num_gpu_layers),
    }
