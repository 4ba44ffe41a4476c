"""A LoRA adapter: small additional weights, loaded from a file, that change what one loaded model computes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from edgeagent.engine.llama.bindings import last_error, lib
from edgeagent.engine.llama.fingerprint import adapter_id
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ModelDamaged

_SCALE = 1.0


class Adapter:
    """A loaded adapter. llama.cpp frees it with its model."""

    def __init__(self, model: Model, path: Path) -> None:
        """Load the adapter. Raise OSError if the file cannot be read.

        Raise ModelDamaged if the file is not an adapter for this model, or is an aLoRA adapter, which is not supported.
        """
        self.path = path
        self.id = adapter_id(path)
        self._handle = lib.llama_adapter_lora_init(model.handle, str(path).encode())
        if not self._handle:
            raise ModelDamaged(f"the adapter {path} does not suit {model.path}: {last_error() or 'no reason is given'}")
        if lib.llama_adapter_get_alora_n_invocation_tokens(self._handle):
            raise ModelDamaged(f"the adapter {path} acts behind certain tokens only (aLoRA), which is not supported")
        kind = lib.llama_set_adapters_lora.argtypes[1]._type_  # a pointer, as the bindings declare it
        self._handles = (kind * 1)(self._handle)
        self._scales = (ctypes.c_float * 1)(_SCALE)

    def use(self, context: object) -> None:
        """Apply the adapter to a context of its model, instead of any other adapter."""
        lib.llama_set_adapters_lora(context, self._handles, 1, self._scales)
