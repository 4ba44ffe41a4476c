"""The command line on a machine whose policy is the file in the first argument; edgeagent has no such argument."""

from __future__ import annotations

import sys
from pathlib import Path

from edgeagent import machine_policy
from edgeagent.cli import main

if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    machine_policy.policy_path = lambda: path
    sys.exit(main())
