"""The address and the token of a daemon: those that the application gives, or those in the daemon's files.

Nothing is imported from the package `daemon`, so that an application does not load it.
"""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from edgeagent.errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class Address:
    """A daemon's base URL, and its token if it needs one.

    `url` is, for example, http://127.0.0.1:8127. It may also begin with ws://, and end with /v1. `certificate` is the
    path of the only certificate that is trusted for TLS; None means the certificates that the system trusts.
    """

    url: str
    token: str | None = None
    certificate: str | None = None

    @property
    def websocket_url(self) -> str:
        """The URL of /v1/responses over WebSocket."""
        base = self._base
        if base.startswith("http"):
            base = "ws" + base.removeprefix("http")
        return f"{base}/v1/responses"

    @property
    def http_url(self) -> str:
        """The URL of /v1 over HTTP."""
        base = self._base
        if base.startswith("ws"):
            base = "http" + base.removeprefix("ws")
        return f"{base}/v1"

    @property
    def _base(self) -> str:
        return self.url.rstrip("/").removesuffix("/responses").removesuffix("/v1")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context that checks the daemon's certificate; None if the URL does not use TLS.

        Raise BackendUnavailable if the file `certificate` cannot be read.
        """
        if urlsplit(self.url).scheme not in ("https", "wss"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.certificate)
        except OSError as error:
            raise BackendUnavailable(
                f"the certificate {self.certificate} of the daemon at {self.url} cannot be read: {error}"
            ) from None
        if self.certificate is not None:
            # Only this certificate is trusted; its names and its issuer do not matter.
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


def address_of_daemon(state_dir: Path | None = None, token: str | None = None, *, start: bool = False) -> Address:
    """Return the address of the daemon that uses a state folder. The default is the configured folder.

    The address is in the daemon's runtime file. The file counts only while the process that wrote it is alive, since
    another program could take over the port later and receive the token. With `start`, a daemon is started if none
    runs (see `start.ensure_daemon`). Raise BackendUnavailable if no daemon runs, or ConfigError if the daemon's token
    file or the configuration is wrong.
    """
    if start:
        from edgeagent.client.start import ensure_daemon

        daemon = ensure_daemon(state_dir)
        return Address(daemon.url, token or daemon.token, daemon.certificate)
    # Imported here, so that applications that give a URL do not import pydantic and psutil, which takes 0.1 s.
    from edgeagent.runtime_file import find_daemon, no_daemon

    if state_dir is None:
        from edgeagent.config_sources import load_config

        state_dir = load_config().config.state_dir
    found = find_daemon(state_dir)
    if found is None:
        raise no_daemon(state_dir)
    return Address(found.url, token or found.token, found.certificate)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
