"""Install edgeagent as a new user would, and time it: `python packaging/first_token.py --wheels dist/offline`.

A virtual environment, an empty home folder and no compiler on PATH. pip installs from the folder of wheels alone, and
`edgeagent run` asks the bundled model. The time runs from pip's start to the answer's first characters. The exit status
is 1 if a step fails or a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

MAX_SECONDS = 20.0
MAX_MB = 250.0
PROMPT = "hi"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cl")


class InstallError(Exception):
    """A step failed; the message has its output."""


def main(arguments: Sequence[str]) -> int:
    """Install, ask, print the figures; return the exit status."""
    parser = argparse.ArgumentParser(description="Time an installation from a folder of wheels to the first token.")
    parser.add_argument("--wheels", type=Path, required=True, help="the folder, such as dist/offline")
    parser.add_argument("--max-seconds", type=float, default=MAX_SECONDS, help="default: %(default)s")
    parser.add_argument("--max-mb", type=float, default=MAX_MB, help="default: %(default)s")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="edgeagent-new-user-") as folder:
        try:
            install_s, first_token_s, answer, size_mb = _install_and_ask(Path(folder), options.wheels.resolve())
        except InstallError as error:
            print(f"first_token: {error}", file=sys.stderr)
            return 1
    print(f"pip install                    {install_s:6.1f} s")
    print(f"edgeagent run, first token     {first_token_s:6.1f} s   {answer!r}")
    print(f"together                       {install_s + first_token_s:6.1f} s   at most {options.max_seconds:.0f}")
    print(f"installed, without pip         {size_mb:6.1f} MB  at most {options.max_mb:.0f}")
    return int(install_s + first_token_s > options.max_seconds or size_mb > options.max_mb)


def _install_and_ask(folder: Path, wheels: Path) -> tuple[float, float, str, float]:
    """Return the seconds of the installation, those to the first token, the answer, and the installed megabytes."""
    home, venv = folder / "home", folder / "venv"
    home.mkdir()
    _run([sys.executable, "-m", "venv", str(venv)], dict(os.environ))
    programs = venv / ("Scripts" if os.name == "nt" else "bin")
    environment = _new_users_environment(home, programs)
    before = _size(venv)
    began = time.monotonic()
    pip = [str(programs / "pip"), "install", "--quiet", "--no-index", "--find-links", str(wheels), "edgeagent"]
    _run(pip, environment)
    install_s = time.monotonic() - began
    installed_mb = (_size(venv) - before) / 1e6
    began = time.monotonic()
    command = [str(programs / "edgeagent"), "run", "builtin", PROMPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=home) as asked:
        assert asked.stdout is not None
        first = asked.stdout.read(1)
        first_token_s = time.monotonic() - began
        answer = (first + asked.stdout.read()).decode().strip()
    if asked.returncode or not answer:
        raise InstallError(f"`edgeagent run` ended with status {asked.returncode} and said {answer!r}")
    return install_s, first_token_s, answer, installed_mb


def _new_users_environment(home: Path, programs: Path) -> dict[str, str]:
    """Return the variables of a user who has set none: no settings of pip, no cache, and no compiler on PATH."""
    environment = {"PATH": str(programs), "HOME": str(home), "USERPROFILE": str(home), "PIP_CONFIG_FILE": os.devnull}
    # Windows needs these to start a process.
    environment |= {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP") if name in os.environ}
    found = [name for name in COMPILERS if shutil.which(name, path=environment["PATH"])]
    if found:
        raise InstallError(f"the environment has a compiler: {', '.join(found)}")
    return environment


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise InstallError(f"{' '.join(command)} failed:\n{done.stdout}")


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; those of a link are not counted."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
