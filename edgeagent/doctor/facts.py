"""The facts that the checks read. They are plain values, so that tests can describe any machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgeagent.types import DeviceInfo

GpuVendor = Literal["nvidia", "amd", "intel", "apple"]
# "ours": this state folder's daemon listens on the port. "not ours": the host is not an address of this machine.
PortState = Literal["free", "ours", "edgeagent", "taken", "not allowed", "not ours"]


@dataclass(frozen=True, slots=True)
class Native:
    """The report of a process that loads llama.cpp. `problem` says why the report is missing or incomplete.

    `bindings` is the version of llama-cpp-python, None if it is not installed. `commit` is llama.cpp's version.
    `is_portable`: it is the portable engine, and `variant` is the generation of CPUs whose library it has loaded.
    `trouble` says why a plug-in could not be loaded; empty if all were.
    `instructions` is llama.cpp's description of its build, with the CPU's instruction sets. `sandbox` lists the
    restrictions in force; it is None if the process ended before it entered the sandbox. `landlock` is the version of
    the kernel's Landlock, 0 if there is none.
    """

    bindings: str | None = None
    commit: str = ""
    instructions: str = ""
    backends: tuple[str, ...] = ()
    is_portable: bool = False
    variant: str = ""
    trouble: str = ""
    devices: tuple[DeviceInfo, ...] = ()
    sandbox: tuple[str, ...] | None = None
    landlock: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that edgeagent uses. If `is_there` is False, the folder will be created when it is first needed.

    The other facts are those of the folder, or of its nearest parent that exists. `used_bytes` is the size of the files
    in the folder, 0 if it was not measured. If `problem` is not None, it says why the folder cannot be used, and the
    other facts are not known.
    """

    path: Path
    is_there: bool = True
    is_writable: bool = True
    owner: str = ""
    is_own: bool = True
    mode: int = 0o700
    file_system: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    used_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """The address that a daemon with these settings would listen on. `holder` names another program on it, if known."""

    host: str
    number: int
    state: PortState
    holder: str = ""


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """The daemon of this state folder. `problem` says why it is not ready; None if it is ready."""

    pid: int
    url: str
    version: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """Which tools for compiling llama.cpp this machine has.

    `python` is the path of this process's interpreter. `has_pip`: it has pip, which environments of uv lack.
    `is_checkout`: edgeagent runs from its source tree. `has_cuda` and `has_rocm`: the compiler of that toolkit is
    installed. `nvidia_driver` is the main number of the driver's version, 0 if it is unknown.
    """

    python: str
    is_checkout: bool = False
    has_cuda: bool = False
    has_rocm: bool = False
    nvidia_driver: int = 0
    has_pip: bool = True


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory."""

    total_bytes: int
    available_bytes: int
    swap_bytes: int = 0
    swap_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that the checks compare facts with."""

    cache_bytes: int
    min_free_bytes: int
    is_sandbox_on: bool = True


@dataclass(frozen=True, slots=True)
class Cpus:
    """How many logical CPUs edgeagent may use, and how many of them all programs kept busy a moment ago."""

    num_usable: int
    num_busy: float = 0.0


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """The projector of the model: with which file it reads what, "" for nothing, and what is wrong with it.

    `is_named`: the owner named the file. `to_pull`: the name by which a missing one is pulled.
    """

    reads: str = ""
    problem: str = ""
    is_named: bool = False
    to_pull: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All gathered facts.

    `model_problem`, `embedding_problem` (of the model that finds similar questions), `kiosk_problem`,
    `kiosk_facts_problem`, `token_problem` and `hub_problem` are empty if there is no problem.
    `unknown_tables` are the models that config.toml has settings for but that are not on this machine.
    `adapter_problems` has a message for each adapter file that cannot be used. `hub` is the hub's address; None if the
    hub was not contacted.
    """

    version: str
    platform: str
    machine: str
    processor: str
    cpu_flags: frozenset[str]
    gpus: frozenset[GpuVendor]
    native: Native
    memory: Memory
    cpus: Cpus
    models: Folder
    cache: Folder
    state: Folder
    port: Port
    daemon: RunningDaemon | None
    tools: Tools
    limits: Limits
    model: str = "builtin"
    model_problem: str = ""
    unknown_tables: tuple[str, ...] = ()
    embedding_problem: str = ""
    kiosk_problem: str = ""
    kiosk_facts_problem: str = ""
    adapter_problems: tuple[str, ...] = ()
    projector: ProjectorFacts = ProjectorFacts()
    token_problem: str = ""
    hub: str | None = None
    hub_problem: str = ""
