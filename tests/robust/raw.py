"""Requests as raw bytes that no client library would send."""

from __future__ import annotations

from tests.daemon.running import Reply, Running, exchange

PAGE = "http://localhost:3000"
KEY_HEADERS = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="


async def get(daemon: Running, *lines: str, target: str = "/v1/models", method: str = "GET") -> Reply:
    """Send a request with these header lines; `{port}` is replaced by the daemon's port."""
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""])
    return await exchange(daemon.port, head.replace("{port}", str(daemon.port)).encode("latin-1"))


async def upgrade(daemon: Running, *lines: str, target: str = "/v1/responses") -> Reply:
    """Request a WebSocket."""
    return await get(daemon, *lines, "Upgrade: websocket", "Connection: Upgrade", KEY_HEADERS, target=target)


async def post(daemon: Running, content: str, *lines: str, target: str = "/v1/chat/completions") -> Reply:
    """Send a body with these header lines and the right length."""
    head = [
        f"POST {target} HTTP/1.1",
        "Host: 127.0.0.1:{port}",
        *lines,
        f"Content-Length: {len(content.encode())}",
        "",
        "",
    ]
    start = "\r\n".join(head).replace("{port}", str(daemon.port))
    return await exchange(daemon.port, (start + content).encode())
