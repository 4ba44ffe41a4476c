"""`edgeagent bench`: finds the server or the two servers to measure, shows the progress and prints the report.

It also saves runs, lists and compares them, and compares two values of an option.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup

from edgeagent.cli.display import aligned, table, tell, wrapped
from edgeagent.cli.help import DEFAULT_COMMAND
from edgeagent.cli.options import AsJsonArray, ConfigFile, StateDir, settings_of, with_help
from edgeagent.cli.progress import Show, progress
from edgeagent.cli.tune import Seed, ab
from edgeagent.errors import ConfigError, EdgeAgentError

if TYPE_CHECKING:
    import asyncio

    from typer._click.core import Context

    from edgeagent.bench.client import Server
    from edgeagent.bench.measure import Run
    from edgeagent.bench.saved import SavedRuns
    from edgeagent.bench.scenarios import Workload
    from edgeagent.client import Address

Transport = Literal["auto", "ws", "http"]

# The help of the command itself. Its first line is a summary.
HELP = """Measure how fast a server answers, over its wire; takes about a minute with a small model.

decode: tokens/s of one stream. ttft: time to the first token, of a new prompt and of one that differs from an earlier
one only at its end. parallel: several streams at once. hol: how long a new long prompt delays live streams
(head-of-line blocking). mixed: realtime requests beside live streams and batch jobs, alone and together. turn: a long
prompt with its answer, then several streams.

\b
edgeagent bench                                          this machine's daemon
edgeagent bench --scenario decode --rounds 20            one of them, with more rounds
edgeagent bench --scenario mixed --parallel 8            who waits for whom? takes half a minute
edgeagent bench --scenario ttft --prompt-tokens 4000     how long do long prompts take?
edgeagent bench http://127.0.0.1:8080                    llama-server, vLLM, ...
edgeagent bench --against http://127.0.0.1:8080          ours against it, A B B A ...
edgeagent bench ws://127.0.0.1:8127 --against http://127.0.0.1:8127 --transport http
edgeagent bench --save before                            keep the figures in the state folder
edgeagent bench history                                  the saved runs
edgeagent bench compare before after                     what has changed, and is it chance?
edgeagent bench ab threads=1,2 qwen3:0.6b                which value of an option is faster?

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
    TURN = "turn"


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
        help=f"What to measure; may be repeated. {', '.join(ScenarioName)}. Default: the first four.",
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
Save = Annotated[
    str | None, typer.Option("--save", metavar="NAME", help="Keep the figures under this name in the state folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with every sample.")]


class _BenchGroup(TyperGroup):
    """Measures if the first word is not the name of a subcommand: `edgeagent bench URL`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args and args[0] in self.commands else [DEFAULT_COMMAND, *args])


bench_app = typer.Typer(cls=_BenchGroup, rich_markup_mode=None)


@bench_app.command(DEFAULT_COMMAND, short_help="Measure a server, or compare two; `measure` may be left out.")
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
    save: Save = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Measure a server, or two in alternation, and print the report. The egress ledger has a row for each URL."""
    import asyncio
    import json

    from edgeagent.bench.measure import Run
    from edgeagent.bench.report import as_object, tables
    from edgeagent.bench.scenarios import SCENARIOS, Workload
    from edgeagent.client import Address
    from edgeagent.egress import BENCH
    from edgeagent.egress.ledger import own_requests

    with (
        own_requests(settings_of(state_dir, config).state_dir, BENCH) as begin,
        progress("rounds") as show,
        _address(url, model, state_dir, config, show) as (address, name),
        asyncio.Runner() as runner,
    ):
        for each in filter(None, (url, against)):
            begin(each)
        wanted = [(replace(address, token=api_key or address.token), name)]
        if against:
            wanted.append((Address(against, against_api_key), against_model))
        servers = runner.run(_servers(wanted, transport))
        workload = Workload(prompt_tokens, max_tokens, parallel)
        chosen = [each for each in SCENARIOS.values() if (each.name in scenario if scenario else each.is_usual)]
        run = Run(servers, chosen, workload, rounds, secrets.randbelow(1 << 31) if seed is None else seed)
        facts = facts_of(servers[0], workload) if save else {}
        is_interrupted = _run_measurement(runner, run, show)
    typer.echo(json.dumps(as_object(run), indent=1) if as_json else wrapped(tables(run, aligned)))
    if save:
        number = saved_runs(settings_of(state_dir, config).state_dir).save(save, facts, as_object(run))
        typer.echo(f"Saved as run {number}, {save!r}.", err=True)
    if is_interrupted:
        raise typer.Exit(130)
    if any(measurement.failure for measurement in run.measurements):
        raise typer.Exit(1)


