"""A local server for the part of the Hugging Face hub's protocol that its client needs to find and download files.

It serves listings (/api/models/…), file metadata and content (/{repo}/resolve/{commit}/{file}, HEAD and GET with
Range), and a storage host on another port, to which content requests are redirected, as to the hub's CDN. Tests set its
faults.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOKEN = "hf_test_token"


@dataclass
class Faults:
    """The server's faults.

    `cut_after` is the number of body bytes of a cut answer; `num_cuts` how many answers are cut.

    With `hold_after`, an answer pauses after this many bytes until the server's `release` is set or the server stops;
    `num_holds` is how many answers pause (None: all). Content is sent in pieces of `piece_bytes`, `pause_s` apart.
    """

    cut_after: int | None = None
    num_cuts: int = 0
    ignore_range: bool = False
    wrong_range: bool = False
    refuse_range: bool = False
    corrupt: bool = False
    compress: bool = False
    endless: bool = False
    status: int | None = None
    storage_status: int | None = None
    num_storage_failures: int = 0
    other_etag: bool = False
    raw_listing: bytes | None = None
    hold_after: int | None = None
    num_holds: int | None = None
    piece_bytes: int = 4096
    pause_s: float = 0.0
    location: str | None = None


@dataclass
class Repo:
    """A repository: files by name. `listed` replaces single fields in a file's listing."""

    files: dict[str, bytes]
    commit: str = "a" * 40
    gated: bool = False
    gated_status: int = 401
    token: str = TOKEN
    private: bool = False
    listed: dict[str, dict[str, object]] = field(default_factory=dict)
    extra_siblings: list[object] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """A request; `authorization` is its header."""

    host: str
    method: str
    path: str
    byte_range: str | None
    authorization: str | None


class HubServer:
    """Two HTTP servers, the hub and its storage, and the requests that they received."""

    def __init__(self, repos: Mapping[str, Repo], *, redirect: bool) -> None:
        self.repos = dict(repos)
        self.faults = Faults()
        self.requests: list[Request] = []
        self.sent_bytes = 0
        self.release = threading.Event()
        self.stopping = threading.Event()
        self.redirect = redirect
        self._hub = _Server(("127.0.0.1", 0), _handler(self, "hub"))
        self._storage = _Server(("127.0.0.1", 0), _handler(self, "storage"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._hub.server_port}"

    @property
    def storage_url(self) -> str:
        return f"http://127.0.0.1:{self._storage.server_port}"

    def add(self, name: str, files: Mapping[str, bytes], **fields: object) -> Repo:
        self.repos[name] = Repo(dict(files), **fields)  # type: ignore[arg-type]
        return self.repos[name]

    def asked(self, method: str, host: str | None = None) -> list[Request]:
        return [request for request in self.requests if request.method == method and host in (None, request.host)]

    @contextmanager
    def running(self) -> Iterator[HubServer]:
        servers = (self._hub, self._storage)
        threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stopping.set()
            self.release.set()
            for server in servers:
                server.shutdown()
                server.server_close()
            for thread in threads:
                thread.join()


@contextmanager
def hub_server(repos: Mapping[str, Repo] | None = None, *, redirect: bool = True) -> Iterator[HubServer]:
    """Run a hub. With `redirect` the storage host sends the content, else the hub itself."""
    with HubServer(repos or {}, redirect=redirect).running() as server:
        yield server


@lru_cache(maxsize=64)
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        # Some tests kill or interrupt the client on purpose.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(hub: HubServer, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.host = hub, host
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    host: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = self.headers
        path = unquote(self.path.split("?")[0])
        request = Request(self.host, self.command, path, headers.get("Range"), headers.get("Authorization"))
        self.hub.requests.append(request)
        if self.host == "storage":
            self._from_storage(path)
        elif self.hub.faults.status is not None:
            self._refuse(self.hub.faults.status, None)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            self._list(match[1])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2], match[3])
        else:
            self._refuse(404, None)

    def _repo(self, name: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {repo.token}"):
            self._refuse(401 if repo is None else 404, "RepoNotFound")
            return None
        return repo

    def _list(self, name: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        siblings: list[object] = list(repo.extra_siblings)
        for file, content in repo.files.items():
            lfs = {"sha256": sha256(content), "size": len(content), "pointerSize": 130}
            lfs.update(repo.listed.get(file, {}))
            siblings.append({"rfilename": file, "size": len(content), "blobId": "b" * 40, "lfs": lfs})
        answer = {"id": name, "sha": repo.commit, "siblings": siblings, "private": False, "gated": repo.gated}
        body = json.dumps(answer).encode()
        body = body if self.hub.faults.raw_listing is None else self.hub.faults.raw_listing
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        if repo.gated and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self._refuse(repo.gated_status, "GatedRepo")
            return
        if revision not in (repo.commit, "main"):
            self._refuse(404, "RevisionNotFound")
            return
        content = repo.files.get(file)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        digest = str(repo.listed.get(file, {}).get("sha256", sha256(content)))
        if self.hub.faults.other_etag:
            digest = "0" * 64
        linked = {"X-Repo-Commit": repo.commit, "X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"'}
        if not self.hub.redirect:
            self._send(content, {**linked, "ETag": f'"{digest}"'})
            return
        self.send_response(302)
        for header, value in linked.items():
            self.send_header(header, value)
        storage = f"{self.hub.storage_url}/{name}/{file}?signature=secret"
        self.send_header("Location", self.hub.faults.location or storage)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _from_storage(self, path: str) -> None:
        faults = self.hub.faults
        if faults.storage_status is not None and faults.num_storage_failures > 0:
            faults.num_storage_failures -= 1
            self._refuse(faults.storage_status, None)
            return
        org, name, file = path.removeprefix("/").split("/", 2)
        self._send(self.hub.repos[f"{org}/{name}"].files[file], {})

    def _send(self, content: bytes, headers: Mapping[str, str]) -> None:
        faults = self.hub.faults
        start, status = 0, 200
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted is not None and faults.refuse_range:
            self._refuse(416, None)
            return
        if wanted is not None and not faults.ignore_range:
            start, status = int(wanted[1]), 206
            start = start - 1 if faults.wrong_range else start
        body = memoryview(content)[start:]
        if faults.corrupt:
            body = memoryview(bytes([body[0] ^ 0xFF]) + body[1:])
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if faults.compress:
            self.send_header("Content-Encoding", "gzip")
        if faults.endless:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self._write(body)

    def _write(self, body: memoryview) -> None:
        faults = self.hub.faults
        cut = faults.cut_after if faults.num_cuts > 0 else None
        sent = 0
        try:
            while sent < len(body) or faults.endless:
                if self.hub.stopping.is_set():
                    break
                piece = body[sent : sent + faults.piece_bytes] if sent < len(body) else bytes(faults.piece_bytes)
                if cut is not None and sent + len(piece) > cut:
                    piece = piece[: cut - sent]
                self.wfile.write(piece)
                sent += len(piece)
                self.hub.sent_bytes += len(piece)
                if faults.pause_s:
                    time.sleep(faults.pause_s)
                if faults.hold_after is not None and sent >= faults.hold_after and faults.num_holds != 0:
                    if faults.num_holds is not None:
                        faults.num_holds -= 1
                    self.hub.release.wait()
                if cut is not None and sent >= cut:
                    faults.num_cuts -= 1
                    self.close_connection = True
                    break
        except ConnectionError:
            self.close_connection = True
        if faults.endless:
            self.close_connection = True

    def _refuse(self, status: int, code: str | None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
