"""Loads llama.cpp's back ends where they are plug-ins: those of the portable engine, and those of plug-in wheels.

The portable engine has one library for each generation of CPUs, and ggml chooses the best one that this CPU can run. A
build for one machine has its back ends linked in, and nothing is loaded here.

Only two folders are searched: llama_cpp/lib, and that of the plug-in wheels beside llama_cpp. ggml_backend_load_all()
is not called, since it also searches the folder of the program and the current folder. ggml also loads the library that
GGML_BACKEND_PATH names: a user's own choice, like PYTHONPATH.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgeagent.errors import InternalError

FOLDER = "edgeagent_engines"
"""Plug-in wheels put their library into FOLDER/COMMIT/NAME. COMMIT is the llama.cpp that it was compiled with."""
VARIABLE = "EDGEAGENT_CPU_VARIANT"
"""This environment variable chooses the library for a generation of CPUs: haswell, zen4 and others."""
_ENDING = ".dll" if os.name == "nt" else ".so"  # on macOS too
_CPU = 0  # ggml_backend_dev_type


def load_plug_ins(ggml: Any, package: Path, commit: str) -> bool:
    """Load the back ends of a portable engine and its plug-ins; return False if the back ends are linked in.

    `ggml` is the library of that name, and `package` the folder of llama_cpp. A plug-in that cannot be loaded is left
    out, and ggml logs why. Raise InternalError if no library runs on this CPU.
    """
    if ggml.ggml_backend_reg_count():
        return False
    load, find = ggml.ggml_backend_load, ggml.ggml_backend_dev_by_type
    load.restype = find.restype = ctypes.c_void_p
    for plug_in in plug_ins(package.parent / FOLDER / commit):
        load(os.fsencode(plug_in))
    lib = package / "lib"
    if wanted := os.environ.get(VARIABLE):
        path = variants(lib).get(wanted)
        if path is None or not load(os.fsencode(path)):
            why = f"this CPU cannot run {path.name}" if path else f"llama.cpp has {', '.join(variants(lib))}"
            raise InternalError(f"{VARIABLE}={wanted}: {why}")
    else:
        ggml.ggml_backend_load_all_from_path(os.fsencode(lib))
    if not find(_CPU):
        raise InternalError(f"no library in {lib} runs on this CPU; `edgeagent doctor` shows how to compile one")
    return True


def plug_ins(folder: Path) -> Iterator[Path]:
    """Yield the libraries in the folder of one commit. Of several with one file name, the last in alphabetical order.

    The plug-ins cuda12 and cuda13 have the same file name. Together they would list each GPU twice.
    """
    yield from {path.name: path for path in sorted(folder.glob(f"*/*ggml-*{_ENDING}"))}.values()


def variants(lib: Path) -> dict[str, Path]:
    """Return the libraries for generations of CPUs by their names; empty if this is not a portable engine."""
    paths = sorted(lib.glob(f"*ggml-cpu-*{_ENDING}"))
    return {path.name.partition("ggml-cpu-")[2].removesuffix(_ENDING): path for path in paths}
