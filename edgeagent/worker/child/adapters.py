"""Loads a model's LoRA adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from edgeagent.engine.llama.adapter import Adapter
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.runner import Slice


def load_adapters(runner: LlamaRunner, paths: Mapping[str, str], on_try: Callable[[str], None]) -> dict[str, str]:
    """Load a model's adapters, and compute with each once; return their identities by name. Raise ModelDamaged.

    `on_try` is told which is tried next, in words: one that is damaged may end the process.
    """
    found = {}
    for name, path in paths.items():
        on_try(f"the adapter {path}")
        adapter = Adapter(runner.model, Path(path))
        runner.add_adapter(adapter)
        runner.use_adapter(adapter.id)
        runner.decode([Slice(0, 0, [0, 0], 1)])
        runner.clear(0)
        found[name] = adapter.id
    runner.use_adapter("")
    return found
