"""The plug-in wheels of the portable engine: which one a machine needs, which are installed, how one is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from edgeagent.doctor.facts import GpuVendor, Tools
from edgeagent.doctor.native import installed_bindings
from edgeagent.egress import ENGINE
from edgeagent.egress.ledger import own_requests
from edgeagent.errors import EdgeAgentError, InvalidRequest

PORTABLE = "+portable"
"""The version of the portable engine ends with this. The other part is the version of the bindings and the plug-ins."""
# The names of plug-ins, and of the ggml back end in each.
PLUG_INS = {"cuda12": "CUDA", "cuda13": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan"}


def plug_in_for(gpu: GpuVendor, tools: Tools) -> str:
    """Return the name of the plug-in for a GPU; "" if the engine itself supports it."""
    match gpu:
        case "nvidia":
            # Drivers from 590 support only GPUs that CUDA 13 supports too. CUDA 12 supports all GPUs.
            return "cuda13" if tools.nvidia_driver >= 590 else "cuda12"
        case "amd":
            return "rocm" if tools.has_rocm else "vulkan"
        case "intel":
            return "vulkan"
    return ""


def installed_plug_ins() -> dict[str, str]:
    """Return the versions of the installed plug-ins by their names."""
    found = {}
    for name in PLUG_INS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(f"edgeagent-engine-{name}")
    return found


def advice(name: str) -> str:
    """Return the command that a user runs to install a plug-in."""
    return f"edgeagent engine install {name} --find-links DIR"


def install_command(name: str, bindings: str, source: str) -> list[str]:
    """Return the command that installs a plug-in for this version of the bindings from a folder or a web page.

    pip takes the plug-in and all that it requires from there. It asks no package index, where a stranger could register
    the plug-in's name.
    """
    requirement = f"edgeagent-engine-{name}=={bindings.removesuffix(PORTABLE)}"
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    return [*pip, "--no-index", "--find-links", source, requirement]


def install(name: str, source: str, state_dir: Path) -> None:
    """Install a plug-in with pip from a folder or a web page with links to wheels; "" is refused.

    The egress ledger in the state folder has a row for the page's host. Raise EdgeAgentError if this engine takes no
    plug-ins, or with pip's message.
    """
    if name not in PLUG_INS:
        raise InvalidRequest(f"there is no back end {name!r}; there are {', '.join(PLUG_INS)}")
    bindings = installed_bindings()
    if bindings is None or not bindings.endswith(PORTABLE):
        have = "llama-cpp-python is not installed" if bindings is None else "llama.cpp was compiled for this machine"
        raise EdgeAgentError(
            f"{have}, and only the portable engine takes back ends; `edgeagent doctor` shows what to do for this GPU"
        )
    if not source:
        raise InvalidRequest(
            "the back ends are on no package index: name the folder or the web page that has their wheels with "
            "--find-links. In a checkout `make dist` collects them in dist"
        )
    if "://" not in source and not Path(source).is_dir():
        raise InvalidRequest(f"{source} is not a folder")
    command = install_command(name, bindings, source)
    if importlib.util.find_spec("pip") is None:
        # Environments of uv and pipx have no pip.
        options = " ".join(command[6:])
        raise EdgeAgentError(f"this Python has no pip; run: uv pip install --python {sys.executable} {options}")
    with own_requests(state_dir, ENGINE, command[-1]) as begin:
        if "://" in source:
            begin(source)
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode == 0:
        return
    if "connection broken by" in done.stderr:
        raise EdgeAgentError(f"{source} cannot be reached: check the address, the network and the proxy settings")
    if missing := re.search(r"No matching distribution found for (\S+)", done.stderr):
        machine = f"{platform.system()} {platform.machine()} {'-'.join(platform.libc_ver())}".rstrip(" -")
        name = missing.group(1)
        is_ours, is_page = name.startswith("edgeagent-engine-"), "://" in source
        remedy = "" if is_ours or is_page else f"; fetch it: pip download --dest {shlex.quote(source)} '{name}'"
        raise EdgeAgentError(f"{source} has no {name} that fits this machine ({machine}){remedy}")
    said = " ".join(done.stderr.strip().splitlines()[-3:])
    raise EdgeAgentError(f"pip could not install {command[-1]}: {said or f'status {done.returncode}'}")
