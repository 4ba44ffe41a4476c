"""Checks of the machine: processor, GPUs, memory, llama.cpp and the sandbox. Pure functions of the facts."""

from __future__ import annotations

import re

from edgeagent.doctor.facts import Facts, GpuVendor
from edgeagent.doctor.findings import Finding, fail, ok, warn
from edgeagent.doctor.rebuild import gpu_flags, rebuild_command
from edgeagent.sizes import size_text

# llama.cpp's name for each instruction set, and the system's names for it (Linux on x86 and Arm, macOS).
INSTRUCTIONS: dict[str, frozenset[str]] = {
    "AVX": frozenset({"avx", "avx1.0"}),
    "AVX2": frozenset({"avx2"}),
    "F16C": frozenset({"f16c"}),
    "FMA": frozenset({"fma"}),
    "BMI2": frozenset({"bmi2"}),
    "AVX_VNNI": frozenset({"avx_vnni"}),
    "AVX512": frozenset({"avx512f"}),
    "AVX512_VBMI": frozenset({"avx512vbmi", "avx512_vbmi"}),
    "AVX512_VNNI": frozenset({"avx512_vnni", "avx512vnni"}),
    "AVX512_BF16": frozenset({"avx512_bf16"}),
    "NEON": frozenset({"neon", "asimd", "advsimd"}),
    "FP16_VA": frozenset({"asimdhp", "feat_fp16"}),
    "DOTPROD": frozenset({"asimddp", "feat_dotprod"}),
    "MATMUL_INT8": frozenset({"i8mm", "feat_i8mm"}),
    "SVE": frozenset({"sve"}),
}
# The names of llama.cpp's backends that support a GPU, by the GPU's maker.
BACKENDS: dict[GpuVendor, tuple[str, ...]] = {
    "nvidia": ("CUDA", "Vulkan"),
    "amd": ("ROCm", "HIP", "Vulkan"),
    "intel": ("SYCL", "Vulkan", "OpenVINO"),
    "apple": ("Metal", "MTL"),
}
_GPU_NAMES = {"nvidia": "an NVIDIA GPU", "amd": "an AMD GPU", "intel": "an Intel GPU", "apple": "Apple's GPU"}
_FULL_SANDBOX = ("no-network", "no-new-privileges", "no-programs", "read-only files")
_LITTLE_MEMORY = 1_000_000_000
_MANY_BUSY = 0.4  # this share of the CPUs


def check_llama(facts: Facts) -> list[Finding]:
    """Check that llama.cpp is installed and can be loaded."""
    native = facts.native
    if native.bindings is None:
        return fail("llama.cpp", "llama-cpp-python is not installed", rebuild_command(facts))
    if native.problem is not None:
        return fail(
            "llama.cpp", f"llama-cpp-python {native.bindings}: {native.problem}", f"run: {rebuild_command(facts)}"
        )
    backends = ", ".join(native.backends) or "no backend"
    return ok("llama.cpp", f"{native.commit} (llama-cpp-python {native.bindings}), computes with {backends}")


def check_cpu(facts: Facts) -> list[Finding]:
    """Compare the instruction sets of this CPU with those that llama.cpp was compiled for."""
    compiled = compiled_instructions(facts.native.instructions)
    names = [name for name, flags in INSTRUCTIONS.items() if flags & facts.cpu_flags]
    if facts.native.problem is not None or not facts.cpu_flags:
        return ok("CPU", f"{facts.processor}: {', '.join(names) or 'its instruction sets are unknown'}")
    foreign = sorted(name for name in compiled & INSTRUCTIONS.keys() if name not in names)
    if foreign:
        return fail(
            "CPU",
            f"{facts.processor} lacks {', '.join(foreign)}, which llama.cpp was compiled for: it will crash",
            f"compile it for this CPU: {rebuild_command(facts)}",
        )
    unused = [name for name in names if name not in compiled]
    if unused:
        return warn(
            "CPU",
            f"{facts.processor} has {', '.join(unused)}, which this build of llama.cpp does not use",
            f"compile it for this CPU, to make it faster: {rebuild_command(facts)}",
        )
    return ok("CPU", f"{facts.processor}: llama.cpp uses {', '.join(names) or 'no vector instructions'}")


