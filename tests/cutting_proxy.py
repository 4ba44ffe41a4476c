"""A TCP proxy before a daemon, which cuts its first connections, as a network does when a machine falls asleep."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CuttingProxy:
    """`url`: where it listens. `num_connections`: how many were opened.

    `cuts`: after how many bytes from the daemon the next connections are cut; those after them never are.
    """

    def __init__(self, port: int, cuts: list[int]) -> None:
        self.num_connections = 0
        self.cuts = cuts
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self._host}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.num_connections += 1
                limit = self.cuts.pop(0) if self.cuts else None
                daemon = socket.create_connection(("127.0.0.1", self._port))
                self._start(self._ask, client, daemon)
                self._start(self._answer, client, daemon, limit)

    def _ask(self, client: socket.socket, daemon: socket.socket) -> None:
        """Pass on what the client sends. The daemon accepts only its own port in the header Host."""
        with suppress(OSError):
            while part := client.recv(65536):
                daemon.sendall(part.replace(self._host.encode(), b"127.0.0.1:%d" % self._port))
        with suppress(OSError):
            daemon.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, daemon: socket.socket, limit: int | None) -> None:
        passed = 0
        with client, daemon, suppress(OSError):
            while limit is None or passed < limit:
                part = daemon.recv(65536 if limit is None else limit - passed)
                if not part:
                    break
                passed += len(part)
                client.sendall(part)
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more, and wait until all connections have ended."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@contextmanager
def cutting_proxy(port: int, *cuts: int) -> Iterator[CuttingProxy]:
    """Run a proxy before the daemon at `port`. The connections must end before it does."""
    proxy = CuttingProxy(port, list(cuts))
    try:
        yield proxy
    finally:
        proxy.close()
