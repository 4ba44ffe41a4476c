"""The conditions under which a calibration is valid. Measurements made under other conditions are not used."""

from __future__ import annotations

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import commit, system_description
from edgeagent.engine.llama.cores import processor_name
from edgeagent.engine.llama.fingerprint import library_stamp
from edgeagent.engine.llama.model import Model

# Increase it when the measured work changes.
_VERSION = 3


def make_conditions(model: Model, config: EngineConfig, *, num_cells: int, num_threads: int) -> dict[str, str]:
    """Return a calibration's conditions by name: the model's shape, llama.cpp's build, the processor, the options."""
    architecture = model.metadata("general.architecture") or ""
    heads = [model.metadata(f"{architecture}.attention.{key}") for key in ("head_count", "head_count_kv")]
    return {
        "version": str(_VERSION),
        "model": f"{model.description}, {model.num_layers} layers, {model.num_params} parameters",
        "model bytes": str(model.size_bytes),
        "heads": " ".join(str(number)[:256] for number in heads),
        "width": str(model.embedding_length),
        "llama.cpp": f"{commit()} {library_stamp()}",
        "processor": processor_name(),
        "instructions": system_description()[:2048],
        "threads": str(num_threads),
        "cells": str(num_cells),
        "batch": str(config.batch),
        "parallel": str(config.num_parallel),
        "KV types": f"{config.kv_type_k} {config.kv_type_v}",
        "flash attention": config.flash_attention,
        "layers on a GPU": str(model.num_gpu_layers),
    }
