"""The bindings use the libraries that llama.cpp has loaded."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.patience import patient

CODE = """
from edgeagent.engine.llama import bindings
bindings.devices(), bindings.commit(), bindings.cpu_buffer_type()
print(*{line.split()[-1] for line in open("/proc/self/maps") if "libggml" in line})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_library_is_loaded_twice() -> None:
    """A wheel holds each library under several names. A second copy would have its own registry and buffer types."""
    shown = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=patient(60)
    )
    names = Counter(path.split("/")[-1].split(".so")[0] for path in shown.stdout.split())
    assert {"libggml", "libggml-base", "libggml-cpu"} <= names.keys()
    assert max(names.values()) == 1
