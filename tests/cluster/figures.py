"""The figures of failover and overflow: `python -m tests.cluster.figures`, on a quiet machine with two cores or more.

It runs real processes on loopback: the daemon, llama-server with the same file, vLLM behind its router and a proxy.
Each part takes one to four minutes; `--only` selects some. The results are stored in a JSON file after each part.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import platformdirs
from msgspec import Struct

from tests.cluster import measures
from tests.cluster.client import Answer
from tests.cluster.cluster import Cluster
from tests.cluster.desk import Desk
from tests.cluster.endless_model import BUNDLED, LOCAL_NAME, write_endless_model
from tests.cluster.environment import prepare
from tests.cluster.hf_model import write_hf_model
from tests.cluster.llama_server import LlamaServer
from tests.cluster.measures import HANG_LIMIT_S, NUM_STREAMS, PARALLEL, Figure
from tests.cluster.scripted import Scripted
from tests.cluster.stage import staged
from tests.peer.build import binary, default_folder
from tests.peer.servers import processor
from tests.peer.tables import put_between_marks

DRAFT = BUNDLED.with_name("edgeagent-mini-draft.gguf")
CONTEXT = 256
MANY = ("--parallel", str(NUM_STREAMS), "--max-waiting", str(NUM_STREAMS), "--ctx", str(NUM_STREAMS * CONTEXT))
FEW = ("--parallel", str(PARALLEL), "--max-waiting", str(4 * PARALLEL), "--ctx", "8192")
AWAY = ("--route", "prefer_remote")
MANY_THERE = f"max_concurrent={2 * NUM_STREAMS}"
KEPT = platformdirs.user_cache_path("edgeagent") / "peer" / "cluster.json"
MARKS = "cluster"


class Part(Struct):
    """The results of one part, and where and when they were measured."""

    figures: list[Figure]
    commit: str
    machine: str
    seconds: float


class Setup(Struct):
    """What every part receives."""

    model: Path
    folder: Path
    llama_server: Path

    def llama(self, seats: int, context: int = CONTEXT, name: str = "llama-server") -> LlamaServer:
        """Return a llama-server with the same file and one thread."""
        return LlamaServer(self.llama_server, self.model, self.folder, seats=seats, context=context, name=name)


def kill_llama_server(setup: Setup) -> list[Figure]:
    """Kill -9 of the worker, then of one llama-server after another, while all streams run."""
    return kill_pair(setup, setup.llama(NUM_STREAMS), setup.llama(NUM_STREAMS, name="other-llama-server"))


def kill_edgeagent(setup: Setup) -> list[Figure]:
    """Kill -9 of the worker, then of one edgeagent after another, while all streams run."""
    first, second = (Desk(setup.model, setup.folder, *MANY, name=name) for name in ("edgeagent", "other-edgeagent"))
    return kill_pair(setup, first, second)


def kill_pair(setup: Setup, *engines: LlamaServer | Desk) -> list[Figure]:
    """Kill the worker and both engines in turn; the second engine is added later."""
    running = {f"remote:{engine.name}": engine for engine in engines}

    def kill(answers: Sequence[Answer]) -> None:
        busiest = max(running, key=lambda name: sum(answer.route == name for answer in answers))
        running.pop(busiest).kill()

    with staged(engines, setup.model, setup.folder, *MANY, *AWAY) as stage:
        stage.add(engines[0], MANY_THERE)
        prompts = asyncio.run(measures.steady_prompts(stage))
        found = asyncio.run(measures.killed_worker(stage, engines[0], prompts, has_bar=True))
        stage.add(engines[1], MANY_THERE)
        return found + asyncio.run(measures.killed_remotes(stage, engines[0], prompts, [kill, kill], has_bar=True))


def kill_vllm(setup: Setup) -> list[Figure]:
    """Kill -9 of the worker, then of a vLLM node and of the rest of the cluster, while all streams run."""
    write_hf_model(setup.model, setup.folder / "model")
    engine = Cluster(prepare(), setup.folder / "model", setup.folder, NUM_STREAMS)
    running = [*engine.workers, "router"]

    def kill_node(_: Sequence[Answer]) -> None:
        busier = max(engine.workers, key=engine.running)
        running.remove(busier)
        engine.kill(busier)

    def kill_rest(_: Sequence[Answer]) -> None:
        for part in running:
            engine.kill(part)

    with staged([engine], setup.model, setup.folder, *MANY, *AWAY) as stage:
        stage.add(engine, MANY_THERE)
        prompts = asyncio.run(measures.steady_prompts(stage))
        found = asyncio.run(measures.killed_worker(stage, engine, prompts, has_bar=False))
        kills = [kill_node, kill_rest]
        return found + asyncio.run(measures.killed_remotes(stage, engine, prompts, kills, has_bar=False))


def arrivals_llama_server(setup: Setup) -> list[Figure]:
    """Requests at three times this machine's rate; llama-server has the smaller bundled model on the other core."""
    small = setup.folder / "small.gguf"
    write_endless_model(small, DRAFT)
    engine = LlamaServer(setup.llama_server, small, setup.folder, seats=16, context=2048)
    with staged([engine], setup.model, setup.folder, *FEW) as stage:
        stage.add(engine)
        return asyncio.run(measures.arrivals(stage, engine))


