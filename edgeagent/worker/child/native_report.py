"""Reports what llama.cpp is and sees on this machine, in the sandbox of a worker.

`python -m edgeagent.worker.child.native_report` writes two lines of JSON: the sandbox, then llama.cpp. One that was
compiled for another CPU ends the process between them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from edgeagent.worker.sandbox import landlock
from edgeagent.worker.sandbox.sandbox import enclose, set_limits


def main() -> None:
    """Enter the sandbox, then load llama.cpp."""
    set_limits()
    _write({"sandbox": enclose((), ()), "landlock": landlock.version() if sys.platform == "linux" else 0})
    _write(_described())


def _described() -> dict[str, Any]:
    # It loads native code, which is what may fail.
    from edgeagent.engine.llama import bindings

    return {
        "commit": bindings.commit(),
        "instructions": bindings.system_description(),
        "backends": bindings.backends(),
        "devices": [msgspec.to_builtins(device) for device in bindings.devices()],
    }


def _write(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
