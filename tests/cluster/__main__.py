"""`make cluster-demo`: a real cluster on this machine, the real daemon, and everything that can fail between them.

Two vLLM workers (on the CPU), the vLLM project's router and the TLS proxy of packaging/cluster serve the same model as
the daemon. The exit status is 0 if every step showed what it should show.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.client import Client
from tests.cluster.cluster import CONTEXT, Cluster, started
from tests.cluster.endless_model import LOCAL_NAME, write_endless_model
from tests.cluster.environment import CannotInstall, prepare
from tests.cluster.findings import StepFailed
from tests.cluster.hf_model import write_hf_model
from tests.cluster.llama_server import LlamaServer
from tests.cluster.processes import DidNotStart
from tests.cluster.story import FLAGS, KEY_VARIABLE, LLAMA_KEY_VARIABLE, Story
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.peer.build import binary, default_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--streams", type=int, default=8, help="streams that are broken at a time")
    parser.add_argument(
        "--llama-server",
        type=Path,
        default=binary(default_folder(), "llama-server"),
        help="another kind of remote; default: the one that tests/peer/build.py builds, if it is there",
    )
    parser.add_argument(
        "--optional", action="store_true", help="say so and exit with 0 where the engines cannot be installed"
    )
    parser.add_argument("--keep", type=Path, help="folder for logs, which is kept")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    # The engines run in sessions of their own, so an interrupted demo must still get the chance to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        engines = prepare()
        if chosen.keep:
            chosen.keep.mkdir(parents=True, exist_ok=True)
            run(engines, chosen.keep.resolve(), chosen.streams, chosen.llama_server)
        else:
            with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
                run(engines, Path(folder), chosen.streams, chosen.llama_server)
    except CannotInstall as error:
        if chosen.optional:
            print(f"cluster-demo is left out, since its engines cannot be installed: {error}", flush=True)
            return 0
        print(f"cluster-demo failed: {error}", file=sys.stderr)
        return 1
    except (DidNotStart, StepFailed) as error:
        print(f"\ncluster-demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"\nEvery step showed what it set out to show ({time.monotonic() - began:.0f} s).")
    return 0


def run(engines: Path, folder: Path, num_streams: int, llama_server: Path) -> None:
    """Start everything, run the demo's steps, and stop everything."""
    model = folder / f"{LOCAL_NAME}.gguf"
    write_endless_model(model)
    write_hf_model(model, folder / "model")
    print("The bundled model was written without an end to its answers, for llama.cpp and, unpacked, for vLLM.")
    cluster = Cluster(engines, folder / "model", folder)
    other = None
    if llama_server.exists():
        other = LlamaServer(llama_server, model, folder, seats=num_streams, context=CONTEXT)
        os.environ[LLAMA_KEY_VARIABLE] = other.key
    with started(cluster) as took:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        print(f"The cluster answers at {cluster.url}: {parts}.")
        os.environ[KEY_VARIABLE] = cluster.key
        daemon = start_daemon(folder / "state", str(model), *FLAGS)
        print(f"The daemon answers at {daemon.url}.")
        try:
            asyncio.run(tell(cluster, daemon, num_streams, other))
        finally:
            stop_daemon(daemon)
            if other is not None:
                other.stop()


async def tell(cluster: Cluster, daemon: Daemon, num_streams: int, other: LlamaServer | None) -> None:
    """Run the demo's steps with a client that is closed afterwards."""
    async with Client(daemon.url) as client:
        await Story(cluster, daemon, client, num_streams, llama_server=other).tell()


if __name__ == "__main__":
    sys.exit(main())
