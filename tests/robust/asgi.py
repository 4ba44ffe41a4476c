"""Requests to the application itself, without a server: thousands of them take seconds."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeagent.api.app import create_app
from edgeagent.config import Config, StoreConfig
from tests.backends.fake import FakeBackend
from tests.owner_key import OwnerKey

PORT = 8127
TOKEN = "x" * 43
# The application's folder for state and models; these tests write nothing there.
STATE_DIR = Path(tempfile.gettempdir()) / "edgeagent-no-state"


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's value."""
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """Return the error, in the shape of its API; fail if the body is not one."""
        body = self.json()
        error = body["error"]
        if isinstance(error, str):
            return {"message": error, "param": None}
        if body.get("type") == "error":  # Anthropic's
            assert set(error) == {"type", "message", "details"}
            details = error["details"]
            return {"message": error["message"], "param": details["param"], "code": details["error_code"]}
        assert set(error) == {"message", "type", "param", "code"}
        result: dict[str, Any] = error
        return result


class Caller:
    """An application and the event loop in which it is called."""

    def __init__(self, runner: asyncio.Runner, backend: FakeBackend) -> None:
        self.backend = backend
        self._run = runner.get_loop().run_until_complete  # runner.run handles Ctrl-C each time, for 0.2 ms
        config = Config(state_dir=STATE_DIR, store=StoreConfig(models_dir=STATE_DIR / "models"))
        self._app = create_app(config, backend, keys=OwnerKey(TOKEN))

    def post(self, path: str, body: bytes | str | object) -> Answer:
        """Send a body, unchanged or as JSON."""
        if not isinstance(body, bytes | str):
            body = json.dumps(body)
        return self._run(self._call("POST", path, body.encode() if isinstance(body, str) else body))

    def delete(self, path: str, body: object) -> Answer:
        """Send a body as JSON with DELETE."""
        return self._run(self._call("DELETE", path, json.dumps(body).encode()))

    def get(self, path: str) -> Answer:
        """Request a path."""
        return self._run(self._call("GET", path, b""))

    async def _call(self, method: str, path: str, body: bytes) -> Answer:
        headers = [
            (b"host", b"127.0.0.1:%d" % PORT),
            (b"content-type", b"application/json"),
            (b"authorization", b"Bearer " + TOKEN.encode()),
        ]
        if body:
            headers.append((b"content-length", b"%d" % len(body)))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(errors="replace"),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", PORT),
        }
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            message = next(messages, None)
            if message is None:
                await asyncio.Event().wait()
                raise AssertionError
            return message

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], named, b"".join(parts))


@contextmanager
def calling(backend: FakeBackend | None = None) -> Iterator[Caller]:
    """Yield a Caller."""
    with asyncio.Runner() as runner:
        yield Caller(runner, backend or FakeBackend())
