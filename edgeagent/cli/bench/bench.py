"""`edgeagent bench`: finds the server or the two servers to measure, shows the progress and prints the report."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgeagent.cli.bench import options as flags
from edgeagent.cli.bench.options import ScenarioName
from edgeagent.cli.display import aligned, wrapped
from edgeagent.cli.options import ConfigFile, with_help
from edgeagent.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

    from edgeagent.bench.client import Server
    from edgeagent.bench.measure import Progress, Run
    from edgeagent.bench.scenario import Scenario
    from edgeagent.client import Address
    from edgeagent.config import Config


@with_help(flags.HELP)
def bench(
    url: flags.Url = None,
    against: flags.Against = None,
    scenario: flags.Scenarios = None,
    rounds: flags.Rounds = 5,
    prompt_tokens: flags.PromptTokens = 1024,
    max_tokens: flags.MaxTokens = 128,
    parallel: flags.Parallel = 4,
    connections: flags.Connections = 1000,
    conversations: flags.Conversations = 32,
    transport: flags.TransportFlag = "auto",
    model: flags.Model = None,
    api_key: flags.ApiKey = None,
    against_model: flags.AgainstModel = None,
    against_api_key: flags.AgainstApiKey = None,
    seed: flags.Seed = None,
    as_json: flags.AsJson = False,
    plot: flags.Plot = None,
    state_dir: flags.StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Measure a server, or two in alternation, and print the report."""
    import asyncio

    from edgeagent.bench.measure import Run
    from edgeagent.bench.scenario import Workload
    from edgeagent.client import Address

    is_killed = ScenarioName.RESTART in (scenario or ())
    if is_killed and (url or against):
        raise ConfigError("--scenario restart kills the server that it measures, so it starts its own: give no URL")
    save_plot = _plotter(plot)
    with (
        _progress() as progress,
        _address(url, model, state_dir, config, progress, is_killed=is_killed) as (address, name, restart),
        asyncio.Runner() as runner,
    ):
        wanted = [(replace(address, token=api_key or address.token), name)]
        if against:
            wanted.append((Address(against, against_api_key), against_model))
        servers = runner.run(_servers(wanted, transport, restart))
        workload = Workload(prompt_tokens, max_tokens, parallel, connections, conversations)
        run = Run(servers, _scenarios(scenario), workload, rounds, secrets.randbelow(1 << 31) if seed is None else seed)
        is_interrupted = _run_measurement(runner, run, progress)
    _print(run, as_json=as_json)
    save_plot(run)
    if is_interrupted:
        raise typer.Exit(130)
    if any(measurement.failure for measurement in run.measurements):
        raise typer.Exit(1)


def _plotter(file: Path | None) -> Callable[[Run], None]:
    """Return a function that draws a measurement into `file`, or that does nothing if `file` is None.

    Raise ConfigError at once if no picture can be drawn into the file, see `check_plot`.
    """
    from edgeagent.bench.plot import check_plot, save_plot

    if file is None:
        return lambda _run: None
    check_plot(file)
    return lambda run: save_plot(run, file)


async def _servers(
    wanted: Sequence[tuple[Address, str | None]], transport: flags.Transport, restart: Callable[[], None] | None
) -> list[Server]:
    """Ask the servers at these addresses for their models, see `find_server`, and return the servers.

    `restart` becomes the restart function of the first server.
    """
    from edgeagent.bench.client import find_server

    ours, *others = [await find_server(address, transport, model) for address, model in wanted]
    return [replace(ours, restart=restart), *others]


def _scenarios(names: list[ScenarioName] | None) -> list[Scenario]:
    from edgeagent.bench.scenarios import SCENARIOS

    return [each for each in SCENARIOS.values() if (each.name in names if names else each.is_default)]


def _run_measurement(runner: asyncio.Runner, run: Run, progress: Progress) -> bool:
    """Run the measurement, and return whether Ctrl-C ended it."""
    from edgeagent.bench.measure import measure

    try:
        runner.run(measure(run, progress))
    except KeyboardInterrupt:
        return True
    return False


@contextlib.contextmanager
def _address(
    url: str | None,
    model: str | None,
    state_dir: Path | None,
    config: Path | None,
    progress: Progress,
    *,
    is_killed: bool,
) -> Iterator[tuple[Address, str | None, Callable[[], None] | None]]:
    """Yield the address of the server to measure, the model to request, and a function that restarts the server.

    The server is the one at `url`, else the running daemon, else a temporary daemon, which is started here and stopped
    at the end. `is_killed` says that a scenario kills the server; then the running daemon is not used. If the model is
    None, the server's default model is measured. Only a temporary daemon has a restart function, otherwise it is None.
    """
    from edgeagent.cli.daemon.temporary import killable_daemon
    from edgeagent.cli.link import address_of
    from edgeagent.client import Address
    from edgeagent.config_sources import load_config
    from edgeagent.runtime_file import find_daemon

    if url is not None:
        yield Address(url), model, None
        return
    settings: Config = load_config({"state_dir": state_dir} if state_dir else {}, config).config
    found = find_daemon(settings.state_dir)
    if found is not None and not is_killed:
        yield address_of(found), model, None
        return
    flags = [model or settings.model, *(["--config", str(config)] if config else [])]
    starting = killable_daemon(flags, lambda text: progress(text, 0, 0), owner=settings.state_dir)
    with starting as (address, restart):
        # The daemon serves only this model, and gives a model file a name of its own, so no name is requested.
        yield address, None, restart


def _print(run: Run, *, as_json: bool) -> None:
    import json

    from edgeagent.bench.report import as_object, tables

    typer.echo(json.dumps(as_object(run), indent=1) if as_json else wrapped(tables(run, aligned)))


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """Yield a function that shows progress on stderr: a bar on a terminal, otherwise a line for each stage."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bars:
        task = bars.add_task("", total=None)
        yield lambda label, done, total: bars.update(task, description=label, completed=done, total=total or None)


def _lines() -> Progress:
    shown = ""

    def show(label: str, done: int, total: int) -> None:
        nonlocal shown
        stage = label.partition(",")[0].rstrip("0123456789%")
        if stage != shown:
            shown = stage
            typer.echo(f"{label} ({done} of {total})" if total else label, err=True)

    return show
