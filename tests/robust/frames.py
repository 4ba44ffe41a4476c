"""WebSocket frames built by hand, over raw sockets."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

from tests.daemon.running import Running, read_reply

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN, RSV1, RSV2, RSV3 = 0x80, 0x40, 0x20, 0x10
MASK = b"\x12\x34\x56\x78"


def frame(first: int, payload: bytes, *, mask: bytes | None = MASK, size_bytes: int = 0) -> bytes:
    """Return a frame; `first` is its first byte (FIN, RSV, opcode). `size_bytes` 2 or 8 forces a longer length."""
    size, bit = len(payload), 0x80 if mask is not None else 0
    if not size_bytes:
        size_bytes = 0 if size < 126 else 2 if size < 65_536 else 8
    if size_bytes == 0:
        head = bytes([first, bit | size])
    elif size_bytes == 2:
        head = bytes([first, bit | 126]) + struct.pack("!H", size)
    else:
        head = bytes([first, bit | 127]) + struct.pack("!Q", size)
    if mask is None:
        return head + payload
    repeated = mask * (size // 4 + 1)
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated[:size], "big")).to_bytes(size, "big")
    return head + mask + masked


def text(payload: str | bytes) -> bytes:
    """Return a whole text message."""
    return frame(FIN | TEXT, payload.encode() if isinstance(payload, str) else payload)


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    """Return a close frame."""
    return frame(FIN | CLOSE, b"" if code is None else struct.pack("!H", code) + reason)


@dataclass
class Peer:
    """The client's end of an open WebSocket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, *frames: bytes) -> None:
        """Send bytes."""
        self.writer.write(b"".join(frames))

    async def receive(self) -> tuple[int, bytes]:
        """Return the first byte and the payload of the next frame, which must be valid for a server."""
        first, size = await self.reader.readexactly(2)
        assert not first & (RSV1 | RSV2 | RSV3)
        assert not size & 0x80, "a server masks nothing"
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            assert size >= 126
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            assert size >= 65_536
        return first, await self.reader.readexactly(size)

    async def closed(self) -> int | None:
        """Return the code of the close frame, which must come next, followed by the end; None if it has no code."""
        while True:
            first, payload = await self.receive()
            if first == FIN | CLOSE:
                break
            assert first in (FIN | TEXT, FIN | PONG), first
        assert await self.reader.read() == b""
        payload[2:].decode()
        return int.from_bytes(payload[:2], "big") if payload else None


async def open_websocket(daemon: Running, *headers: str, target: str = "/v1/responses") -> Peer:
    """Open a WebSocket on a raw socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1 << 22)
    lines = [f"GET {target} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    reply = await read_reply(reader, has_body=False)
    assert reply.status == 101
    return Peer(reader, writer, reply.headers)
