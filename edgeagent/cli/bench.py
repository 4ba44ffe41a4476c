"""`edgeagent bench`: finds the server or the two servers to measure, shows the progress and prints the report."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgeagent.cli.display import aligned, wrapped
from edgeagent.cli.options import ConfigFile, StateDir, settings_of, with_help
from edgeagent.cli.progress import Show, progress

if TYPE_CHECKING:
    import asyncio

    from edgeagent.bench.client import Server
    from edgeagent.bench.measure import Run
    from edgeagent.bench.scenarios import Scenario
    from edgeagent.client import Address

Transport = Literal["auto", "ws", "http"]

# The help of the command itself. Its first line is a summary.
HELP = """Measure how fast a server answers, over its wire; takes about a minute with a small model.

decode: tokens/s of one stream. ttft: time to the first token, of a new prompt and of one that differs from an earlier
one only at its end. parallel: several streams at once. hol: how long a new long prompt delays live streams
(head-of-line blocking). mixed: realtime requests beside live streams and batch jobs, alone and together.

\b
edgeagent bench                                          this machine's daemon
edgeagent bench --scenario decode --rounds 20            one of them, with more rounds
edgeagent bench --scenario mixed --parallel 8            who waits for whom? takes half a minute
edgeagent bench --scenario ttft --prompt-tokens 4000     how long do long prompts take?
edgeagent bench http://127.0.0.1:8080                    llama-server, vLLM, ...
edgeagent bench --against http://127.0.0.1:8080          ours against it, A B A B ...
edgeagent bench ws://127.0.0.1:8127 --against http://127.0.0.1:8127 --transport http
edgeagent bench --json > before.json

A ws:// URL is always measured over the WebSocket. Rates count the tokens that the server produced. Answers that it ends
early shorten a round, and the report counts them. Ctrl-C prints the measurements so far.
"""


class ScenarioName(StrEnum):
    """The names of the scenarios. They are repeated here, so that `--help` does not import the modules that measure."""

    DECODE = "decode"
    TTFT = "ttft"
    PARALLEL = "parallel"
    HOL = "hol"
    MIXED = "mixed"


Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="An OpenAI-compatible server; default: the daemon, started if needed."),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="URL2", help="Measure this server too, in alternation, and compare.")
]
Scenarios = Annotated[
    list[ScenarioName] | None,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help=f"What to measure; may be repeated. {', '.join(ScenarioName)}. Default: all but mixed.",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="How many rounds to measure.")]
PromptTokens = Annotated[
    int, typer.Option("--prompt-tokens", min=64, metavar="N", help="Length of the long prompts of ttft, hol and mixed.")
]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", min=8, metavar="N", help="Length of the answers of decode and parallel.")
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel", min=2, metavar="N", help="Streams in parallel; hol: N - 1 and the prompt; mixed: N and N/2 jobs."
    ),
]
TransportFlag = Annotated[
    Transport, typer.Option("--transport", help="auto: the WebSocket if the server is an edgeagent.")
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model; default: the server's first one.")
]
ApiKey = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="The API key for URL.")]
AgainstModel = Annotated[str | None, typer.Option("--against-model", metavar="NAME", help="As --model, for URL2.")]
AgainstApiKey = Annotated[str | None, typer.Option("--against-api-key", metavar="KEY", help="As --api-key, for URL2.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="The seed of the prompts' words; default: a new one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with every sample.")]


@with_help(HELP)
def bench(
    url: Url = None,
    against: Against = None,
    scenario: Scenarios = None,
    rounds: Rounds = 5,
    prompt_tokens: PromptTokens = 1024,
    max_tokens: MaxTokens = 128,
    parallel: Parallel = 4,
    transport: TransportFlag = "auto",
    model: Model = None,
    api_key: ApiKey = None,
    against_model: AgainstModel = None,
    against_api_key: AgainstApiKey = None,
    seed: Seed = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Measure a server, or two in alternation, and print the report."""
    import asyncio

    from edgeagent.bench.measure import Run
    from edgeagent.bench.scenarios import Workload
    from edgeagent.client import Address

    with (
        progress("rounds") as show,
        _address(url, model, state_dir, config, show) as (address, name),
        asyncio.Runner() as runner,
    ):
        wanted = [(replace(address, token=api_key or address.token), name)]
        if against:
            wanted.append((Address(against, against_api_key), against_model))
        servers = runner.run(_servers(wanted, transport))
        workload = Workload(prompt_tokens, max_tokens, parallel)
        run = Run(servers, _scenarios(scenario), workload, rounds, secrets.randbelow(1 << 31) if seed is None else seed)
        is_interrupted = _run_measurement(runner, run, show)
    _print(run, as_json=as_json)
    if is_interrupted:
        raise typer.Exit(130)
    if any(measurement.failure for measurement in run.measurements):
        raise typer.Exit(1)


async def _servers(wanted: Sequence[tuple[Address, str | None]], transport: Transport) -> list[Server]:
    """Ask the servers at these addresses for their models, see `find_server`, and return the servers."""
    from edgeagent.bench.client import find_server

    return [await find_server(address, transport, model) for address, model in wanted]


def _scenarios(names: list[ScenarioName] | None) -> list[Scenario]:
    from edgeagent.bench.scenarios import SCENARIOS

    # One that runs once takes as long as many rounds of another, so it is measured only if it is named.
    return [each for each in SCENARIOS.values() if (each.name in names if names else not each.is_once)]


def _run_measurement(runner: asyncio.Runner, run: Run, show: Show) -> bool:
    """Run the measurement, and return whether Ctrl-C ended it."""
    from edgeagent.bench.measure import measure

    try:
        runner.run(measure(run, show))
    except KeyboardInterrupt:
        return True
    return False


@contextlib.contextmanager
def _address(
    url: str | None, model: str | None, state_dir: Path | None, config: Path | None, show: Show
) -> Iterator[tuple[Address, str | None]]:
    """Yield the address of the server to measure, and the model to request.

    The server is the one at `url`, else the running daemon, else a temporary daemon, which is started here and stopped
    at the end. If the model is None, the server's default model is measured.
    """
    from edgeagent.cli.link import address_of
    from edgeagent.cli.temporary import temporary_daemon
    from edgeagent.client import Address
    from edgeagent.runtime_file import find_daemon

    if url is not None:
        yield Address(url), model
        return
    settings = settings_of(state_dir, config)
    found = find_daemon(settings.state_dir)
    if found is not None:
        yield address_of(found), model
        return
    flags = [model or settings.model, *(["--config", str(config)] if config else [])]
    with temporary_daemon(flags, lambda text: show(text, 0, 0), owner=settings.state_dir) as address:
        # The daemon serves only this model, and gives a model file a name of its own, so no name is requested.
        yield address, None


def _print(run: Run, *, as_json: bool) -> None:
    import json

    from edgeagent.bench.report import as_object, tables

    typer.echo(json.dumps(as_object(run), indent=1) if as_json else wrapped(tables(run, aligned)))
