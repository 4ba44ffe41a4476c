"""`edgeagent kiosk`: the kiosk's page in a full-screen browser, which is started again if the page is gone."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.parse import urlsplit

import typer

from edgeagent.cli.link import ask, daemon_of
from edgeagent.cli.options import ConfigFile, StateDir, settings_of
from edgeagent.client import Address
from edgeagent.credentials.keys import Client, Scope, add_client, clients
from edgeagent.errors import BackendUnavailable, ConfigError

PATH = "/edgeagent/kiosk"
POLL_S = 0.5
START_S = 20.0
"""How long a browser may take to show the page."""
GONE_S = 3.0
"""How long the page may be gone while the daemon answers. It connects again within a second."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--kiosk", "--incognito", "--no-first-run", "--noerrdialogs", "--disable-breakpad", "--password-store=basic"),
    *("--disable-pinch", "--overscroll-history-navigation=0", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--disable-features=Translate,MediaRouter", "--ozone-platform-hint=auto"),
)

BrowserCommand = Annotated[
    str, typer.Option("--browser", metavar="COMMAND", help="A Chromium, with further flags (default: the first found).")
]
Name = Annotated[
    str,
    typer.Option("--name", metavar="NAME", help="The client that the kiosk is; each kiosk of a daemon has its own."),
]
Url = Annotated[
    str, typer.Option("--url", metavar="URL", help="The daemon's address, for a user who is not the daemon's.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="With --url: the file that has what `edgeagent token add --scope kiosk` printed.",
    ),
]


def kiosk(
    browser: BrowserCommand = "",
    name: Name = "kiosk",
    url: Url = "",
    token_file: TokenFile = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show the kiosk's page in a full-screen browser until stopped, and start it again whenever the page is gone.

    As the user of the daemon, it replaces the kiosk's token at each start. What the browser keeps is in a folder
    of the session, which is in memory, and is deleted with each browser.
    """
    command = _browser(browser)
    token = _read(token_file) if token_file is not None else ""
    if bool(url) != bool(token):
        raise ConfigError("give --url and --token-file together, or neither")
    url = _checked(url)
    folder = settings_of(state_dir, config).state_dir
    # A terminal that is closed sends SIGHUP. The browser would stay, without anybody who watches it.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        signal.signal(number, lambda *_: sys.exit(0))
    token = token or _token_of(folder, name)
    while True:
        address, link = _wait(folder, url, token)
        with _shown(command, f"{address.url}{link}") as process:
            _watch(process, address)
        typer.echo("the page is gone; the browser is started again", err=True)


def _browser(command: str) -> list[str]:
    """Return the words of the browser's command; raise ConfigError if there is no such program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--browser is no command: {error}") from None
    words = words or [next(filter(shutil.which, _BROWSERS), _BROWSERS[0])]
    if shutil.which(words[0]) is None:
        raise ConfigError(f"there is no browser {words[0]}; install Chromium, or name another one with --browser")
    return words


def _read(token_file: Path) -> str:
    try:
        token = token_file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read --token-file {token_file}: {error.strerror}") from None
    if not re.fullmatch(rb"[\w-]+", token):
        raise ConfigError(f"--token-file {token_file} has no token; `edgeagent token add --scope kiosk` prints one")
    return token.decode()


def _checked(url: str) -> str:
    """Return --url; raise ConfigError if it is no address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if url and not is_address:
        raise ConfigError(f"--url must be like http://127.0.0.1:8127, not {url!r}")
    return url


def _token_of(state_dir: Path, name: str) -> str:
    """Return a new token of the kiosk `name`, with the limits of its earlier one; raise ConfigError."""
    known = next((client for client in clients(state_dir) if client.label == name), Client(name, frozenset()))
    if known.scopes - {Scope.KIOSK}:
        raise ConfigError(f"{name} is a client with other scopes; choose another name with --name")
    return add_client(state_dir, name, [Scope.KIOSK], known.route, known.tier)


def _wait(state_dir: Path, url: str, token: str) -> tuple[Address, str]:
    """Return the daemon's address, with the kiosk's token, and a one-time link, as soon as the daemon answers."""
    is_told = False
    while True:
        try:
            found = Address(url) if url else daemon_of(state_dir)
            address = Address(found.url.rstrip("/"), token, found.certificate)
            return address, ask(address, f"{PATH}/link", "POST")["path"]
        except BackendUnavailable as error:
            if not is_told:
                typer.echo(f"waiting for the daemon: {error.message}", err=True)
            is_told = True
            time.sleep(POLL_S)


@contextmanager
def _shown(command: list[str], link: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a browser that shows the page. At the end, no process and no file of it is left."""
    # systemd and the session give folders that are in memory and private to the user.
    place = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("XDG_RUNTIME_DIR")
    with TemporaryDirectory(prefix="edgeagent-kiosk-", dir=place, ignore_cleanup_errors=True) as folder:
        words = [*command, *_FLAGS, f"--user-data-dir={folder}/profile", link]
        process = subprocess.Popen(words, start_new_session=True)  # noqa: S603 the owner's own command
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A crashed browser may leave processes of its group behind.
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + 1.0
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    process.wait()


def _watch(process: subprocess.Popen[bytes], address: Address) -> None:
    """Return when the browser has ended, or when the page is gone though the daemon answers."""
    seen_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() - seen_s < GONE_S:
        time.sleep(POLL_S)
        try:
            is_shown = ask(address, PATH, timeout_s=2.0)["num_pages"] > 0
        except BackendUnavailable:
            seen_s = max(seen_s, time.monotonic())  # the page waits for the daemon, too
        else:
            seen_s = time.monotonic() if is_shown else seen_s
