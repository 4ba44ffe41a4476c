"""HTTP requests to this user's daemon. Only the standard library is used, so that commands start fast."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgeagent.client import Address
from edgeagent.client.answer import wire_error
from edgeagent.errors import BackendUnavailable
from edgeagent.runtime_file import Runtime, find_daemon, no_daemon

TIMEOUT_S = 10.0


def address_of(daemon: Runtime) -> Address:
    """Return a daemon's address: its URL, its token, and the only certificate to trust (None without TLS)."""
    return Address(daemon.url, daemon.token, daemon.certificate)


def daemon_of(state_dir: Path) -> Address:
    """Return the address of the daemon that runs with a state folder; raise BackendUnavailable if there is none."""
    found = find_daemon(state_dir)
    if found is None:
        raise no_daemon(state_dir)
    return address_of(found)


def ask(
    address: Address,
    path: str,
    method: str = "GET",
    *,
    body: dict[str, Any] | None = None,
    accept: frozenset[int] = frozenset({200}),
    timeout_s: float | None = None,
) -> Any:
    """Send a request to a daemon and return the JSON of its answer.

    Raise BackendUnavailable if the daemon does not answer, if its answer is not JSON, or if its certificate cannot be
    read. If the status is not in `accept`, raise the error that the answer describes, or BackendUnavailable if it
    describes none. `timeout_s` defaults to TIMEOUT_S.
    """
    url = urlsplit(address.url)
    connection = _connection(url.hostname or "", url.port, address.tls(), timeout_s or TIMEOUT_S)
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    try:
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        reply = json.loads(answer.read() or b"null")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BackendUnavailable(
            f"the daemon at {address.url} does not answer ({error}); it may be stopping, or gone"
        ) from None
    finally:
        connection.close()
    if answer.status in accept:
        return reply
    if isinstance(reply, dict) and isinstance(reply.get("error"), dict):
        raise wire_error(reply["error"])
    raise BackendUnavailable(f"the daemon at {address.url} answers {path} with HTTP {answer.status}")


def _connection(
    host: str, port: int | None, tls: ssl.SSLContext | None, timeout_s: float
) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
