"""`edgeagent open`: a one-time link to the daemon's page, which gives a browser a token of its own."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import typer

from edgeagent.cli.link import ask, daemon_of
from edgeagent.cli.options import ConfigFile, StateDir, settings_of
from edgeagent.credentials.keys import Scope

PrintOnly = Annotated[bool, typer.Option("--print", help="Only print the link, for another browser or machine.")]
Scopes = Annotated[
    list[Scope],
    typer.Option(
        "--scope",
        metavar="infer|models|admin",
        help="What the browser may do; repeat it for several. Without --scope: everything.",
    ),
]


def open_page(
    print_only: PrintOnly = False,
    scope: Scopes = list(Scope),  # noqa: B006
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Print a link to the page of the running daemon, and open it in the browser.

    The link can be used once, within five minutes. The browser that uses it gets a token of its own; `edgeagent token
    list` shows it, and `edgeagent token remove` ends it.
    """
    address = daemon_of(settings_of(state_dir, config).state_dir)
    link = ask(address, "/edgeagent/page/link", "POST", body={"scopes": sorted(scope)})
    url = f"{address.url}{link['path']}"
    typer.echo(url)
    typer.echo("It opens the page once, within five minutes.", err=True)
    if not print_only and sys.stdout.isatty() and has_display():
        webbrowser.open(url)


def has_display() -> bool:
    """Whether a browser could show a window. Otherwise a browser for terminals might take over this one."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
