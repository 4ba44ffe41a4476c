"""All checks of `edgeagent doctor`: pure functions of the facts. `CHECKS` has them in the order of the report."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgeagent.doctor.facts import Facts, Folder, GpuVendor
from edgeagent.doctor.plug_ins import advice, plug_in_for
from edgeagent.units import size_text
from edgeagent.usable import NETWORK_FILE_SYSTEMS

Severity = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `remedy` says what to do; it is empty if nothing needs to be done."""

    name: str
    severity: Severity
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> list[Finding]:
    """Return a list with one finding, which reports no problem."""
    return [Finding(name, "ok", text)]


def warn(name: str, text: str, remedy: str) -> list[Finding]:
    """Return a list with one finding about a problem that makes edgeagent slower or less convenient."""
    return [Finding(name, "warn", text, remedy)]


def fail(name: str, text: str, remedy: str) -> list[Finding]:
    """Return a list with one finding about a problem that prevents edgeagent from working."""
    return [Finding(name, "fail", text, remedy)]


# Video would start ffmpeg on the bytes of a client.
_WITHOUT_VIDEO = "-DMTMD_VIDEO=OFF"
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
        # CMAKE_ARGS asks for a compiled engine. Nothing is compiled if flags and CPU are the same as last time.
        return f"CMAKE_ARGS={shlex.quote(flags)} make setup" if flags else "CMAKE_ARGS= make clean setup"
    flags = " ".join(filter(None, (_WITHOUT_VIDEO, flags, _WITHOUT_AMX if "amx_int8" in facts.cpu_flags else "")))
    package = required_bindings()
    python, has_pip = facts.tools.python, facts.tools.has_pip
    options = "install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python"
    if facts.platform == "win32":
        pip = f"& '{python}' -m pip {options}" if has_pip else f"uv pip {options} --python '{python}'"
        return f"$env:CMAKE_ARGS='{flags}'; {pip} {package}"
    quoted = shlex.quote(python)
    pip = f"{quoted} -m pip {options}" if has_pip else f"uv pip {options} --python {quoted}"
    return f"CMAKE_ARGS={shlex.quote(flags)} {pip} {package}"


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
# An instruction set is not missed if the build uses one that does the same work. Measured on a CPU with both: a
# portable engine without AVX_VNNI is not slower than a build for this CPU.
_SAME_WORK = {"AVX_VNNI": "AVX512_VNNI"}
# The names of llama.cpp's backends that support a GPU, by the GPU's maker.
BACKENDS: dict[GpuVendor, tuple[str, ...]] = {
    "nvidia": ("CUDA", "Vulkan"),
    "amd": ("ROCm", "HIP", "Vulkan"),
    "intel": ("SYCL", "Vulkan", "OpenVINO"),
    "apple": ("Metal", "MTL"),
}
_GPU_NAMES = {"nvidia": "an NVIDIA GPU", "amd": "an AMD GPU", "intel": "an Intel GPU", "apple": "Apple's GPU"}
_FULL_SANDBOX = ("no-network", "no-new-privileges", "no-programs", "read-only files")


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
    unused = [name for name in names if name not in compiled and _SAME_WORK.get(name) not in compiled]
    if unused:
        return warn(
            "CPU",
            f"{facts.processor} has {', '.join(unused)}, which this build of llama.cpp does not use",
            f"compile it for this CPU, to make it faster: {rebuild_command(facts)}",
        )
    if "AMX_INT8" in compiled and not facts.native.is_portable:
        # Compiled by pip, which does not know the flags of `rebuild_command`. See engine.llama.model.
        return warn(
            "CPU",
            f"{facts.processor}: llama.cpp was compiled with AMX, which some compilers get wrong, so edgeagent keeps "
            "weights in an order that is slower",
            f"compile it without AMX: {rebuild_command(facts)}",
        )
    used = ", ".join(name for name in names if name in compiled) or "no vector instructions"
    library = f" (its library for {facts.native.variant})" if facts.native.variant else ""
    return ok("CPU", f"{facts.processor}: llama.cpp uses {used}{library}")


def check_load(facts: Facts) -> list[Finding]:
    """Check that the CPUs are free: a thread that shares its core delays all others."""
    cpus = facts.cpus
    text = f"{cpus.num_busy:.1f} of {cpus.num_usable} CPUs are busy"
    if cpus.num_busy > 0.4 * cpus.num_usable:
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
    if facts.native.trouble:
        text = f"an installed back end cannot be loaded: {facts.native.trouble}"
        found += warn("GPU", text, "install what it needs, or remove it: `edgeagent engine list` shows what is loaded")
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
    plug_in = plug_in_for(gpu, facts.tools) if native.is_portable else ""
    command = advice(plug_in) if plug_in else rebuild_command(facts, gpu_flags(gpu, facts))
    if gpu == "intel":
        # Most Intel GPUs are part of the processor and share its memory, so a build for them is seldom useful.
        return ok("GPU", f"{what} is not used; if it has memory of its own, Vulkan can use it: {command}")
    if plug_in:
        return warn("GPU", f"this machine has {what}, and the back end for it is not installed", f"run: {command}")
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
    if memory.available_bytes < 1_000_000_000:
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


