"""Loads the LoRA adapters of a model, and records why some cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent.engine.first_steps import try_adapter
from edgeagent.engine.llama.adapter import Adapter
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.runner import OutOfCells
from edgeagent.errors import InternalError, ModelDamaged, ModelLoadFailed
from edgeagent.worker.protocol import adapter_part


@dataclass(frozen=True, slots=True)
class Adapters:
    """A model's adapters by name: the identities of the usable ones, and why each of the others is unusable."""

    identities: Mapping[str, str]
    unusable: Mapping[str, str]

    def identity(self, name: str) -> str:
        """Return the identity of an adapter; "" for the name "". Raise ModelDamaged if the adapter cannot be used."""
        if not name:
            return ""
        if name in self.unusable:
            why = self.unusable[name].rstrip(".")
            raise ModelDamaged(
                f"the adapter {name} cannot be used: {why}; fix the file and reload the model", param="model"
            )
        return self.identities[name]


def load_adapters(
    runner: LlamaRunner, paths: Mapping[str, str], unusable: Mapping[str, str], on_part: Callable[[str], None]
) -> Adapters:
    """Load a model's adapters and try each once. An adapter that does not fit the model or fails is unusable.

    `paths` maps the adapters' names to files. `unusable` maps the names of adapters that are already known to be
    unusable to the reasons. Before an adapter is tried, `on_part` gets a description of the adapter, since a damaged
    adapter may crash the process.
    """
    found, refused = {}, dict(unusable)
    for name, path in paths.items():
        on_part(adapter_part(path))
        try:
            adapter = Adapter(runner.model, Path(path))
            runner.add_adapter(adapter)
            runner.use_adapter(adapter.id)
            try_adapter(runner, adapter.path)
        except (InternalError, ModelLoadFailed) as error:
            refused[name] = error.message
            continue
        except OutOfCells:
            refused[name] = "the context has no room for its trial"
            continue
        except OSError as error:
            refused[name] = f"{path} cannot be read: {error.strerror}"
            continue
        found[name] = adapter.id
    runner.use_adapter("")
    return Adapters(found, refused)
