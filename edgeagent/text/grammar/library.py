"""llguidance's classes, from the compiled module `llguidance._lib`.

The package's `__init__` is not run: it searches all installed packages for its own version, which takes a fourth of the
CPU time of the renderer's start. So an empty `llguidance` package is registered while that module is imported. A later
import of the package finds the module loaded. If a release has no such module, the package is imported instead.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def _load() -> Any:
    spec = importlib.util.find_spec("llguidance")
    if spec is not None and "llguidance" not in sys.modules:
        package = types.ModuleType("llguidance")
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__spec__ = spec
        sys.modules["llguidance"] = package
        try:
            return importlib.import_module("llguidance._lib")
        except ImportError:
            pass
        finally:
            del sys.modules["llguidance"]
    return importlib.import_module("llguidance")


if not TYPE_CHECKING:
    _lib = _load()
    LLMatcher, LLParserLimits, LLTokenizer = _lib.LLMatcher, _lib.LLParserLimits, _lib.LLTokenizer

__all__ = ["LLMatcher", "LLParserLimits", "LLTokenizer"]
