"""Measures pulls from a hub on this machine: `python -m tests.peer.pull_figures [rate|verify|kills]`.

rate    a file of 1 GB, by `edgeagent pull` and by `hf download` in turn, each into an empty folder
verify  the rate at which a file's sha256 is checked, and the rate of hashlib itself
kills   a file of 200 MB whose pull is killed 100 times: the final content, and the share of written data that is reused
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from edgeagent.store.file_records import file_sha256
from edgeagent.store.hub.cache import HubCache
from tests.hub_server import hub_server, sha256
from tests.store.gguf_bytes import small_model

REPO, FILE = "org/model-GGUF", "model-Q4_K_M.gguf"
RATE_BYTES, KILL_BYTES = 1_000_000_000, 200_000_000
# While pulls are killed, the server is slow, so that the file is not complete before the 100th kill.
SLOW_PIECE_BYTES, SLOW_PAUSE_S = 1 << 16, 0.01
MAX_LIFE_S = 0.35


def serve(num_bytes: int, *, is_slow: bool) -> None:
    """Run the hub until stdin ends. Print its address, and the file's sha256 and size, as JSON."""
    content = small_model(1, num_bytes)
    with hub_server() as hub:
        hub.add(REPO, {FILE: content})
        hub.faults.piece_bytes = SLOW_PIECE_BYTES if is_slow else 1 << 20
        hub.faults.pause_s = SLOW_PAUSE_S if is_slow else 0.0
        print(json.dumps({"url": hub.url, "sha256": sha256(content), "num_bytes": len(content)}), flush=True)
        sys.stdin.read()


@contextmanager
def hub(num_bytes: int, *, is_slow: bool = False) -> Iterator[dict[str, str]]:
    """Run the hub in a separate process; yield what `serve` printed."""
    arguments = ["serve", "--bytes", str(num_bytes), *(["--slow"] if is_slow else [])]
    command = [sys.executable, "-m", "tests.peer.pull_figures", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield json.loads(process.stdout.readline())
        process.stdin.close()


def environment(url: str, folder: Path) -> dict[str, str]:
    """Return the environment for both programs. It has the address of this hub only, and turns progress bars off."""
    quiet = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    here = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1"}
    return {**os.environ, **quiet, **here, "XDG_CONFIG_HOME": str(folder / "config")}


def own_pull(folder: Path) -> list[str]:
    folders = ["--models-dir", str(folder / "hub"), "--state-dir", str(folder / "state")]
    return [sys.executable, "-m", "edgeagent", "pull", "--json", REPO, *folders]


def rate(folder: Path, rounds: int) -> None:
    """Print the rates of both programs. The whole run of a program is timed, including its start."""
    times: dict[str, list[float]] = {"edgeagent pull": [], "hf download": []}
    with hub(RATE_BYTES) as about:
        for _ in range(rounds):
            for name, seconds in times.items():
                target = folder / "rate"
                others = [str(Path(sys.executable).with_name("hf")), "download", REPO, FILE]
                command = own_pull(target) if name == "edgeagent pull" else others
                started_s = time.perf_counter()
                subprocess.run(command, env=environment(about["url"], target), check=True, stdout=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - started_s)
                shutil.rmtree(target)
    for name, seconds in times.items():
        print(f"{name}: {[round(RATE_BYTES / each / 1e6) for each in seconds]} MB/s")
    ratios = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
    print(f"ratio: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def verify(folder: Path, rounds: int) -> None:
    """Print the rates at which a file in the page cache is hashed."""
    path = folder / "verify"
    path.write_bytes(small_model(1, RATE_BYTES))
    ours, theirs = [], []
    for _ in range(rounds + 1):
        started_s = time.perf_counter()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        between_s = time.perf_counter()
        assert file_sha256(path, lambda _: None) == digest
        theirs.append(between_s - started_s)
        ours.append(time.perf_counter() - between_s)
    path.unlink()
    # The first round read the file into the page cache.
    ratios = [their / our for our, their in zip(ours[1:], theirs[1:], strict=True)]
    print(f"verification: {RATE_BYTES / median(ours[1:]) / 1e6:.0f} MB/s, hashlib: ", end="")
    print(f"{RATE_BYTES / median(theirs[1:]) / 1e6:.0f} MB/s, ratio {median(ratios):.2f}")


def kills(folder: Path, num_kills: int) -> None:
    """Kill a pull `num_kills` times at random moments, finish it, and print the result."""
    random.seed(1)
    flushed = reused = done = 0
    with hub(KILL_BYTES, is_slow=True) as about:
        cache = HubCache(folder / "hub")
        partial = cache.partial(REPO, about["sha256"])
        for _ in range(num_kills):
            before = _size(partial)
            with subprocess.Popen(
                own_pull(folder), env=environment(about["url"], folder), stdout=subprocess.DEVNULL
            ) as process:
                while process.poll() is None and _size(partial) == before:
                    time.sleep(0.002)
                # The bytes from before were not written again, since the resumed file only grows.
                reused += min(before, _size(partial))
                flushed += before
                time.sleep(random.random() * MAX_LIFE_S)
                if process.poll() is not None:
                    break
                process.send_signal(signal.SIGKILL)
                done += 1
        subprocess.run(own_pull(folder), env=environment(about["url"], folder), check=True, stdout=subprocess.DEVNULL)
    right = file_sha256(cache.files(REPO)[FILE]) == about["sha256"]
    print(f"{done} kills; the content is {'right' if right else 'WRONG'}; ", end="")
    print(f"{reused / max(flushed, 1):.1%} of what was on disk was used again")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["rate", "verify", "kills"], help="rate, verify, kills")
    parser.add_argument("--folder", type=Path, help="where files go; 2 GB are needed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=KILL_BYTES, help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == ["serve"]:
        serve(options.bytes, is_slow=options.slow)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for what in options.what:
            {"rate": rate, "verify": verify, "kills": kills}[what](
                folder, options.kills if what == "kills" else options.rounds
            )


if __name__ == "__main__":
    main()
