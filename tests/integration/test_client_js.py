"""packaging/js/edgeagent.js in Node.js, with a real daemon and the bundled model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import edgeagent
from tests.cutting_proxy import cutting_proxy
from tests.integration.conftest import Daemon, serving
from tests.integration.test_readme_examples import node
from tests.patience import patient

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packaging" / "js"
CASES = Path(__file__).with_name("client_js.mjs")


def test_every_case(daemon: Daemon, tmp_path: Path) -> None:
    command = [*node(), str(CASES)]
    program = Path(sys.executable).with_name("edgeagent.exe" if os.name == "nt" else "edgeagent")
    with serving(tmp_path / "state", "builtin", "--token-required") as locked, cutting_proxy(
        daemon.port, 5000, 700, 1300
    ) as proxy:
        environment = {
            **os.environ,
            "URL_": daemon.url,
            "CUTTING_URL": proxy.url,
            "LOCKED_URL": locked.url,
            "TOKEN": (locked.state_dir / "token").read_text().strip(),
            "STATE_DIR": str(locked.state_dir),
            "COMMAND": str(program),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(90))
        assert done.returncode == 0, done.stdout + done.stderr
        assert proxy.cuts == []
    assert done.stdout.split() == re.findall(r"^  (?:async )?(\w+)\(\) \{$", CASES.read_text(encoding="utf-8"), re.M)
