"""`edgeagent open`: a one-time link to the daemon's page, which gives a browser a token of its own."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import typer

from edgeagent.cli.link import address_of, ask
from edgeagent.cli.options import ConfigFile, StateDir, settings_of
from edgeagent.credentials.keys import Scope
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import Runtime, find_daemon, no_daemon

PrintOnly = Annotated[bool, typer.Option("--print", help="Only print the link, for another browser or machine.")]
Scopes = Annotated[
    list[Scope],
    typer.Option(
        "--scope",
        metavar="infer|models|admin",
        help="What the browser may do; repeat it for several. Without --scope: everything.",
    ),
]
ForPhone = Annotated[
    bool, typer.Option("--phone", help="Print the link for a phone on this network, and its QR code; needs TLS.")
]


def open_page(
    print_only: PrintOnly = False,
    for_phone: ForPhone = False,
    scope: Scopes = list(Scope),  # noqa: B006
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Print a link to the page of the running daemon, and open it in the browser.

    The link can be used once, within five minutes. The browser that uses it gets a token of its own; `edgeagent token
    list` shows it, and `edgeagent token remove` ends it.
    """
    state_dir = settings_of(state_dir, config).state_dir
    found = find_daemon(state_dir)
    if found is None:
        raise no_daemon(state_dir)
    base = _network_url(found) if for_phone else found.url
    url = base + ask(address_of(found), "/edgeagent/page/link", "POST", body={"scopes": sorted(scope)})["path"]
    typer.echo(url)
    typer.echo("It opens the page once, within five minutes.", err=True)
    if for_phone:
        import segno

        segno.make(url, error="l", micro=False).terminal(out=sys.stdout, compact=True)
    elif not print_only and sys.stdout.isatty() and has_display():
        webbrowser.open(url)


def _network_url(daemon: Runtime) -> str:
    """Return the URL at which a phone reaches the daemon. Raise ConfigError if it may not: the link is a credential."""
    url = next(iter(daemon.network_urls), None)
    if url is None:
        raise ConfigError(
            "the daemon can be reached from this machine only; start it with --host 0.0.0.0, --tls-certificate and "
            "--tls-key"
        )
    if not url.startswith("https:"):
        raise ConfigError(
            "without TLS, everybody on the network could read the link and use it; start the daemon with "
            "--tls-certificate and --tls-key"
        )
    return url


def has_display() -> bool:
    """Whether a browser could show a window. Otherwise a browser for terminals might take over this one."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
