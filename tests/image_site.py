"""A server of images on this machine, which looks into the egress ledger when it is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from edgeagent.egress import UNFINISHED
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.types import MAX_MEDIA_BYTES
from tests.media import RED, SILENCE


class Site(ThreadingHTTPServer):
    """A server of images, which notes the requests and how many rows were open when they came."""

    daemon_threads = True

    def __init__(self, state_dir: Path) -> None:
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.num_open: list[int] = []
        self.opened, self.has_opened = threading.Event(), False
        self.state_dir = state_dir
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site = self.server
        site.paths.append(self.path)
        site.headers.append(dict(self.headers))
        site.num_open.append(sum(row.outcome == UNFINISHED for row in read_rows(folder_of(site.state_dir))))
        match self.path.partition("?")[0]:
            case "/red.png":
                self._answer(200, RED)
            case "/million.png":
                self._answer(200, RED + bytes(1_000_000))
            case "/sound.wav":
                self._answer(200, SILENCE)
            case "/moved":
                self._answer(302, b"", ("Location", f"http://{site.host}/red.png"))
            case "/large":
                self._answer(200, bytes(MAX_MEDIA_BYTES + 1))
            case "/half":
                self._answer(200, RED + bytes(MAX_MEDIA_BYTES // 2 - len(RED)))
            case "/packed":
                self._answer(200, RED, ("Content-Encoding", "gzip"))
            case "/held.png":
                site.opened.wait(5)
                site.has_opened = True
                self._answer(200, RED)
            case "/slow":
                threading.Event().wait(5)
            case _:
                self._answer(404, b"not here")

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


@contextmanager
def site_of_images(state_dir: Path) -> Iterator[Site]:
    """Serve images on a free port. `state_dir` is that of the daemon that fetches them."""
    site = Site(state_dir)
    thread = threading.Thread(target=site.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()
        thread.join()