def saved_runs(state_dir: Path) -> SavedRuns:
    """Return the saved runs in a state folder, which is created if needed."""
    from edgeagent.bench.saved import SavedRuns
    from edgeagent.cache_folder import ensure_private

    try:
        ensure_private(state_dir)
    except OSError as error:
        raise ConfigError(f"the state folder {state_dir} cannot be used: {error}") from None
    return SavedRuns(state_dir)


def facts_of(server: Server, workload: Workload) -> dict[str, str]:
    """Return in words what figures of a server depend on: the machine, the build, the model and the settings."""
    from edgeagent.cli.link import ask
    from edgeagent.client.address import is_loopback

    is_here = is_loopback(server.address.http_url)
    facts = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs"
        if is_here
        else server.address.url,
        "build": server.kind,
        "model": server.model or "",
        "workload": f"prompts of {workload.prompt_tokens} tokens, answers of {workload.max_tokens}, "
        f"{workload.parallel} streams",
    }
    with contextlib.suppress(EdgeAgentError):  # it is no edgeagent, or its status is not for this client
        status = ask(server.address, "/edgeagent/status")
        facts["build"] = f"edgeagent {status['version']}"
        loaded = (each for each in status["models"] if each["info"] and server.model in (None, each["name"]))
        if (model := next(loaded, None)) is not None:
            info = model["info"]
            machine = info["conditions"]
            facts["machine"] = f"{machine['processor']}, {machine['cores']} cores, {machine['devices']}"
            facts["build"] += f", llama.cpp {info['llama_cpp_commit']}"
            chosen = [f"{choice['name']} {choice['value']}" for choice in info["choices"] if choice["by"] != "model"]
            counts = [f"{(model['worker'] or {}).get('max_threads')} threads", f"context {info['context_length']}"]
            facts["settings"] = ", ".join([*counts, f"{info['num_parallel']} at once", *chosen])
    return facts


@bench_app.command("history", short_help="List the saved runs.")
def history(as_json: AsJsonArray = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the runs that `edgeagent bench --save NAME` has kept, with the median of each scenario's first figure.

    \b
    edgeagent bench history
    edgeagent bench history --json | jq '.[-1].facts'
    """
    from edgeagent.bench.saved import main_figures

    runs = saved_runs(settings_of(state_dir, config).state_dir).all()
    records = [{"id": run.id, "at": run.at, "name": run.name, "facts": run.facts, **run.report} for run in runs]
    text = "No run is saved; `edgeagent bench --save NAME` keeps one."
    if runs:
        rows = [(str(run.id), run.at[:16], run.name, run.facts.get("model", ""), main_figures(run)) for run in runs]
        text = table(("run", "at (UTC)", "name", "model", "figures"), rows, left_columns=5)
    tell(records, text, as_json=as_json)


@bench_app.command("compare", short_help="Show what changed between two saved runs.")
def compare_runs(
    first: Annotated[str, typer.Argument(metavar="RUN", help="The number or the name of a saved run.")],
    second: Annotated[str, typer.Argument(metavar="RUN2", help="Another one; a name means its latest run.")],
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show the figures of two saved runs, and the change from the first to the second with its 95 % interval.

    A machine's speed drifts between two runs. To compare two settings or two servers, measure them in alternation:
    `edgeagent bench ab`, `edgeagent bench --against`.

    \b
    edgeagent bench --save before
    edgeagent bench --save after
    edgeagent bench compare before after
    """
    from dataclasses import asdict

    from edgeagent.bench.saved import compare, differing_facts
    from edgeagent.bench.stats import verdict

    runs = saved_runs(settings_of(state_dir, config).state_dir)
    ours, theirs = runs.find(first), runs.find(second)
    compared, differing = compare(ours, theirs), differing_facts(ours, theirs)
    record = {"runs": [ours.id, theirs.id], "differing": differing, "figures": [asdict(each) for each in compared]}
    rows = [
        (each.scenario, each.metric, f"{each.first:.4g}", f"{each.second:.4g}", verdict(each.change, each.better))
        for each in compared
    ]
    columns = ("scenario", "figure", f"run {ours.id}", f"run {theirs.id}", "change")
    text = table(columns, rows, left_columns=2) if rows else "The two runs have no figure in common."
    tell(record, text, *(wrapped(f"differs: {line}") for line in differing), as_json=as_json)


bench_app.command("ab", short_help="Compare two values of an option.")(ab)


async def _servers(wanted: Sequence[tuple[Address, str | None]], transport: Transport) -> list[Server]:
    """Ask the servers at these addresses for their models, see `find_server`, and return the servers."""
    from edgeagent.bench.client import find_server

    return [await find_server(address, transport, model) for address, model in wanted]


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
