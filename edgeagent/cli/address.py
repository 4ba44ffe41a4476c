"""`edgeagent address`: where the daemon is, for applications in any language."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from edgeagent.cli.options import StateDir
from edgeagent.client.address import address_of_daemon

Start = Annotated[bool, typer.Option("--start", help="Start the daemon if none runs, and wait until it listens.")]


def address(start: Start = False, state_dir: StateDir = None) -> None:
    """Print the daemon's address as one JSON object: url, token, certificate. For applications.

    `--start` starts the service if it is installed, else a daemon that runs on after the application. With
    `--state-dir` too, that daemon is the application's own and takes a free port. The token is the owner's.
    """
    typer.echo(json.dumps(asdict(address_of_daemon(state_dir, start=start))))