MEMORY_KINDS = ("tmpfs", "ramfs")
# Space for what a daemon writes: its runtime file, its token and its database.
_STATE_BYTES = 16_000_000


def check_state(facts: Facts) -> list[Finding]:
    """Check the state folder: its owner and mode, the token in it, its free space and its file system."""
    folder, other = facts.state, "choose another folder with --state-dir"
    if trouble := _unusable("state folder", folder, other):
        return trouble
    if facts.token_problem:
        return fail("state folder", facts.token_problem, "the message above says what to do")
    if folder.is_there and folder.mode & 0o022:
        return fail("state folder", f"{folder.path} can be written by other users", f"run: chmod 700 {folder.path}")
    if folder.is_there and folder.mode & 0o077:
        return warn("state folder", f"{folder.path} can be read by other users", f"run: chmod 700 {folder.path}")
    if folder.free_bytes < _STATE_BYTES:
        text = f"the disk of {folder.path} is full: {size_text(folder.free_bytes)} free"
        return fail("state folder", text, f"free some space, or {other}")
    if folder.file_system.lower().startswith(NETWORK_FILE_SYSTEMS):
        text = f"{folder.path} is on a network file system ({folder.file_system}), where locks are not reliable"
        return warn("state folder", text, other)
    return ok("state folder", _described(folder))


def check_cache(facts: Facts) -> list[Finding]:
    """Check the folder of cached prefixes: whether it can be used, its free space and its file system."""
    folder, limits = facts.cache, facts.limits
    remedy = "choose another folder with --cache-dir, or switch it off with --cache-disk-bytes 0"
    if not limits.cache_bytes:
        return ok("cache folder", "switched off: prompts are kept in memory only")
    if trouble := _unusable("cache folder", folder, remedy):
        # Only a warning: without the cache, prompts are computed again after a restart, but nothing fails.
        return [Finding(each.name, "warn", each.text, each.remedy) for each in trouble]
    if folder.free_bytes < limits.min_free_bytes:
        text = (
            f"{size_text(folder.free_bytes)} free on the disk of {folder.path}, less than store.min_free_bytes "
            f"({size_text(limits.min_free_bytes)}): nothing more is kept"
        )
        return warn("cache folder", text, "free some space, or " + remedy)
    kind = folder.file_system.lower()
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return warn("cache folder", f"{folder.path} is on a network file system ({kind}), which is slow", remedy)
    if kind.startswith(MEMORY_KINDS):
        return warn("cache folder", f"{folder.path} is in memory ({kind}): it is lost at a restart", remedy)
    return ok("cache folder", f"{_described(folder)}, {size_text(folder.used_bytes)} kept")


def check_models(facts: Facts) -> list[Finding]:
    """Check the models folder: whether it can be used, its free space and its file system."""
    folder, limits = facts.models, facts.limits
    if trouble := _unusable("models folder", folder, "choose another folder with --models-dir"):
        # Only a warning: models on this machine can still be read.
        return [Finding(each.name, "warn", each.text, each.remedy) for each in trouble]
    if folder.free_bytes < limits.min_free_bytes:
        text = (
            f"{size_text(folder.free_bytes)} free on the disk of {folder.path}, less than a download must leave "
            f"({size_text(limits.min_free_bytes)})"
        )
        return warn("models folder", text, "delete what is not needed: `edgeagent prune`, `edgeagent rm MODEL`")
    if folder.file_system.lower().startswith(NETWORK_FILE_SYSTEMS):
        text = f"{folder.path} is on a network file system ({folder.file_system}): models load slowly"
        return warn("models folder", text, "choose a folder on this machine with --models-dir")
    return ok("models folder", _described(folder))


def _unusable(name: str, folder: Folder, remedy: str) -> list[Finding]:
    """Return a list with one finding, which says why a folder cannot be used; an empty list if it can be used."""
    if folder.problem is not None:
        return fail(name, f"{folder.path}: {folder.problem}", remedy)
    if folder.is_there and not folder.is_own:
        return fail(name, f"{folder.path} belongs to another user ({folder.owner})", remedy)
    if not folder.is_writable:
        what = "cannot be written to" if folder.is_there else "cannot be created"
        return fail(name, f"{folder.path} {what}", remedy)
    return []


