"""axe-core, which finds faults of accessibility. It comes from npm into the user's cache folder, once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import platformdirs

PACKAGE = "axe-core@4.14.1"


def axe_source() -> str | None:
    """Return the script; None if npm is missing or the package cannot be had."""
    folder = platformdirs.user_cache_path("edgeagent") / "page" / PACKAGE
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists() and not _install(folder):
        return None
    return script.read_text(encoding="utf-8")


def _install(folder: Path) -> bool:
    npm = shutil.which("npm")
    if npm is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-fund", "--no-audit", "--silent", "--ignore-scripts", PACKAGE]
    return subprocess.run(command, cwd=folder, check=False).returncode == 0
