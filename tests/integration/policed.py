"""The command line on a machine whose policy is the file in the first argument; edgeagent has no such argument."""

from __future__ import annotations

import sys
from pathlib import Path

from edgeagent.cli import main
from edgeagent.machine_policy import file

if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    file.policy_path = lambda: path
    sys.exit(main())
