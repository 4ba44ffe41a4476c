"""`python -m tests.peer.laboratory MODEL.gguf NAME...`: measures an edgeagent in scenarios of the laboratory.

It starts the daemon itself, with the options after `--`, and prints the report of `edgeagent bench`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from edgeagent.bench.measure import Run, measure
from edgeagent.bench.report import as_object, tables
from edgeagent.bench.scenarios import Workload
from edgeagent.cli.display import aligned
from tests.peer.laboratory import SCENARIOS
from tests.peer.servers import Setup, edgeagent


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.peer.laboratory", description=__doc__)
    parser.add_argument("model", help="a model file, or `builtin`")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=list(SCENARIOS), help=", ".join(SCENARIOS))
    parser.add_argument("--transport", choices=["ws", "http"], default="ws")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    for name, default in (("prompt_tokens", 1024), ("max_tokens", 128), ("parallel", 4)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    for name, default in (("connections", 1000), ("conversations", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    own, flags = _split(sys.argv[1:])
    given = parser.parse_args(own)
    workload = Workload(given.prompt_tokens, given.max_tokens, given.parallel, given.connections, given.conversations)
    with edgeagent(
        Setup(Path(given.model), Path(), given.threads), given.ctx, *flags, transport=given.transport
    ) as ours:
        run = Run([ours], [SCENARIOS[name] for name in given.names], workload, given.rounds, given.seed)
        asyncio.run(measure(run, lambda label, done, total: print(label, f"({done} of {total})", file=sys.stderr)))
    print(json.dumps(as_object(run), indent=1) if given.json else tables(run, aligned))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before `--`, and those behind it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    main()
