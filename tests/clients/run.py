"""`make test-clients`: drive a real daemon with third-party clients, in an environment of their own.

The environment (a virtual environment and a folder of npm packages) is in the user's cache folder and is made again
when a pinned version changes. Two of the clients need Node.js 20 or newer and npm. The exit status is 0 if every case
passed, 1 otherwise. `--only pipecat` runs one client.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tests.integration.conftest import Daemon, start_daemon, stop_daemon

HERE = Path(__file__).parent
REQUIREMENTS, PACKAGES = HERE / "requirements.txt", HERE / "package.json"
CLIENTS = {
    "open responses": "open_responses.py",
    "openai-python": "openai_python.py",
    "openai-node": "openai_node.mjs",
    "ai sdk": "ai_sdk.mjs",
    "instructor": "instructor_client.py",
    "llama-index": "llama_index_client.py",
    "pipecat": "pipecat_client.py",
    "livekit": "livekit_client.py",
}
LIMIT_S = 900.0
# Keeps libraries from using the network or the caller's settings.
QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LLAMA_INDEX_CACHE_DIR": "", "TIKTOKEN_CACHE_DIR": ""}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one case; `fault` is empty if it passed."""

    client: str
    case: str
    fault: str
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the clients; print a table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.run", description=__doc__)
    parser.add_argument("--only", default="", help="clients whose name contains this")
    only = parser.parse_args(arguments).only
    folder = environment_folder()
    prepare(folder)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="clients-") as state:
        daemon = start_daemon(Path(state) / "state", "builtin")
        try:
            for client in (name for name in CLIENTS if only in name):
                outcomes += run_client(client, daemon, folder, Path(state))
            outcomes.append(Outcome("daemon", "still serving, without a crash", look_at(daemon), 0.0))
        finally:
            stop_daemon(daemon)
    return show(outcomes)


def environment_folder() -> Path:
    """Return the folder of the environment for these pinned versions."""
    pinned = REQUIREMENTS.read_bytes() + PACKAGES.read_bytes() + sys.version.encode()
    return platformdirs.user_cache_path("edgeagent") / "clients" / hashlib.sha256(pinned).hexdigest()[:16]


def venv_python(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare(folder: Path) -> None:
    """Make the environment, unless a complete one exists."""
    stamp = folder / "ready"
    if stamp.exists():
        return
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise SystemExit("node and npm (Node.js 20 or newer) are needed for openai-node and the AI SDK; install them")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"clients: making {folder}, a few minutes once", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(venv_python(folder / "venv")), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    shutil.copy(PACKAGES, folder)
    npm = [str(shutil.which("npm")), "install", "--no-fund", "--no-audit", "--silent", "--ignore-scripts"]
    subprocess.run(npm, cwd=folder, check=True)
    stamp.touch()


def run_client(client: str, daemon: Daemon, folder: Path, logs: Path) -> list[Outcome]:
    """Run one client's script. If it ends before all its cases, that is a fault of its own."""
    script = HERE / CLIENTS[client]
    if script.suffix == ".mjs":
        # Node.js looks for modules in the folders above the script.
        for source in HERE.glob("*.mjs"):
            shutil.copy(source, folder)
        command = [str(shutil.which("node")), str(folder / script.name)]
    else:
        command = [str(venv_python(folder / "venv")), str(script)]
    environment = {**os.environ, **QUIET, "EDGEAGENT_URL": daemon.url, "OPENAI_API_KEY": "unused"}
    environment.pop("PYTHONPATH", None)
    log = logs / f"{script.stem}.log"
    print(f"clients: {client}", flush=True)
    with log.open("wb") as errors:
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, timeout=LIMIT_S, check=False
            )
            output, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            output, status = error.stdout or b"", -1
    found = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
    outcomes = [Outcome(client, each["case"], each["fault"], each["seconds"]) for each in found]
    if status != 0 or not outcomes:
        tail = " | ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-4:])
        outcomes.append(Outcome(client, "the script's end", f"status {status}: {tail}", 0.0))
    return outcomes


def look_at(daemon: Daemon) -> str:
    """Return what is wrong with the daemon after all clients have run, or an empty text."""
    if daemon.process.poll() is not None:
        return f"it ended with {daemon.process.returncode}"
    log = daemon.log.read_text(encoding="utf-8")
    faults = [line for line in log.splitlines() if "Traceback" in line or ("worker" in line and "died" in line)]
    return " | ".join(faults[:3])


def show(outcomes: Sequence[Outcome]) -> int:
    """Print the table; return the exit status."""
    for outcome in outcomes:
        print(f"{'FAULT' if outcome.fault else 'ok':6}{outcome.client:16}{outcome.case:52}{outcome.seconds:6.1f} s")
        if outcome.fault:
            print(f"      {outcome.fault}")
    num_faults = sum(bool(outcome.fault) for outcome in outcomes)
    print(f"{len(outcomes) - num_faults} of {len(outcomes)} cases passed")
    return int(num_faults > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