def _described(folder: Folder) -> str:
    where = f"{folder.path}{'' if folder.is_there else ' (created when it is needed)'}"
    kind = f" on {folder.file_system}" if folder.file_system else ""
    return f"{where}{kind}, {size_text(folder.free_bytes)} of {size_text(folder.total_bytes)} free"


def check_daemon(facts: Facts) -> list[Finding]:
    """Check the daemon that runs with this state folder."""
    daemon = facts.daemon
    if daemon is None:
        return ok("daemon", "none runs with this state folder; `edgeagent serve` starts one")
    text = f"edgeagent {daemon.version} at {daemon.url}, process {daemon.pid}"
    if daemon.problem is not None:
        return fail("daemon", f"{text}, is not ready: {daemon.problem}", "see `edgeagent status`, and its log")
    if daemon.version != facts.version:
        return warn("daemon", f"{text}; this command is {facts.version}", "run `edgeagent stop` and start it again")
    return ok("daemon", f"{text}, is ready")


def check_port(facts: Facts) -> list[Finding]:
    """Check that a daemon can listen on the configured address, or does already."""
    port, where = facts.port, f"{facts.port.host} port {facts.port.number}"
    remedy = "choose another with --port (0 takes a free one)"
    match port.state:
        case "free":
            return ok("port", f"{where} is free" if port.number else "the daemon chooses a free port")
        case "ours":
            return ok("port", f"{where} is this daemon's")
        case "not allowed":
            return fail("port", f"this user may not listen on {where}", f"{remedy}, above 1023")
        case "not ours":
            return fail("port", f"{port.host} is not an address of this machine", "choose another with --host")
        case "edgeagent":
            text = f"{where} is taken by an edgeagent daemon of another user or state folder{_named(port.holder)}"
        case _:
            text = f"{where} is taken by another program{_named(port.holder)}"
    # A running daemon already listens on another port.
    return warn("port", text, remedy) if facts.daemon is not None else fail("port", text, remedy)


def _named(holder: str) -> str:
    return f" ({holder})" if holder else ""


def check_model(facts: Facts) -> list[Finding]:
    """Check that the models of the settings and their adapter files are on this machine."""
    if facts.model_problem:
        return fail("model", facts.model_problem, "choose another with --model; `edgeagent list` shows what is here")
    if facts.adapter_problems:
        return fail("model", "; ".join(facts.adapter_problems), "repair [models.NAME.adapters] in config.toml")
    if facts.projector.problem:
        return fail("model", f"--mmproj: {facts.projector.problem}", "name another file with --mmproj, or none")
    if facts.projector.to_pull:
        return warn(
            "model",
            f"{facts.model} is here, but not its projector, with which it reads images or sounds",
            f"run: edgeagent pull {facts.projector.to_pull} (it downloads only what is missing)",
        )
    if facts.unknown_tables:
        tables = ", ".join(f'[models."{name}"]' for name in facts.unknown_tables)
        return warn(
            "model", f"config.toml has {tables}, but no such model is here", "see the names in `edgeagent list`"
        )
    reads = f", and reads {facts.projector.reads}" if facts.projector.reads else ""
    return ok("model", f"{facts.model} is here{reads}")


def check_answers(facts: Facts) -> list[Finding]:
    """Check that the model that finds similar questions is here, if answers are given to those."""
    if facts.embedding_problem:
        text = f"answers.similar is on, but finds nothing: {facts.embedding_problem}"
        return warn("answers", text, "or name a model that is here with answers.embedding_model")
    return []


def check_kiosk(facts: Facts) -> list[Finding]:
    """Check what the kiosk's settings name, if they name something."""
    if facts.kiosk_facts_problem:
        return fail(
            "kiosk", facts.kiosk_facts_problem, "repair the file, or name another one: the daemon does not start"
        )
    if facts.kiosk_problem:
        return warn(
            "kiosk",
            f"kiosk.model: {facts.kiosk_problem}",
            "see the names in `edgeagent list`; a remote's model needs no file here",
        )
    return []


def check_hub(facts: Facts) -> list[Finding]:
    """Check that the hub answers, if it was contacted."""
    if facts.hub is None:
        return []
    if facts.hub_problem:
        return warn("hub", facts.hub_problem, "models that are here work without it")
    return ok("hub", f"{facts.hub} answers")


Check = Callable[[Facts], list[Finding]]

CHECKS: tuple[Check, ...] = (
    check_llama,
    check_cpu,
    check_load,
    check_gpu,
    check_memory,
    check_sandbox,
    check_state,
    check_cache,
    check_models,
    check_model,
    check_answers,
    check_kiosk,
    check_port,
    check_daemon,
    check_hub,
)


def examine(facts: Facts) -> list[Finding]:
    """Return what every check found."""
    return [finding for check in CHECKS for finding in check(facts)]
