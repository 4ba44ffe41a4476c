"""Asks llama.cpp for its version and devices.

llama.cpp may hang or crash, so it is loaded in a separate process with a time limit.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from edgeagent.doctor.facts import Native
from edgeagent.types import DeviceInfo
from edgeagent.worker.parent.environment import worker_environment

# At the first use a GPU driver compiles its kernels, which takes seconds.
TIMEOUT_S = 60.0
COMMAND = (sys.executable, "-P", "-m", "edgeagent.worker.child.native_report")


def ask_native(
    command: Sequence[str] = COMMAND, environment: Mapping[str, str] = os.environ, timeout_s: float | None = None
) -> Native:
    """Start a process that loads llama.cpp, and return its report. If it fails, `problem` of the report says why.

    `timeout_s` is the time limit in seconds (None: TIMEOUT_S).
    """
    bindings = installed_bindings()
    try:
        done = subprocess.run(  # noqa: S603 our own module
            command,
            env=worker_environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s or TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as late:
        why = f"it did not load within {late.timeout:g} s"
        return _native(bindings, late.stdout or b"", why)
    except OSError as error:
        return Native(bindings, problem=f"{command[0]} cannot be started: {error.strerror}")
    return _native(bindings, done.stdout, _why_ended(done.returncode, done.stderr))


def installed_bindings() -> str | None:
    """Return the version of llama-cpp-python; None if it is not installed."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return None


def _native(bindings: str | None, output: bytes, problem: str | None) -> Native:
    """Parse the report that a process wrote to its output. The report may be incomplete.

    `problem` says why the process failed; None if it succeeded. `bindings` is the version of llama-cpp-python.
    """
    records: list[dict[str, Any]] = []
    for line in output.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    said = {name: value for record in records for name, value in record.items()}
    if problem is None and "commit" not in said:
        problem = "it reported nothing"
    return Native(
        bindings,
        commit=str(said.get("commit", "")),
        instructions=str(said.get("instructions", "")),
        backends=tuple(map(str, said.get("backends", ()))),
        is_portable=bool(said.get("is_portable")),
        variant=str(said.get("variant", "")),
        trouble=str(said.get("trouble", "")),
        devices=tuple(DeviceInfo(**device) for device in said.get("devices", ())),
        sandbox=tuple(said["sandbox"]) if "sandbox" in said else None,
        landlock=int(said.get("landlock", 0)),
        problem=problem,
    )


def _why_ended(code: int, stderr: bytes) -> str | None:
    """Return why the process failed; None if it succeeded."""
    if code == 0:
        return None
    lines = stderr.decode(errors="replace").strip().splitlines()
    said = f" ({lines[-1].strip()[:300]})" if lines else ""
    if 0 <= code < 0x8000_0000:  # Windows reports crashes as larger numbers
        return f"it cannot be loaded{said}"
    illegal = code in (-getattr(signal, "SIGILL", 4), 0xC000_001D)
    return f"it crashed{': it was compiled for another CPU' if illegal else said or f' (status {code})'}"
