"""Measures edgeagent on an NVIDIA GPU that is lent for 15 minutes: `python -m tests.peer.gpu --source FOLDER`.

It builds llama.cpp's programs for this GPU's architecture alone, makes a model with the sizes of Qwen2.5-7B and random
weights meanwhile, and measures one stream, eight streams and a prefix from disk (tests/peer/gpu_rows.py). Each figure
is printed and stored at once. The work goes on in a process of its own if this one is ended. The same command shows
what that process prints, or continues where it stopped.

The machine needs nvcc, cuBLAS (of the toolkit or of Python's nvidia-cublas), CMake, a C++ compiler and Python 3.11 or
newer with numpy, but no package index. The build takes about 100 minutes of CPU time: 7 minutes on 16 cores. To carry:

- This checkout.
- The source package of llama-cpp-python, unpacked. Of vendor/llama.cpp it needs CMakeLists.txt, LICENSE, licenses,
  cmake, common, ggml, include, scripts, src, tools (without tools/ui/src) and vendor: 10 MB as a .tar.gz.
- The wheels of the other dependencies in pyproject.toml, and of gguf and httpx, 27 MB without numpy: `pip download
  --only-binary :all: --python-version 3.12` with `--platform` manylinux_2_28_x86_64, manylinux_2_17_x86_64 and
  manylinux2014_x86_64 and the versions of this environment (with one platform alone, pip takes older releases), and
  there `pip install --no-index --no-deps --target SITE *.whl` and PYTHONPATH=SITE.

If a call may take ten minutes at most, it takes two, the second at once after the first. Do not pipe the output: what a
pipe holds is lost at the limit.

`--small` is a rehearsal without a GPU: a tiny model, short prompts, and programs without CUDA.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from edgeagent.state_files import try_lock

# This module imports only the standard library, so that it can say which packages are missing.
ROOT = Path(__file__).resolve().parents[2]
FREE_BYTES = 12 << 30  # the model, its blocks on disk, and the programs


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="the unpacked source package of llama-cpp-python")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "edgeagent-gpu"))
    parser.add_argument("--minutes", type=float, default=13.0, help="end after this time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--small", action="store_true", help="rehearse without a GPU")
    return parser.parse_args(given)


def lacking(source: Path, folder: Path, *, is_small: bool) -> Iterator[str]:
    """Yield a sentence for each thing that is missing."""
    for tool in ("cmake", "c++", *(() if is_small else ("nvidia-smi", "nvcc"))):
        if shutil.which(tool) is None:
            yield f"{tool} is not on PATH; CUDA's programs are usually in /usr/local/cuda/bin."
    toolkit = Path(shutil.which("nvcc") or "nvcc").resolve().parents[1]
    headers = [folder / "include" / "cublas_v2.h" for folder in (toolkit, Path("/usr/local/cuda"))]
    if not is_small and cublas_package() is None and not any(header.exists() for header in headers):
        yield f"cublas_v2.h is not in {headers[0].parent}, and Python has no nvidia-cublas."
    for part in ("llama_cpp/llama_cpp.py", "vendor/llama.cpp/CMakeLists.txt", "vendor/llama.cpp/ggml/src/ggml-cuda"):
        if not (source / part).exists():
            yield f"{source / part} is missing; --source names the unpacked source package of llama-cpp-python."
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.split(r"[<>=!~;\[ ]", each)[0] for each in project["dependencies"] if "== 'win32'" not in each]
    missing = [name for name in (*needed, "gguf", "httpx") if name != "llama-cpp-python" and not _is_installed(name)]
    if missing:
        yield f"{sys.executable} lacks {', '.join(missing)}; carry their wheels and install them with --no-index."
    if shutil.disk_usage(folder).free < FREE_BYTES and not is_small:
        yield f"{folder} has less than {FREE_BYTES >> 30} GiB free; name another --folder."


def _is_installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False


def cublas_package() -> Path | None:
    """Return the folder of the Python package nvidia-cublas, for toolkits without cuBLAS."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec and spec.submodule_search_locations) or ()
    headers = (header for folder in folders for header in Path(folder).glob("*/include/cublas_v2.h"))
    return next((header.parents[1] for header in headers), None)


def cuda_flags(architecture: str) -> str:
    """Return CMake's flags for one architecture. This build needs no driver, and can use no quantized KV cells."""
    flags = f"-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES={architecture}-real -DGGML_CUDA_NO_VMM=ON"
    flags += " -DGGML_CUDA_FA_QUANTS=f16-f16"
    if package := cublas_package():
        library = next((package / "lib").glob("libcublas.so*"))
        flags += f" -DCUDA_cublas_LIBRARY={library} -DCMAKE_CUDA_FLAGS=-I{package / 'include'}"
    return flags


def device() -> tuple[str, str]:
    """Return the first GPU's name and its architecture, such as "90"."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()[0]
    name, _, capability = answer.rpartition(",")
    return name.strip(), capability.strip().replace(".", "")


def is_running(folder: Path) -> bool:
    """Return whether a process measures in this folder."""
    with (folder / "lock").open("a") as lock:
        return not try_lock(lock.fileno())


def main() -> None:
    """Start the process that measures, unless it runs, and print what it prints until it ends."""
    options = parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    if problems := list(lacking(options.source, options.folder, is_small=options.small)):
        raise SystemExit("\n".join(problems))
    with (options.folder / "lock").open("a") as lock, (options.folder / "log").open("a") as log:
        if try_lock(lock.fileno()):
            command = [sys.executable, "-m", "tests.peer.gpu_rows", *sys.argv[1:]]
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],  # the lock is held until the new process ends
            )
    with (options.folder / "log").open(encoding="utf-8") as printed:
        is_going_on = True
        while is_going_on:
            is_going_on = is_running(options.folder)
            print(printed.read(), end="", flush=True)
            time.sleep(0.5)


if __name__ == "__main__":
    main()