def arrivals_scripted(setup: Setup) -> list[Figure]:
    """Requests at three times this machine's rate; the remote is a program that sends a token every 20 ms."""
    engine = Scripted(setup.folder)
    with staged([engine], setup.model, setup.folder, *FEW) as stage:
        stage.add(engine)
        return asyncio.run(measures.arrivals(stage, engine))


def deciding(setup: Setup) -> list[Figure]:
    """The time that the daemon takes to decide, with two remotes."""
    engines = (setup.llama(8), Scripted(setup.folder))
    with staged(engines, setup.model, setup.folder, *FEW, *AWAY) as stage:
        for engine in engines:
            stage.add(engine)
        return asyncio.run(measures.deciding(stage))


def hang(setup: Setup) -> list[Figure]:
    """The cost of a remote that hangs."""
    engine = setup.llama(8)
    with staged([engine], setup.model, setup.folder, *FEW, *AWAY) as stage:
        stage.add(engine, f"first_token_s={HANG_LIMIT_S:g}")
        return asyncio.run(measures.hang(stage, engine))


PARTS: dict[str, Callable[[Setup], list[Figure]]] = {
    part.__name__.replace("_", "-"): part
    for part in (deciding, kill_edgeagent, kill_llama_server, kill_vllm, arrivals_scripted, arrivals_llama_server, hang)
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.figures", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    parser.add_argument("--json", type=Path, default=KEPT, help="where figures are kept")
    parser.add_argument("--document", type=Path, help="write the table between its marks")
    chosen = parser.parse_args(arguments)
    # So that the engines end with this process, also on SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kept = msgspec.json.decode(chosen.json.read_bytes(), type=dict[str, Part]) if chosen.json.exists() else {}
    for name in PARTS if chosen.only is None else chosen.only:
        print(f"{name}: {PARTS[name].__doc__}", file=sys.stderr, flush=True)
        kept[name] = measured(PARTS[name], chosen.llama_server)
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
    text = "\n".join(table(kept))
    print(text)
    if chosen.document:
        put_between_marks(chosen.document, text, MARKS)


def measured(part: Callable[[Setup], list[Figure]], llama_server: Path) -> Part:
    """Run one part in a folder of its own."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="figures-") as name:
        folder = Path(name)
        model = folder / f"{LOCAL_NAME}.gguf"
        write_endless_model(model)
        figures = part(Setup(model, folder, llama_server))
    described = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{os.cpu_count()} cores, {processor()}, {platform.system()}"
    return Part(figures, described.stdout.strip(), machine, time.monotonic() - began_s)


def table(kept: dict[str, Part]) -> Iterator[str]:
    """Yield the lines of a Markdown table, in the order of the parts. An event is named once for all of its figures."""
    parts = [kept[name] for name in PARTS if name in kept]
    commits = ", ".join(dict.fromkeys(part.commit for part in parts))
    yield f"{'; '.join(dict.fromkeys(part.machine for part in parts))}; at commit {commits}."
    yield ""
    yield "| | measured | bar | |"
    yield "|---|---|---|---|"
    before = None
    for figure in (figure for part in parts for figure in part.figures):
        verdict = "" if figure.is_met is None else ("met" if figure.is_met else "**missed**")
        event, _, what = figure.title.rpartition(": ")
        title = what if event and event == before else figure.title
        before = event
        yield f"| {title} | {figure.measured} | {figure.bar or '–'} | {verdict} |"


if __name__ == "__main__":
    main()
