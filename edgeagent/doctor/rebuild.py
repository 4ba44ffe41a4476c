"""Builds the command that compiles llama.cpp again for this machine."""

from __future__ import annotations

import importlib.metadata
import shlex

from edgeagent.doctor.facts import Facts, GpuVendor

# Vision is not served, and its library doubles the compile time.
_WITHOUT_VISION = "-DMTMD_BUILD=OFF"
# GCC before 13 miscompiles AMX (llama.cpp issue 20824); without it the same CPUs use AVX-512.
_WITHOUT_AMX = "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"
FLAGS: dict[GpuVendor, str] = {
    "nvidia": "-DGGML_CUDA=on",
    "apple": "-DGGML_METAL=on",
    "amd": "-DGGML_VULKAN=on",
    "intel": "-DGGML_VULKAN=on",
}
_ROCM = "-DGGML_HIP=on"


def gpu_flags(gpu: GpuVendor, facts: Facts) -> str:
    """Return CMake's flags for a GPU's backend. AMD gets ROCm if ROCm's compiler is installed, else Vulkan."""
    return _ROCM if gpu == "amd" and facts.tools.has_rocm else FLAGS[gpu]


def required_bindings() -> str:
    """Return edgeagent's requirement for llama.cpp's bindings, with the version that it needs."""
    requirements = importlib.metadata.requires("edgeagent") or []
    return next(text for text in requirements if text.startswith("llama-cpp-python"))


def rebuild_command(facts: Facts, flags: str = "") -> str:
    """Return the shell command that compiles llama.cpp for this CPU, and for a GPU if `flags` are its `gpu_flags`."""
    if facts.tools.is_checkout:
        # The Makefile has its own defaults, and compiles nothing if flags and CPU are the same as last time.
        return f"CMAKE_ARGS={shlex.quote(flags)} make setup" if flags else "make clean setup"
    flags = " ".join(filter(None, (_WITHOUT_VISION, flags, _WITHOUT_AMX if "amx_int8" in facts.cpu_flags else "")))
    package = required_bindings()
    python = facts.tools.python
    options = "install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python"
    if facts.platform == "win32":
        return f"$env:CMAKE_ARGS='{flags}'; & '{python}' -m pip {options} {package}"
    return f"CMAKE_ARGS={shlex.quote(flags)} {shlex.quote(python)} -m pip {options} {package}"
