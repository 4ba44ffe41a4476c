"""A response in the background after a sleep: the clock has jumped, and the network needs a moment."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgeagent.client import background, connect
from tests.client.daemon_stub import text_events
from tests.integration.test_readme_examples import node
from tests.patience import patient

MODULE = Path(__file__).parents[2] / "packaging" / "js" / "edgeagent.js"
TALK = """
import { connect } from %s;
let jumpMs = 0;
for (const clock of [Date, performance]) {
  const now = clock.now.bind(clock);
  clock.now = () => now() + jumpMs;
}
const reply = connect({ url: %s }).respond("Hi", { background: true });
for await (const event of reply) jumpMs = 3_600_000;
console.log(reply.answer.text);
"""


def chunk(*events: Mapping[str, Any]) -> bytes:
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


@asynccontextmanager
async def sleeping() -> AsyncIterator[str]:
    """The address of a server that is cut after an answer has begun, is not there once, and then ends the answer."""
    begun, *rest = text_events("resp_1", "Hello")
    served: list[asyncio.Task[Any] | None] = []
    turns = iter([chunk(begun), b"", chunk(*rest) + b"0\r\n\r\n"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        if sent := next(turns):
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + sent)
            await writer.drain()
            await asyncio.sleep(0.2)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
        await asyncio.gather(*filter(None, served))


async def test_a_sleep_is_no_time_without_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_S", 0.01)
    async with sleeping() as url:
        reply = connect(url).respond("Hi", background=True)
        await anext(reply)
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 3600.0)
        assert (await reply.finish()).text == "Hello"


async def test_a_sleep_in_javascript(tmp_path: Path) -> None:
    script = tmp_path / "talk.mjs"
    async with sleeping() as url:
        script.write_text(TALK % (json.dumps(MODULE.as_uri()), json.dumps(url)), encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *node(), str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await asyncio.wait_for(process.communicate(), patient(30))
    assert output == b"Hello\n", errors.decode()
