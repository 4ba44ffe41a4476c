"""Builds llama.cpp's own llama-server, llama-bench and llama-quantize, for comparisons.

Run as `python tests/peer/build.py` in the project's environment. It uses the source of the installed llama-cpp-python
and the options with which its wheel was compiled, so both sides of a comparison run the same code. The programs are
kept in the user's cache folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import platformdirs

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "llama-cpp-python"
TARGETS = ("llama-server", "llama-bench", "llama-quantize")
# Set as llama-cpp-python's own CMakeLists sets them; the build downloads nothing.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "MTMD_VIDEO": "OFF",
}


def binary(folder: Path, name: str) -> Path:
    """Return the path of a built program."""
    return folder / "bin" / (f"{name}.exe" if os.name == "nt" else name)


def default_folder() -> Path:
    """Return the build folder for the installed version of the bindings."""
    return Path(platformdirs.user_cache_dir("edgeagent")) / "peer" / version(PACKAGE)


def fetch_source(folder: Path) -> Path:
    """Download the bindings' source package with pip and unpack it under `folder`; return its root."""
    requirement = f"{PACKAGE}=={version(PACKAGE)}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder)]
    subprocess.run([*pip, requirement], check=True)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def setup_env() -> ModuleType:
    """Return packaging/setup_env.py as a module; it compiles the bindings and knows the flags for this CPU."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "packaging" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(source: Path, folder: Path, jobs: int) -> None:
    """Compile the programs from the bindings' unpacked source package."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("cmake is not on PATH; install it, for instance with: pip install cmake")
    folder.mkdir(parents=True, exist_ok=True)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    extra = setup_env().for_this_cpu(os.environ.get("CMAKE_ARGS", "")).split()
    llama_cpp = source / "vendor" / "llama.cpp"
    subprocess.run([cmake, "-S", str(llama_cpp), "-B", str(folder), *generator, *options, *extra], check=True)
    command = [cmake, "--build", str(folder), "--config", "Release", "-j", str(jobs), "--target", *TARGETS]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="an unpacked source package, instead of downloading one")
    parser.add_argument("--folder", type=Path, help="where to build; default: a folder in the user's cache")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    folder: Path = arguments.folder or default_folder()
    if not all(binary(folder, name).exists() for name in TARGETS):
        if arguments.source:
            build(arguments.source.resolve(), folder, arguments.jobs)
        else:
            with tempfile.TemporaryDirectory() as unpacked:
                build(fetch_source(Path(unpacked)), folder, arguments.jobs)
    for name in TARGETS:
        print(binary(folder, name))


if __name__ == "__main__":
    main()
