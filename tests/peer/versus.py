"""Compares edgeagent with llama.cpp's own server, in turn, on a quiet machine.

`python -m tests.peer.versus MODEL.gguf` measures one model. Both servers get it with the same threads, context and
number of sequences, and are restarted for each situation. `edgeagent bench` measures them in alternation. The script
prints the table of docs/figures.md; `--json FILE` stores every sample. With `--before PYTHON`, the edgeagent of another
checkout's environment takes the place of llama-server.

`python -m tests.peer.versus --shapes [NAME ...] [--quant Q4_0 ...]` measures the shapes of tests/peer/shelf, and makes
them if they do not exist. Results are stored in a folder, one file for each shape, so that an interrupted run continues
where it stopped. The script prints the tables over all shapes in that folder, and writes them between the marks of
`--document FILE.md`.

It takes about a quarter of an hour for a 0.5 B model (tests/peer/build.py compiles llama-server). `--quick` runs
everything once, with prompts so short that the numbers mean little.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import platformdirs

from tests.peer.build import binary, default_folder
from tests.peer.rows import QUICK, Size, measured, rows, situations
from tests.peer.servers import Setup, processor
from tests.peer.shape_folder import ShapeFolder
from tests.peer.shelf import QUANTS, SHAPES, cached_model
from tests.peer.tables import heading, one_model, over_shapes, put_between_marks

PEER = Path(platformdirs.user_cache_dir("edgeagent")) / "peer"


def commit() -> str:
    """Return the measured commit, with "-dirty" if tracked files have changed since; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def settings(options: argparse.Namespace, size: Size) -> dict[str, Any]:
    """Return the settings that the figures depend on, without the model."""
    return {
        "commit": commit(),
        "bindings": version("llama-cpp-python"),
        "processor": processor(),
        "threads": options.threads,
        "context": size.context,
        "prompts": size.prefix,
        "rounds": options.rounds,
        "flags": options.flags,
        **({"before": options.before} if options.before else {}),
    }


def measure_model(options: argparse.Namespace, size: Size) -> None:
    """Measure one model and print its table."""
    setup = Setup(options.model, options.llama_server, options.threads, before=options.before)
    measurements, samples = {}, {}
    for name, situation in situations(size).items():
        if situation.is_named_by(options.scenario):
            measurements[name], samples[name] = measured(
                setup, situation, size, options.rounds, options.seed, tuple(shlex.split(options.flags))
            )
    about = {**settings(options, size), "seed": options.seed, "model": options.model.name}
    print(heading(about), end="\n\n")
    other = ("before",) if options.before else ()
    print("\n".join(one_model(rows(size), measurements, *other)))
    for name, sample in samples.items():
        for note in sample["scenarios"][0]["notes"]:
            print(f"{name}: {note}")
    if options.json:
        options.json.write_text(json.dumps({"about": about, "scenarios": samples}, indent=1) + "\n", encoding="utf-8")


def measure_shapes(options: argparse.Namespace, size: Size) -> None:
    """Measure the shapes that the folder lacks, and print the tables over all shapes in it."""
    unknown = set(options.shapes) - SHAPES.keys()
    if unknown:
        raise SystemExit(f"no shape is called {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    folder = ShapeFolder(options.folder, settings(options, size), is_begun_anew=options.again)
    for name in options.shapes or SHAPES:
        for quant in options.quant or ["Q4_0"]:
            missing = {
                key: situation
                for key, situation in situations(size).items()
                if situation.is_named_by(options.scenario) and not folder.has(name, quant, key)
            }
            if not missing:
                continue
            model = cached_model(options.models, SHAPES[name], quant)
            setup = Setup(model, options.llama_server, options.threads, before=options.before)
            for key, situation in missing.items():
                began_s = time.monotonic()
                print(f"{name} {quant}, {key}", file=sys.stderr)
                done, samples = measured(
                    setup, situation, size, options.rounds, options.seed, tuple(shlex.split(options.flags))
                )
                folder.add(name, quant, key, [row for row in rows(size) if row.situation == key], done, samples)
                print(f"{name} {quant}, {key}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    text = "\n".join(over_shapes(rows(size), folder.read(), folder.settings))
    print(text)
    if options.document:
        put_between_marks(options.document, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--shapes", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; none: all of them")
    parser.add_argument("--quant", choices=QUANTS, nargs="+", help="of the shapes; default: Q4_0")
    parser.add_argument("--folder", type=Path, default=PEER / "shapes", help="where figures of shapes are kept")
    parser.add_argument("--models", type=Path, default=PEER / "models", help="where the shapes' models are kept")
    parser.add_argument("--again", action="store_true", help="forget the figures in the folder")
    parser.add_argument("--document", type=Path, help="write the tables between its marks")
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    parser.add_argument("--before", default="", help="an interpreter: compare with the edgeagent of its environment")
    parser.add_argument("--flags", default="", help="more of edgeagent's options, in one word")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scenario", choices=list(situations(Size())), action="append")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, help="of one model: every sample")
    options = parser.parse_args()
    if (options.model is None) == (options.shapes is None):
        parser.error("name a model's file, or give --shapes")
    # So that the servers end with this process, also on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = QUICK if options.quick else Size()
    if options.quick:
        options.rounds = 1
    (measure_model if options.shapes is None else measure_shapes)(options, size)


if __name__ == "__main__":
    main()
