"""The portable engine, if a build of it is in the user's cache folder: unpacked, and found before the installed one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@cache
def build_script() -> ModuleType:
    """Return packaging/engine/build.py as a module."""
    spec = importlib.util.spec_from_file_location("build_engine", ROOT / "packaging" / "engine" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module


def unpack_engine(folder: Path, *plug_ins: str) -> Path:
    """Unpack the wheels of the portable engine and of these plug-ins into a folder and return it; skip without them."""
    cached: Path = build_script().CACHE
    for pattern in ("llama_cpp_python-*", *(f"edgeagent_engine_{name}-*" for name in plug_ins)):
        fitting = [path for path in cached.glob(f"{pattern}.whl") if _fits(path.name)]
        if not fitting:
            option = "" if pattern.startswith("llama") else f" --backend {pattern.split('_')[2].rstrip('-*')}"
            pytest.skip(f"{cached} has no {pattern}.whl for this machine: python packaging/engine/build.py{option}")
        with zipfile.ZipFile(fitting[0]) as wheel:
            wheel.extractall(folder)
    return folder


def _fits(name: str) -> bool:
    system = {"linux": "linux", "darwin": "macosx", "win32": "win"}.get(sys.platform, "none")
    machine = os.uname().machine if hasattr(os, "uname") else "amd64"
    return re.search(rf"-{'many' if system == 'linux' else ''}{system}\S*_{machine}\.whl$", name) is not None


def run_with_engine(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the engine in this folder in front of the installed one, and return what it did."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **variables}
    return subprocess.run([sys.executable, "-P", *arguments], env=environment, capture_output=True, text=True)