def check_load(facts: Facts) -> list[Finding]:
    """Check that the CPUs are free: a thread that shares its core delays all others."""
    cpus = facts.cpus
    text = f"{cpus.num_busy:.1f} of {cpus.num_usable} CPUs are busy"
    if cpus.num_busy > _MANY_BUSY * cpus.num_usable:
        return warn("load", f"{text}: edgeagent computes with fewer threads, and slower", "end other programs")
    return ok("load", text)


def compiled_instructions(line: str) -> frozenset[str]:
    """Return the names with the value 1 in llama.cpp's description of its build: `CPU : AVX = 1 | AVX2 = 1 | ...`."""
    return frozenset(re.findall(r"([A-Z][A-Z0-9_]*) = 1\b", line))


def check_gpu(facts: Facts) -> list[Finding]:
    """Compare the GPUs of this machine with the devices that llama.cpp sees."""
    if facts.native.problem is not None:
        return []
    found = [
        ok("GPU", f"{device.description} ({device.name}), {size_text(device.memory_free_bytes)} free")[0]
        for device in facts.native.devices
        if device.kind != "cpu"
    ]
    for gpu in sorted(facts.gpus):
        found += _check_one_gpu(gpu, facts)
    return found or ok("GPU", "none found: models run on the CPU")


def _check_one_gpu(gpu: GpuVendor, facts: Facts) -> list[Finding]:
    """Return a list with one finding if llama.cpp finds no GPU of this vendor; an empty list if it finds one."""
    native, what = facts.native, _GPU_NAMES[gpu]
    if any(device.name.startswith(BACKENDS[gpu]) for device in native.devices):
        return []
    if any(backend.startswith(BACKENDS[gpu]) for backend in native.backends):
        return warn(
            "GPU",
            f"this machine has {what}, and llama.cpp has a backend for it, but it finds no device",
            "check that its driver is loaded and that this user may open it (nvidia-smi, or the group `render`)",
        )
    command = rebuild_command(facts, gpu_flags(gpu, facts))
    if gpu == "intel":
        # Most Intel GPUs are part of the processor and share its memory, so a build for them is seldom useful.
        return ok("GPU", f"{what} is not used; if it has memory of its own, a build with Vulkan uses it: {command}")
    first = "" if gpu != "nvidia" or facts.tools.has_cuda else "install the CUDA toolkit (nvcc), then "
    return warn("GPU", f"this machine has {what}, and llama.cpp was compiled without it", f"{first}run: {command}")


def check_memory(facts: Facts) -> list[Finding]:
    """Check that there is enough memory for a small model."""
    memory = facts.memory
    swap = (
        f", swap {size_text(memory.swap_free_bytes)} of {size_text(memory.swap_bytes)} free"
        if memory.swap_bytes
        else ", no swap"
    )
    text = f"{size_text(memory.available_bytes)} of {size_text(memory.total_bytes)} available{swap}"
    if memory.available_bytes < _LITTLE_MEMORY:
        return warn("memory", text, "end other programs, or unload models: `edgeagent ps`, `edgeagent unload MODEL`")
    return ok("memory", text)


def check_sandbox(facts: Facts) -> list[Finding]:
    """Check that a model's process gets all restrictions of the sandbox."""
    if facts.platform != "linux":
        return ok("sandbox", "none on this system: edgeagent has a sandbox only on Linux")
    if not facts.limits.is_sandbox_on:
        return warn(
            "sandbox", "switched off: a damaged or hostile model reaches this user's files", "set engine.sandbox = true"
        )
    state = facts.native.sandbox
    if state is None:
        return warn("sandbox", "unknown: the process that tests it ended early", "see llama.cpp above")
    missing = [name for name in _FULL_SANDBOX if name not in state]
    if missing:
        why = (
            "the kernel has no Landlock (Linux 5.13 has it)" if not facts.native.landlock else "it is not allowed here"
        )
        return warn(
            "sandbox",
            f"without {', '.join(missing)}: {why}",
            "use a newer kernel, or let the container allow Landlock and seccomp",
        )
    return ok("sandbox", f"{', '.join(state)} (Landlock {facts.native.landlock})")
