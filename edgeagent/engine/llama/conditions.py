"""The conditions under which a profile of `edgeagent tune` is valid. Under others it is not used."""

from __future__ import annotations

from pathlib import Path

from edgeagent.engine.llama.bindings import commit, devices, system_description
from edgeagent.engine.llama.cores import num_usable_cores, processor_name
from edgeagent.engine.llama.fingerprint import library_stamp

# Increase it when the measured work changes.
_VERSION = 4


def machine_conditions(path: Path) -> dict[str, str]:
    """Return the conditions of a profile by name: the model's file, llama.cpp's build, the processor, the devices."""
    status = path.stat()
    return {
        "version": str(_VERSION),
        "model file": f"{status.st_size} {status.st_mtime_ns}",
        "llama.cpp": f"{commit()} {library_stamp()}",
        "processor": processor_name(),
        "instructions": system_description()[:2048],
        "cores": str(num_usable_cores()),
        "devices": ", ".join(device.description for device in devices())[:2048],
    }
