"""Reports llama.cpp's build and the devices that it finds on this machine, from inside a worker's sandbox.

`python -m edgeagent.worker.child.native_report` writes two lines of JSON: the sandbox, then llama.cpp. If llama.cpp was
compiled for another CPU, the process ends after the first line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from edgeagent.worker.sandbox import landlock
from edgeagent.worker.sandbox.sandbox import enclose, set_limits


def main() -> None:
    """Enter the sandbox and report it, then load llama.cpp and report it."""
    set_limits()
    _write({"sandbox": enclose((), ()), "landlock": landlock.version() if sys.platform == "linux" else 0})
    _write(_described())


def _described() -> dict[str, Any]:
    # Import late: this loads native code, which may fail.
    from edgeagent.engine.llama import bindings

    return {
        "commit": bindings.commit(),
        "instructions": bindings.system_description(),
        "backends": bindings.backends(),
        "is_portable": bindings.IS_PORTABLE,
        "variant": bindings.cpu_variant(),
        "trouble": bindings.PLUG_IN_TROUBLE,
        "devices": [msgspec.to_builtins(device) for device in bindings.devices()],
    }


def _write(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
