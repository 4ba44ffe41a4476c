"""`edgeagent version`: shows the versions of edgeagent, llama.cpp and Python."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgeagent import __version__
from edgeagent.doctor.native import installed_bindings
from edgeagent.errors import NOT_INSTALLED

UNKNOWN = "unknown"


def llama_cpp_commit() -> str:
    """Return the commit of the installed llama.cpp, or "unknown". If the reason is known, "unknown (REASON)".

    This module reads it in a child process, since native code that was compiled for another CPU ends its process.
    """
    command = [sys.executable, "-m", "edgeagent.cli.machine.version"]
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


def version(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show the versions of edgeagent, llama.cpp and its bindings, and Python."""
    versions = {
        "edgeagent": __version__,
        "llama_cpp_commit": llama_cpp_commit(),
        "llama_cpp_python": installed_bindings(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if as_json:
        typer.echo(json.dumps(versions, indent=2))
        return
    typer.echo(f"edgeagent {versions['edgeagent']}")
    if versions["llama_cpp_python"] is None:
        typer.echo(NOT_INSTALLED)
    else:
        typer.echo(f"llama.cpp {versions['llama_cpp_commit']} (llama-cpp-python {versions['llama_cpp_python']})")
    typer.echo(f"Python {versions['python']}, {versions['platform']}")


if __name__ == "__main__":
    print(_commit_of_library())  # noqa: T201
