"""An installation of edgeagent whose environment lacks llama-cpp-python, as after a failed compile."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has every package of this one but llama-cpp-python."""
    folder = tmp_path_factory.mktemp("without")
    venv.create(folder / "venv", with_pip=False, symlinks=sys.platform != "win32")
    packages = folder / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("llama_cpp") and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    (site,) = (folder / "venv").glob("[Ll]ib/**/site-packages")
    (site / "others.pth").write_text(f"{packages}\n{ROOT}\n", encoding="utf-8")
    return folder / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def run(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "edgeagent", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(60), check=False, cwd=python.parent)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege there")
def test_every_command_says_what_is_missing(python: Path, tmp_path: Path) -> None:
    version = run(python, "version")
    assert version.returncode == 0 and "llama-cpp-python is not installed" in version.stdout, version.stderr
    assert json.loads(run(python, "version", "--json").stdout)["llama_cpp_python"] is None
    served = run(python, "serve", "--port", "0", "--state-dir", str(tmp_path / "state"))
    assert served.returncode == 1
    assert served.stderr.count("not installed") == 1 and "`edgeagent doctor`" in served.stderr
    doctor = json.loads(run(python, "doctor", "--json", "--state-dir", str(tmp_path / "state")).stdout)
    (finding,) = [finding for finding in doctor["findings"] if finding["name"] == "llama.cpp"]
    assert (finding["severity"], finding["text"]) == ("fail", "llama-cpp-python is not installed")
