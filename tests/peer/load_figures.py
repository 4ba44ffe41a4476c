"""Measures many models in one daemon: `python -m tests.peer.load_figures [between|demand|unload|turn]`.

between  the time to the first token, when requests switch between two loaded models and when they do not
demand   the time from a request for the bundled pair, which is not loaded, to its first token
unload   the share of a worker's memory that is free one second after `unload`
turn     requests to 20 models, one after another, with room for three

The models are copies of the bundled one under other names.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import psutil

from edgeagent.store.names.catalog import builtin_model
from tests.integration.conftest import Daemon, start_daemon, stop_daemon

NUM_MODELS = 20
WORKER = "edgeagent.worker.child.process"


class Client:
    """Sends requests to a daemon, and measures its processes."""

    def __init__(self, daemon: Daemon) -> None:
        self._http = httpx.Client(base_url=daemon.url, timeout=120)
        self._process = psutil.Process(daemon.process.pid)
        self._num_asked = 0

    def first_token_s(self, model: str) -> float:
        """Return the seconds until the first token of an answer. Each call sends a new prompt."""
        self._num_asked += 1
        body = {"model": model, "prompt": f"{self._num_asked} is a number.", "max_tokens": 4, "stream": True}
        started_s, first_s = time.perf_counter(), None
        with self._http.stream("POST", "/v1/completions", json=body) as reply:
            assert reply.status_code == 200, reply.read()
            for line in reply.iter_lines():
                if first_s is None and line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    first_s = time.perf_counter() - started_s
                assert '"error"' not in line, line
        assert first_s is not None
        return first_s

    def unload(self, model: str) -> None:
        assert self._http.post(f"/edgeagent/unload?model={model}").status_code == 200

    def workers(self) -> list[psutil.Process]:
        found = []
        for child in self._process.children():
            try:
                if WORKER in " ".join(child.cmdline()):
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def memory_bytes(self) -> int:
        """Return the memory of the daemon and its workers, with shared pages counted once."""
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total

    def daemon_size(self) -> tuple[int, int, int]:
        """Return the daemon's own memory in bytes, its number of open files and its number of threads."""
        return self._process.memory_info().rss, self._process.num_fds(), self._process.num_threads()


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Client]:
    """Run a new daemon whose models folder holds many models."""
    models = folder / "models"
    models.mkdir(exist_ok=True)
    for number in range(NUM_MODELS):
        if not (models / f"m{number}.gguf").exists():
            shutil.copyfile(builtin_model().path, models / f"m{number}.gguf")
    state = Path(tempfile.mkdtemp(dir=folder))
    daemon = start_daemon(state / "state", "m0", "--models-dir", str(models), *flags)
    try:
        yield Client(daemon)
    finally:
        stop_daemon(daemon)


def between(folder: Path, rounds: int) -> None:
    """Print the median time to the first token when requests switch models, and when they do not."""
    with serving(folder) as client:
        for _ in range(5):
            client.first_token_s("m0"), client.first_token_s("m1")
        same, other = [], []
        for number in range(8 * rounds):
            model, last = ("m0", "m1") if number % 2 else ("m1", "m0")
            client.first_token_s(last)
            other.append(client.first_token_s(model))
            same.append(client.first_token_s(model))
    print(f"first token, same model: {1e3 * median(same):.1f} ms, another: {1e3 * median(other):.1f} ms, ", end="")
    print(f"median of differences {1e3 * median([a - b for a, b in zip(other, same, strict=True)]):+.2f} ms")


def demand(folder: Path, rounds: int) -> None:
    """Print the time from a request for the bundled pair to its first token, while the pair is not loaded."""
    with serving(folder) as client:
        times = []
        for _ in range(rounds + 1):
            times.append(client.first_token_s("builtin"))
            client.unload("builtin")
    print(f"the bundled pair on demand: the first time {times[0]:.2f} s, with its measurements; ", end="")
    print(f"then {median(times[1:]):.2f} s ({min(times[1:]):.2f} to {max(times[1:]):.2f})")


def unload(folder: Path, rounds: int) -> None:
    """Print the share of a model's memory that is free one second after its unload."""
    shares, times = [], []
    with serving(folder) as client:
        for number in range(rounds + 1):
            before = client.memory_bytes()
            client.first_token_s(f"m{number + 1}")
            loaded = client.memory_bytes()
            started_s = time.perf_counter()
            client.unload(f"m{number + 1}")
            times.append(time.perf_counter() - started_s)
            time.sleep(max(0.0, 1.0 - times[-1]))
            shares.append((loaded - client.memory_bytes()) / (loaded - before))
            assert len(client.workers()) == 1
    # The daemon itself grows in the first round.
    shares, times = shares[1:], times[1:]
    print(f"unload: {1e3 * median(times):.0f} ms ({1e3 * max(times):.0f} at most); free after 1 s: ", end="")
    print(f"{median(shares):.1%} ({min(shares):.1%} at least) of {(loaded - before) / 2**20:.0f} MiB")


def turn(folder: Path, rounds: int) -> None:
    """Send requests to all models in turn, with room for three, and print how much the daemon grew."""
    with serving(folder, "--max-models", "3") as client:
        times, most = [], 0
        sizes = []
        for _ in range(rounds):
            for number in range(NUM_MODELS):
                times.append(client.first_token_s(f"m{number}"))
                most = max(most, len(client.workers()))
            sizes.append(client.daemon_size())
    print(f"{len(times)} requests to {NUM_MODELS} models, at most {most} workers, no error; ", end="")
    print(f"first token {median(times):.2f} s, at most {max(times):.2f} s")
    for rss, num_files, num_threads in sizes:
        print(f"  daemon after a round: {rss / 2**20:.1f} MiB, {num_files} files, {num_threads} threads")


MEASURES = {"between": between, "demand": demand, "unload": unload, "turn": turn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(MEASURES), help=", ".join(MEASURES))
    parser.add_argument("--folder", type=Path, help="where files go")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for what in options.what:
            MEASURES[what](Path(name), options.rounds)


if __name__ == "__main__":
    main()
