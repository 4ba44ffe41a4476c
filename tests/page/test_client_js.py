"""packaging/js/edgeagent.js in a web page of another origin, in a headless Chromium."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import KeyRing, ensure_token
from edgeagent.types import GenerateRequest, Started, ToolCallDelta, ToolCallStarted
from tests.backends.fake import Act, FakeBackend, echo, finished
from tests.daemon.running import running

pytestmark = pytest.mark.slow(seconds=20)

PACKAGE = Path(__file__).parents[2] / "packaging" / "js"
# Runs in the page.
TALK = """async ([url, token]) => {
  const { connect } = await import("/edgeagent.js");
  const client = connect({ url, token });
  const talk = client.conversation();
  await talk.append("One. ");
  await talk.replaceTail("Two five");
  await talk.replaceTail("Two three");
  const sentences = [];
  for await (const sentence of (await talk.commit()).sentences()) sentences.push(sentence);
  sentences.push((await client.ask("four", { background: true })).text);
  await client.close();
  const refused = await connect({ url, token: "x".repeat(43) }).open().catch((error) => error.code);
  const located = await connect({ start: true }).open().catch((error) => error.message);
  return [sentences, refused, located];
}"""

# Two readers share a reply. Its function begins to read it too, after a wait.
LOOP = """async ([url, token]) => {
  const { connect } = await import("/edgeagent.js");
  const client = connect({ url, token });
  const run = async () => {
    await new Promise((wake) => setTimeout(wake));
    return (await own.finish()).text;
  };
  const own = client.respond("look", { tools: [{ name: "look", parameters: { type: "object" }, run }] });
  const answers = await Promise.all([own.finish(), own.finish()]);
  await client.close();
  return [own.rounds.length, ...answers.map(({ text }) => text)];
}"""


def look_then_echo(request: GenerateRequest) -> Iterable[Act]:
    """Call the function, and answer with what it returned."""
    if request.prompt.messages[-1].role == "tool":  # type: ignore[union-attr]
        yield from echo(request)
        return
    yield Started(1, 0)
    yield ToolCallStarted(0, "call_1", "look")
    yield ToolCallDelta(0, "{}")
    yield finished()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def origin() -> Iterator[str]:
    """The address of a web server that has the module. Chromium lets only a page of this machine reach the daemon."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(PACKAGE))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_a_page_talks_to_the_daemon(browser: Any, origin: str, tmp_path: Path) -> None:
    token = ensure_token(tmp_path)
    config = Config(server=ServerConfig(allowed_origins=(origin,), token_required=True), state_dir=tmp_path)
    async with running(FakeBackend(), config, keys=KeyRing(tmp_path)) as daemon:
        tab = await browser.new_page()
        await tab.goto(f"{origin}/README.md")
        sentences, refused, located = await tab.evaluate(TALK, [daemon.url, token])
        await tab.close()
    assert sentences == ["One.", "Two three", "four"]
    assert refused == "invalid_api_key"
    assert "child_process" in located or "module" in located


async def test_a_function_that_reads_its_own_reply_is_told(browser: Any, origin: str, tmp_path: Path) -> None:
    token = ensure_token(tmp_path)
    config = Config(server=ServerConfig(allowed_origins=(origin,), token_required=True), state_dir=tmp_path)
    async with running(FakeBackend(look_then_echo), config, keys=KeyRing(tmp_path)) as daemon:
        tab = await browser.new_page()
        await tab.goto(f"{origin}/README.md")
        num_rounds, *texts = await tab.evaluate(LOOP, [daemon.url, token])
        await tab.close()
    assert num_rounds == 1 and texts[0] == texts[1]
    assert texts[0].startswith("error: Error: a function cannot read the reply that calls it")
