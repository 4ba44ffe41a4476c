"""What the trials of packages share: steps that are printed, commands, requests, and wheels of an older version."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OLD_VERSION = "0.0.9"
_ASK = """\
import sys, urllib.error, urllib.request
url, token, body = sys.argv[1:]
headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode() or None, headers), timeout=300) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


class TrialError(Exception):
    """A package does not do what it should."""


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step and the seconds that it took."""
    began = time.monotonic()
    print(f"- {title}", flush=True)
    yield
    print(f"    {time.monotonic() - began:.1f} s", flush=True)


def check(is_so: object, otherwise: str) -> None:
    """Raise TrialError with a message unless something is so."""
    if not is_so:
        raise TrialError(otherwise)


def run(*command: str | Path, status: int = 0) -> str:
    """Run a command and return its output, errors too. Raise TrialError if it ends with another status."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != status:
        words = " ".join(map(str, command))
        raise TrialError(f"`{words}` ended with status {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def wait_for(what: str, is_so: Callable[[], object], seconds: float = 180) -> None:
    """Wait until something is so; raise TrialError if that takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        check(time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


def ask(process: int, url: str, body: dict[str, Any] | None = None, token: str = "") -> tuple[int, Any]:
    """Send a request from the network of a process. Return the status and the JSON of the answer; 0 without one."""
    sent = json.dumps(body) if body is not None else ""
    command = ["nsenter", "--target", str(process), "--net", sys.executable, "-c", _ASK, url, token, sent]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return 0, done.stderr.strip().splitlines()[-1:]
    status, _, reply = done.stdout.partition(" ")
    return int(status), json.loads(reply or "null")


def answer_of(process: int, base: str, token: str = "") -> str:
    """Ask the bundled model something; store its answer. Return the id of the response."""
    status, response = ask(process, f"{base}/v1/responses", {"model": "builtin", "input": "What can you do?"}, token)
    check(status == 200, f"the model does not answer: {status} {response}")
    words = response["output"][-1]["content"][0]["text"]
    check(words.strip(), f"the answer is empty: {response}")
    print(f"    {base}: {words.strip()[:70]!r}")
    return str(response["id"])


def older_wheels(wheels: Path, target: Path, revision: str) -> Path:
    """Copy a folder of wheels with an edgeagent of an older revision, under an older version."""
    source = target / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(source, filter="data")
    version = source / "edgeagent" / "__init__.py"
    lines = version.read_text().splitlines()
    changed = [f'__version__ = "{OLD_VERSION}"' if line.startswith("__version__") else line for line in lines]
    version.write_text("\n".join(changed) + "\n")
    folder = target / "wheels"
    folder.mkdir()
    for wheel in wheels.glob("*.whl"):
        if not wheel.name.startswith("edgeagent-"):
            os.link(wheel, folder / wheel.name)
    build: Sequence[str] = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    return folder


def one(folder: Path, pattern: str) -> Path:
    """Return the only file of a pattern in a folder."""
    found = list(folder.glob(pattern))
    check(len(found) == 1, f"{folder} has {len(found)} of {pattern}")
    return found[0]
