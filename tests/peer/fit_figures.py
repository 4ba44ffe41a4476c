"""Compares `edgeagent fit`'s predictions with a worker's real memory: `python -m tests.peer.fit_figures [--folder F]`.

Each shape of the shelf is served on the CPU with default settings and reads a prompt of 900 tokens, so that all memory
is in use. The measured value is the resident memory of the worker's process minus the blocks in host memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from edgeagent.config import EngineConfig
from edgeagent.fit.need import num_cells_wanted, predict
from edgeagent.store.gguf.header import read_header
from edgeagent.store.names.catalog import builtin_model
from tests.integration.conftest import start_daemon, stop_daemon
from tests.peer.shelf import SHAPES
from tests.peer.shelf.files import cached_model
from tests.peer.shelf.pairs import LOUDNESS, make_pair

PAIR = "pair of 0.4 B"
NAMES = (*SHAPES, PAIR, "builtin")
NUM_PROMPT = 900
PONG_S = 1.6  # until the status includes the prompt


def measured_bytes(model: Path, draft: Path | None, ctx: int) -> int:
    """Return the resident memory of a model's worker after a prompt, without cached blocks."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--ctx", str(ctx), "--cache-disk-bytes", "0", *(["--draft", str(draft)] if draft else [])]
        daemon = start_daemon(Path(folder) / "state", str(model), *options)
        body = {"prompt": [300 + 7 * place % 400 for place in range(min(NUM_PROMPT, ctx - 16))], "max_tokens": 4}
        httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=600).raise_for_status()
        time.sleep(PONG_S)
        worker = httpx.get(f"{daemon.url}/edgeagent/status").json()["models"][0]["worker"]
        cached = worker["memory_cache"]["num_bytes"] if worker["memory_cache"] else 0
        resident: int = psutil.Process(daemon.worker_pid()).memory_info().rss
        stop_daemon(daemon)
    return resident - cached


def _files(folder: Path, name: str) -> tuple[Path, Path | None]:
    """Return the files of a model and of its draft; None in place of the draft if there is none."""
    if name == PAIR:
        return make_pair(folder, max(LOUDNESS))
    if name == "builtin":
        return builtin_model().path, builtin_model().draft
    return cached_model(folder, SHAPES[name]), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgeagent-shelf")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--ctx", nargs="*", type=int, default=[2048, 8192])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("| model | context | predicted, MB | measured, MB | ratio |\n|---|---|---|---|---|")
    for name in arguments.only:
        path, draft = _files(arguments.folder, name)
        shapes = [read_header(each).shape for each in (path, draft) if each is not None]
        for ctx in arguments.ctx:
            config = EngineConfig(ctx=ctx)
            predicted = predict(shapes, config, num_cells_wanted(shapes[0], config)).total_bytes
            measured = measured_bytes(path, draft, ctx)
            ratio = predicted / measured
            print(f"| {name} | {ctx} | {predicted / 1e6:.0f} | {measured / 1e6:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
