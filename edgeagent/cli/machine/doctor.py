"""`edgeagent doctor`: checks this machine for problems that prevent edgeagent from running or make it slow."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.display import wrapped
from edgeagent.cli.link import address_of, ask
from edgeagent.cli.models.options import ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.errors import EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.doctor.checks import Finding
    from edgeagent.runtime_file import Runtime

READY_TIMEOUT_S = 15.0
_NAME_WIDTH = 13


def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also check that the hub answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Find problems that prevent edgeagent from running on this machine or make it slow, and say what to do.

    It checks llama.cpp, CPU, GPUs, memory, sandbox, folders, port and the running daemon, and changes nothing. Exits
    with 1 if a check fails.
    """
    from edgeagent.doctor.checks import examine
    from edgeagent.doctor.gather import gather

    findings = examine(gather(settings_of(models_dir, state_dir, config), _why_not_ready, with_network=network))
    is_ok = all(finding.severity != "fail" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            _print(finding)
    if not is_ok:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    typer.echo(wrapped(f"{finding.severity:4}  {finding.name:{_NAME_WIDTH}}  {finding.text}"))
    if finding.remedy:
        typer.echo(wrapped(f"{'':{_NAME_WIDTH + 8}}{finding.remedy}"))


def _why_not_ready(daemon: Runtime) -> str | None:
    """Return why a daemon cannot generate tokens; None if it can."""
    try:
        ask(address_of(daemon), "/ready", timeout_s=READY_TIMEOUT_S)
    except EdgeAgentError as error:
        return error.message
    return None
