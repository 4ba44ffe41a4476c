"""A remote that answers at once. Each token's text is the time at which it was sent.

Run as `python -m tests.peer.stamp_server`. It serves HTTP/1.1, with a certificate over TLS. It prints its port,
and ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import time

import uvloop

NUM_TOKENS = 32
PACE_S = 0.004
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def token(index: int) -> bytes:
    """Return the server-sent event of a token. Its text is the current time. The last one also ends the stream."""
    delta = {"role": "assistant", "content": f"{time.perf_counter():.7f} "}
    reason = "stop" if index == NUM_TOKENS - 1 else None
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "stamps"}
    chunk |= {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    return b"data: %s\n\n" % json.dumps(chunk).encode() + (b"data: [DONE]\n\n" if reason else b"")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    try:
        await _answer(reader, writer)
    # RuntimeError is uvloop's error for a closed connection
    except (ConnectionError, RuntimeError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower():
        if "content-length: " not in head:
            writer.write(_NOT_FOUND)
            continue
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        for index in range(NUM_TOKENS):
            data = token(index)
            writer.write((b"" if index else _HEAD) + b"%x\r\n%s\r\n" % (len(data), data))
            if index < NUM_TOKENS - 1:
                await asyncio.sleep(PACE_S)
        writer.write(b"0\r\n\r\n")


async def run(certificate: str, key: str) -> None:
    """Serve until the standard input ends."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificate", default="")
    parser.add_argument("--key", default="")
    given = parser.parse_args()
    uvloop.run(run(given.certificate, given.key))
