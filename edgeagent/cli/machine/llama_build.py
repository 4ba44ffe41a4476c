"""The commit of the installed llama.cpp. `python -m edgeagent.cli.machine.llama_build` prints it.

The commit is read in a child process, since native code that was compiled for another CPU ends the process that loads
it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path

UNKNOWN = "unknown"


def llama_cpp_commit() -> str:
    """Return the commit of the installed llama.cpp, or "unknown". If the reason is known, "unknown (REASON)"."""
    command = [sys.executable, "-m", "edgeagent.cli.machine.llama_build"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30)  # noqa: S603 our own module
    if answer.returncode == 0:
        return answer.stdout.strip() or UNKNOWN
    if answer.returncode < 0 or answer.returncode > 0x8000_0000:
        return f"{UNKNOWN} (it cannot be loaded: was it compiled for another CPU? See `edgeagent doctor`)"
    return UNKNOWN


def _commit_of_library() -> str:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return UNKNOWN
    folder = Path(spec.origin).parent / "lib"
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    library = ctypes.CDLL(str(next(folder / name for name in names if (folder / name).exists())))
    library.ggml_commit.restype = ctypes.c_char_p
    commit: bytes = library.ggml_commit()
    # "-dirty" means only that the package's copy of the sources has no git repository.
    return commit.decode().removesuffix("-dirty")


if __name__ == "__main__":
    print(_commit_of_library())  # noqa: T201
