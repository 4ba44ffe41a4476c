"""The checks of `edgeagent doctor` as tables: a healthy machine, and the same machine with one fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeagent.doctor.checks import Finding, examine
from edgeagent.doctor.facts import (
    Cpus,
    Facts,
    Folder,
    Limits,
    Memory,
    Native,
    Port,
    ProjectorFacts,
    RunningDaemon,
    Tools,
)
from edgeagent.types import DeviceInfo

GB = 10**9
CPU = DeviceInfo("CPU", "A processor", "cpu", 16 * GB, 8 * GB)
FULL_SANDBOX = ("no-network", "no-new-privileges", "no-programs", "read-only files")
NATIVE = Native(
    bindings="0.3.36",
    commit="0c1e570",
    instructions="CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | F16C = 1 | BMI2 = 1 | LLAMAFILE = 1 | ",
    backends=("CPU",),
    devices=(CPU,),
    sandbox=FULL_SANDBOX,
    landlock=7,
)
X86 = frozenset({"avx", "avx2", "fma", "f16c", "bmi2", "sse3"})


def folder(path: str, **changes: Any) -> Folder:
    ours = Folder(Path(path), owner="me", file_system="ext4", total_bytes=500 * GB, free_bytes=100 * GB)
    return replace(ours, **changes)


HEALTHY = Facts(
    version="1.0",
    platform="linux",
    machine="x86_64",
    processor="A processor",
    cpu_flags=X86,
    gpus=frozenset(),
    native=NATIVE,
    memory=Memory(16 * GB, 8 * GB, 2 * GB, 2 * GB),
    cpus=Cpus(4, 0.3),
    models=folder("/models"),
    cache=folder("/state/cache", used_bytes=3 * GB),
    state=folder("/state"),
    port=Port("127.0.0.1", 8127, "free"),
    daemon=None,
    tools=Tools("/venv/bin/python"),
    limits=Limits(8 * GB, 2 * GB),
)


def found(facts: Facts, name: str) -> Finding:
    """Return the only finding with a name."""
    (finding,) = [finding for finding in examine(facts) if finding.name == name]
    return finding


def changed(**parts: Any) -> Facts:
    return replace(HEALTHY, **parts)


def native(**parts: Any) -> Facts:
    return changed(native=replace(NATIVE, **parts))


def test_a_healthy_machine() -> None:
    findings = examine(HEALTHY)
    assert {finding.severity for finding in findings} == {"ok"}
    assert not [finding for finding in findings if finding.remedy]
    assert [finding.name for finding in findings] == [
        *("llama.cpp", "CPU", "load", "GPU", "memory", "sandbox", "state folder", "cache folder", "models folder"),
        *("model", "port", "daemon"),
    ]


def test_an_instruction_set_is_not_missed_if_another_does_its_work() -> None:
    flags = X86 | {"avx_vnni", "avx512_vnni"}
    facts = native(instructions=NATIVE.instructions + "AVX512_VNNI = 1", is_portable=True, variant="zen4")
    finding = found(replace(facts, cpu_flags=flags), "CPU")
    assert finding.severity == "ok"
    assert finding.text.endswith("AVX512_VNNI (its library for zen4)")


PIP = "-m pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36"
CUDA = DeviceInfo("CUDA0", "NVIDIA GeForce RTX 4090", "gpu", 24 * GB, 23 * GB)

# The fault, the name of its finding, its severity, part of its text, and part of its remedy.
WRONG: dict[str, tuple[Facts, str, str, str, str]] = {
    "no bindings": (native(bindings=None), "llama.cpp", "fail", "is not installed", "llama-cpp-python=="),
    "a broken import": (
        native(problem="it cannot be loaded (ImportError: no libggml)"),
        *("llama.cpp", "fail", "ImportError: no libggml", PIP),
    ),
    "a build for another CPU": (
        native(instructions="CPU : AVX = 1 | AVX2 = 1 | AVX512 = 1 | "),
        *("CPU", "fail", "lacks AVX512, which llama.cpp was compiled for", PIP),
    ),
    "a build for any CPU": (
        changed(cpu_flags=X86 | {"avx512f", "avx512_vnni"}),
        *("CPU", "warn", "has AVX512, AVX512_VNNI, which this build of llama.cpp does not use", PIP),
    ),
    "a build for any CPU, in a checkout": (
        changed(cpu_flags=X86 | {"avx512f"}, tools=Tools("python", is_checkout=True)),
        *("CPU", "warn", "has AVX512", "to make it faster: CMAKE_ARGS= make clean setup"),
    ),
    "Arm without dot products": (
        changed(cpu_flags=frozenset({"asimd", "asimddp"}), native=replace(NATIVE, instructions="CPU : NEON = 1 | ")),
        *("CPU", "warn", "has DOTPROD", PIP),
    ),
    "a build with AMX": (
        changed(
            cpu_flags=X86 | {"amx_int8"}, native=replace(NATIVE, instructions=f"{NATIVE.instructions} AMX_INT8 = 1 |")
        ),
        *("CPU", "warn", "was compiled with AMX", "-DCMAKE_CXX_FLAGS=-mno-amx-int8'"),
    ),
    "NVIDIA without CUDA": (
        changed(gpus=frozenset({"nvidia"}), tools=Tools("/venv/bin/python", has_cuda=True)),
        *("GPU", "warn", "compiled without it", "run: CMAKE_ARGS='-DMTMD_VIDEO=OFF -DGGML_CUDA=on' /venv/bin/python"),
    ),
    "NVIDIA without CUDA's compiler": (
        changed(gpus=frozenset({"nvidia"})),
        *("GPU", "warn", "an NVIDIA GPU", "install the CUDA toolkit (nvcc), then run: "),
    ),
    "NVIDIA in a checkout": (
        changed(gpus=frozenset({"nvidia"}), tools=Tools("python", is_checkout=True, has_cuda=True)),
        *("GPU", "warn", "an NVIDIA GPU", "run: CMAKE_ARGS=-DGGML_CUDA=on make setup"),
    ),
    "NVIDIA without a plug-in": (
        changed(gpus=frozenset({"nvidia"}), native=replace(NATIVE, is_portable=True)),
        *(
            "GPU",
            "warn",
            "the back end for it is not installed",
            "run: edgeagent engine install cuda12 --find-links DIR",
        ),
    ),
    "AMD without a plug-in": (
        changed(gpus=frozenset({"amd"}), native=replace(NATIVE, is_portable=True)),
        *("GPU", "warn", "an AMD GPU", "run: edgeagent engine install vulkan --find-links DIR"),
    ),
    "a plug-in that cannot be loaded": (
        native(is_portable=True, trouble="libvulkan.so.1: cannot open shared object file"),
        *("GPU", "warn", "cannot be loaded: libvulkan.so.1", "edgeagent engine list"),
    ),
    "a portable engine without a library for this CPU": (
        changed(cpu_flags=X86 | {"avx_vnni"}, native=replace(NATIVE, is_portable=True, variant="haswell")),
        *("CPU", "warn", "has AVX_VNNI, which this build of llama.cpp does not use", PIP),
    ),
    "the same in an environment of uv, which has no pip": (
        changed(
            cpu_flags=X86 | {"avx_vnni"},
            tools=Tools("/a b/python", has_pip=False),
            native=replace(NATIVE, is_portable=True, variant="haswell"),
        ),
        *("CPU", "warn", "has AVX_VNNI", "uv pip install --force-reinstall --no-deps --no-cache-dir --no-binary"),
    ),
    "NVIDIA's driver is missing": (
        changed(gpus=frozenset({"nvidia"}), native=replace(NATIVE, backends=("CUDA", "CPU"))),
        *("GPU", "warn", "finds no device", "nvidia-smi"),
    ),
    "AMD without ROCm": (changed(gpus=frozenset({"amd"})), "GPU", "warn", "an AMD GPU", "-DGGML_VULKAN=on"),
    "AMD with ROCm": (
        changed(gpus=frozenset({"amd"}), tools=Tools("python", has_rocm=True)),
        *("GPU", "warn", "an AMD GPU", "-DGGML_HIP=on"),
    ),
    "Apple without Metal": (
        changed(platform="darwin", machine="arm64", gpus=frozenset({"apple"})),
        *("GPU", "warn", "Apple's GPU", "-DGGML_METAL=on"),
    ),
    "Windows": (
        changed(platform="win32", gpus=frozenset({"nvidia"}), tools=Tools(r"C:\py\python.exe", has_cuda=True)),
        *("GPU", "warn", "an NVIDIA GPU", "$env:CMAKE_ARGS='-DMTMD_VIDEO=OFF -DGGML_CUDA=on'; & 'C:\\py\\python.exe'"),
    ),
    "little memory": (changed(memory=Memory(4 * GB, GB // 2)), "memory", "warn", "500.0 MB of 4.0 GB", "unload"),
    "no Landlock": (
        native(sandbox=("no-network", "no-new-privileges", "no-programs"), landlock=0),
        *("sandbox", "warn", "without read-only files: the kernel has no Landlock", "newer kernel"),
    ),
    "a container without seccomp": (
        native(sandbox=("no-new-privileges", "read-only files")),
        *("sandbox", "warn", "without no-network, no-programs: it is not allowed here", "seccomp"),
    ),
    "the sandbox is off": (
        changed(limits=replace(HEALTHY.limits, is_sandbox_on=False)),
        *("sandbox", "warn", "switched off", "engine.sandbox"),
    ),
    "another user's state": (
        changed(state=folder("/state", is_own=False, owner="eve")),
        *("state folder", "fail", "belongs to another user (eve)", "--state-dir"),
    ),
    "a state that others write": (
        changed(state=folder("/state", mode=0o777)),
        *("state folder", "fail", "can be written by other users", "chmod 700 /state"),
    ),
    "a state that others read": (
        changed(state=folder("/state", mode=0o755)),
        *("state folder", "warn", "can be read by other users", "chmod 700 /state"),
    ),
    "a token that others read": (
        changed(token_problem="/state/token is open to other users; run `chmod 600`"),
        *("state folder", "fail", "chmod 600", ""),
    ),
    "a full disk": (
        changed(state=folder("/state", free_bytes=0)),
        *("state folder", "fail", "the disk of /state is full: 0 B free", "free some space"),
    ),
    "a state on NFS": (changed(state=folder("/state", file_system="nfs4")), "state folder", "warn", "locks", ""),
    "a cache that cannot be written": (
        changed(cache=folder("/state/cache", is_writable=False)),
        *("cache folder", "warn", "/state/cache cannot be written to", "--cache-dir"),
    ),
    "a cache that is a file": (
        changed(cache=folder("/state/cache", problem="it is a file, not a folder")),
        *("cache folder", "warn", "it is a file", "--cache-dir"),
    ),
    "a cache on a nearly full disk": (
        changed(cache=folder("/state/cache", free_bytes=GB)),
        *("cache folder", "warn", "less than store.min_free_bytes (2.0 GB)", "free some space"),
    ),
    "a cache in memory": (
        changed(cache=folder("/tmp/cache", file_system="tmpfs")),
        *("cache folder", "warn", "is in memory (tmpfs)", "--cache-dir"),
    ),
    "no room for a download": (
        changed(models=folder("/models", free_bytes=GB // 2)),
        *("models folder", "warn", "500.0 MB free", "edgeagent prune"),
    ),
    "models nobody can add to": (
        changed(models=folder("/models", is_there=False, is_writable=False)),
        *("models folder", "warn", "cannot be created", "--models-dir"),
    ),
    "a model that is not here": (
        changed(model_problem="qwen3-4b is not on this machine: run `edgeagent pull qwen3-4b`"),
        *("model", "fail", "edgeagent pull qwen3-4b", "--model"),
    ),
    "a table for a model that is not here": (
        changed(unknown_tables=("quen3",)),
        *("model", "warn", 'config.toml has [models."quen3"]', "edgeagent list"),
    ),
    "similar answers without their model": (
        changed(embedding_problem="all-minilm-l6-v2 is not on this machine: run `edgeagent pull all-minilm-l6-v2`"),
        *("answers", "warn", "finds nothing: all-minilm-l6-v2 is not on this machine", "answers.embedding_model"),
    ),
    "a kiosk's model that is not here": (
        changed(kiosk_problem="model 'quen3' is not on this machine"),
        *("kiosk", "warn", "kiosk.model: model 'quen3' is not on this machine", "edgeagent list"),
    ),
    "facts of a kiosk that cannot be used": (
        changed(kiosk_facts_problem="kiosk.facts_file: /today.txt cannot be used: it has more than 32768 bytes"),
        *("kiosk", "fail", "/today.txt cannot be used: it has more than 32768 bytes", "does not start"),
    ),
    "an adapter that is none": (
        changed(adapter_problems=("/a.gguf is not an adapter",)),
        *("model", "fail", "/a.gguf is not an adapter", "adapters] in config.toml"),
    ),
    "a projector that is none": (
        changed(projector=ProjectorFacts(problem="/m.gguf is no projector", is_named=True)),
        *("model", "fail", "--mmproj: /m.gguf is no projector", "or none"),
    ),
    "a projector that is not here": (
        changed(projector=ProjectorFacts(to_pull="smolvlm-256m")),
        *("model", "warn", "but not its projector", "edgeagent pull smolvlm-256m"),
    ),
    "a taken port": (
        changed(port=Port("127.0.0.1", 8127, "taken", "nginx, process 7")),
        *("port", "fail", "taken by another program (nginx, process 7)", "--port"),
    ),
    "a daemon of another user": (
        changed(port=Port("127.0.0.1", 8127, "edgeagent")),
        *("port", "fail", "an edgeagent daemon of another user or state folder", "--port"),
    ),
    "a port below 1024": (
        changed(port=Port("127.0.0.1", 80, "not allowed")),
        "port",
        "fail",
        "this user may not listen",
        "1023",
    ),
    "a foreign address": (changed(port=Port("10.9.8.7", 8127, "not ours")), "port", "fail", "10.9.8.7", "--host"),
    "an old daemon": (
        changed(daemon=RunningDaemon(9, "http://127.0.0.1:8127", "0.9")),
        *("daemon", "warn", "edgeagent 0.9 at http://127.0.0.1:8127, process 9; this command is 1.0", "stop"),
    ),
    "a daemon that is not ready": (
        changed(daemon=RunningDaemon(9, "http://127.0.0.1:8127", "1.0", "the worker crashed")),
        *("daemon", "fail", "is not ready: the worker crashed", "edgeagent status"),
    ),
    "a hub behind a proxy": (
        changed(hub="https://hub", hub_problem="https://hub cannot be reached"),
        *("hub", "warn", "https://hub cannot be reached", "work without it"),
    ),
}


@pytest.mark.parametrize("facts, name, severity, text, remedy", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said_with_its_remedy(facts: Facts, name: str, severity: str, text: str, remedy: str) -> None:
    finding = found(facts, name)
    assert finding.severity == severity
    assert text in finding.text
    assert remedy in finding.remedy and finding.remedy


def test_what_is_seen_but_not_wrong() -> None:
    assert (
        "RTX 4090 (CUDA0), 23.0 GB free"
        in found(
            changed(gpus=frozenset({"nvidia"}), native=replace(NATIVE, devices=(CUDA, CPU), backends=("CUDA", "CPU"))),
            "GPU",
        ).text
    )
    intel = found(changed(gpus=frozenset({"intel"})), "GPU")
    assert intel.severity == "ok" and "-DGGML_VULKAN=on" in intel.text
    assert found(changed(hub="https://hub"), "hub").text == "https://hub answers"
    assert found(changed(port=Port("127.0.0.1", 8127, "ours")), "port").severity == "ok"
    assert found(changed(limits=replace(HEALTHY.limits, cache_bytes=0)), "cache folder").severity == "ok"
    assert found(changed(platform="darwin"), "sandbox").severity == "ok"
    # A daemon that runs on another port does not need this port.
    both = changed(port=Port("127.0.0.1", 8127, "taken"), daemon=RunningDaemon(9, "http://127.0.0.1:9000", "1.0"))
    assert found(both, "port").severity == "warn"


def test_amx_is_left_out_where_a_compiler_may_miscompile_it() -> None:
    facts = changed(cpu_flags=X86 | {"amx_int8"}, native=replace(NATIVE, problem="it crashed"))
    assert "-mno-amx-int8" in found(facts, "llama.cpp").remedy


def test_busy_cpus_are_told() -> None:
    assert found(HEALTHY, "load").severity == "ok"
    finding = found(changed(cpus=Cpus(2, 1.6)), "load")
    assert (finding.severity, finding.text) == (
        "warn",
        "1.6 of 2 CPUs are busy: edgeagent computes with fewer threads, and slower",
    )
