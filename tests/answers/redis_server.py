"""A real Redis or Valkey server on a free port of this machine, which a test starts, stops and pauses."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError

from tests.backends.remote.certificates import Authority
from tests.patience import patient

PROGRAMS = tuple(name for name in ("redis-server", "valkey-server") if shutil.which(name))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class RedisServer:
    """A server that keeps nothing on disk. `password`: what clients must send. `authority`: it speaks only TLS."""

    def __init__(self, folder: Path, password: str = "", program: str = "", authority: Authority | None = None) -> None:
        if not PROGRAMS:
            pytest.skip("neither redis-server nor valkey-server is installed (Debian: apt-get install redis-server)")
        self.port = free_port()
        self._folder, self._password, self._program = folder, password, program or PROGRAMS[0]
        self._authority = authority
        self._certificate = None if authority is None else authority.signed("server")
        self._process: subprocess.Popen[bytes] | None = None
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
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no", "logfile": "redis.log"}
        options |= {"requirepass": self._password} if self._password else {}
        if self._authority is not None and self._certificate is not None:
            options |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
            options |= {"tls-cert-file": str(self._certificate.path), "tls-key-file": str(self._certificate.key)}
            options |= {"tls-ca-cert-file": str(self._authority.own.path)}
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

    def pause(self) -> None:
        """Let it answer nothing, while it still accepts connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
