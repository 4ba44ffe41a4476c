"""Measures the page in a headless Chromium: `python -m tests.peer.page_figures`, with the extra `page` and a Chromium.

First paint, size, keystrokes and first tokens are those of a real daemon with the bundled model. The long answer and
the 200 turns come from a daemon whose model is scripted, because no small model writes 10,000 tokens. Each figure is
printed with its bar. A first token is timed from the key Enter, until its event has come and until its text is on the
page. The bare WebSocket is another tab of the same browser, which sends the same creates in turn with the page.

The long answer is shown by a Chromium of its own: Playwright has each WebSocket frame reported to it, which takes the
page's main thread two to three times as long as the frame itself. It comes at 1,000 tokens/s, and as fast as it is
taken: then the daemon, the scripted model and the drawing without a GPU compete for two cores. Late frames are what a
user would see. The tasks of the main thread by their CPU time are what the page itself is the cause of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.config import Config
from edgeagent.credentials.keys import KeyRing, ensure_token
from edgeagent.types import GenerateRequest, Started, TextDelta
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.daemon.running import running
from tests.page.conftest import CHROMIUM
from tests.peer.servers import Child, edgeagent_command, free_port

WATCH = """
window.seen = [];
const Real = window.WebSocket;
window.WebSocket = class extends Real {
  constructor(...given) {
    super(...given);
    window.lastSocket = this;
    super.addEventListener("message", ({ data }) => {
      const { type, response } = JSON.parse(data);
      window.seen.push([performance.now(), type, response?.id]);
    });
  }
  send(data) {
    const { generate, input } = JSON.parse(data);
    if (generate === false) window.seen.push([performance.now(), "prefill", input.at(-1).content]);
    super.send(data);
  }
};
addEventListener("input", ({ target }) => window.seen.push([performance.now(), "input", target.value.trim()]), true);
addEventListener("keydown", ({ key }) => key === "Enter" && (window.enteredMs = performance.now()), true);
"""
# Resolves with the milliseconds from Enter to the first delta, and to its text on the page.
FIRST = """() => new Promise((resolve) => {
  window.seen.length = 0;
  const watcher = new MutationObserver(() => {
    if (!document.querySelector(".turn:last-child .markdown")?.textContent) return;
    watcher.disconnect();
    const come = window.seen.find(([, type]) => type === "response.output_text.delta")[0];
    resolve([come - window.enteredMs, performance.now() - window.enteredMs]);
  });
  watcher.observe(document.querySelector("#transcript"), { childList: true, subtree: true, characterData: true });
})"""
# Sends a prefill, and then a create; returns the milliseconds from the create to its first delta.
BARE = """async (text) => {
  const socket = window.lastSocket;
  const input = [{ type: "message", role: "user", content: text }];
  const until = (done) => new Promise((resolve) => {
    const take = ({ data }) => {
      if (!done(JSON.parse(data).type)) return;
      socket.removeEventListener("message", take);
      resolve();
    };
    socket.addEventListener("message", take);
  });
  const prefilled = until((type) => type === "response.completed");
  socket.send(JSON.stringify({ type: "response.create", input, generate: false, store: false }));
  await prefilled;
  const first = until((type) => type === "response.output_text.delta");
  const ended = until((type) => type === "response.completed" || type === "response.incomplete");
  const beganMs = performance.now();
  socket.send(JSON.stringify({ type: "response.create", input }));
  await first;
  const tookMs = performance.now() - beganMs;
  await ended;
  return tookMs;
}"""
# The first paint, and the bytes of the page and its files as they came.
VISITED = """() => {
  const files = ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind));
  const own = files.filter(({ name }) => !name.includes("/v1/") && !name.includes("/edgeagent/"));
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [paint.startTime, own.reduce((sum, each) => sum + each.transferSize, 0)];
}"""
FRAMES = """() => {
  window.frames_ = [];
  let last = performance.now();
  const next = (now) => {
    window.frames_.push(now - last);
    last = now;
    window.isDone || requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}"""
TOKENS_PER_S, NUM_AT_ONCE = 1000.0, 5
"""The rate of the long answer, which is above that of each model that two cores compute; a step gives several."""
QUESTION = "Please set a timer for {} minutes and tell me what else you can do"
NUM_TOKENS, NUM_TURNS = 10_000, 200


async def link(url: str, token: str) -> str:
    async with httpx.AsyncClient() as http:
        made = await http.post(f"{url}/edgeagent/page/link", headers={"authorization": f"Bearer {token}"}, json={})
    return url + str(made.json()["path"])


async def entered(context: BrowserContext, url: str, token: str) -> Page:
    """Return a tab that is let in, and shows the chat."""
    tab = await context.new_page()
    await tab.goto(await link(url, token))
    await tab.wait_for_function("() => document.querySelector('#model')?.options.length > 0")
    return tab


async def ended(tab: Page, num_turns: int) -> None:
    await tab.wait_for_function(
        "num => document.querySelectorAll('.turn').length === num && document.querySelector('#stop').hidden",
        arg=num_turns,
        timeout=300_000,
    )


def show(what: str, value: str, bar: str) -> None:
    print(f"{what:44} {value:38} bar {bar}", flush=True)


async def paints(browser: Browser, url: str, token: str, num: int) -> None:
    """Measure the first visit of new browsers: nothing is cached."""
    first_ms, num_bytes = [], 0
    for _ in range(num):
        context = await browser.new_context()
        tab = await entered(context, url, token)
        seen = await tab.evaluate(VISITED)
        first_ms.append(seen[0])
        num_bytes = seen[1]
        await context.close()
    show("first paint, empty cache", f"{median(first_ms):.0f} ms (worst {max(first_ms):.0f})", "150 ms")
    show("the page's files on the wire", f"{num_bytes / 1000:.1f} KB", "120 KB")


async def keystrokes(tab: Page, num: int) -> None:
    """Measure from each keystroke until a prompt that has it is computed."""
    behind_ms: list[float] = []
    for round_ in range(num):
        await tab.evaluate("() => { window.seen.length = 0; }")
        await tab.type("#message", QUESTION.format(round_), delay=60)
        await tab.wait_for_function(
            "() => { const text = document.querySelector('#message').value.trim();"
            " const sent = window.seen.findIndex(([, kind, value]) => kind === 'prefill' && value === text);"
            " return sent >= 0 && window.seen.slice(sent).some(([, kind]) => kind === 'response.completed'); }"
        )
        await asyncio.sleep(0.2)
        seen = await tab.evaluate("window.seen")
        sent = [(at_ms, text) for at_ms, kind, text in seen if kind == "prefill"]
        done_ms = [at_ms for at_ms, kind, _ in seen if kind == "response.completed"]
        prefills = list(zip(sent, done_ms, strict=True))
        for at_ms, kind, text in seen:
            if kind == "input" and text:
                # A space behind a word changes no prompt: what is being computed, or is computed already, has it.
                behind_ms.append(next(max(0.0, done - at_ms) for (_, what), done in prefills if what.startswith(text)))
        await tab.fill("#message", "")
    behind_ms.sort()
    value = f"{median(behind_ms):.0f} ms (95 %: {behind_ms[int(0.95 * len(behind_ms))]:.0f}, worst {behind_ms[-1]:.0f})"
    show(f"keystroke to prefilled, {len(behind_ms)} keys", value, "50 ms")


async def first_tokens(tab: Page, bare: Page, num: int) -> None:
    come, shown, alone = [], [], []
    for number in range(num):
        await tab.click("#new")
        await tab.evaluate("() => { window.seen.length = 0; }")
        await tab.type("#message", QUESTION.format(100 + number))
        await asyncio.sleep(0.5)
        measuring = asyncio.create_task(tab.evaluate(FIRST))
        await asyncio.sleep(0.05)
        await tab.press("#message", "Enter")
        came_ms, shown_ms = await measuring
        come.append(came_ms)
        shown.append(shown_ms)
        await ended(tab, 1)
        alone.append(await bare.evaluate(BARE, QUESTION.format(500 + number)))
    show("bare WebSocket to first token", f"{median(alone):.1f} ms", "-")
    show("Enter to first token", f"{median(come):.1f} ms, {median(come) - median(alone):+.1f} ms", "+10 ms")
    show("Enter to its text on the page", f"{median(shown):.1f} ms, {median(shown) - median(alone):+.1f} ms", "-")


def long_answer(request: GenerateRequest, tokens_per_s: float = math.inf) -> Iterable[Act]:
    """Answer with NUM_TOKENS, at this rate, or as fast as they are taken."""
    yield Started(8, 0)
    if not request.prefill_only:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number in range(NUM_TOKENS):
            if tokens_per_s < math.inf and number % NUM_AT_ONCE == 0:
                gate = Gate()
                loop.call_at(began_s + number / tokens_per_s, gate.opened.set)
                yield gate
            yield TextDelta(f"word{number} " if number % 12 else f"**word{number}**.\n\n")
    yield finished(output=NUM_TOKENS)


def short_answer(request: GenerateRequest) -> Iterable[Act]:
    yield Started(8, 0)
    if not request.prefill_only:
        for number in range(40):
            yield TextDelta(f"word{number} ")
    yield finished(output=40)


class BareTab:
    """The tab of a Chromium, by the DevTools protocol alone. One call runs at a time."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._num_calls = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._num_calls += 1
        await self._socket.send(json.dumps({"id": self._num_calls, "method": method, "params": params}))
        answer = await self.received(lambda message: message.get("id") == self._num_calls)
        return answer["result"]  # type: ignore[no-any-return]

    async def received(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next message that is wanted."""
        while True:
            message: dict[str, Any] = json.loads(await self._socket.recv())
            if is_wanted(message):
                return message

    async def evaluate(self, code: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        while not await self.evaluate(f"new Promise(seen => setTimeout(() => seen({condition}), 500))"):
            pass


@asynccontextmanager
async def bare_tab() -> AsyncIterator[BareTab]:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="page-figures-", ignore_cleanup_errors=True) as profile:
        options = (
            "--headless",
            "--no-sandbox",
            "--no-first-run",
            "--window-size=1280,720",
            "--remote-debugging-port=0",
        )
        silent = asyncio.subprocess.DEVNULL
        browser = await asyncio.create_subprocess_exec(
            *(CHROMIUM, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            stdout=silent,
            stderr=silent,
        )
        try:
            ready = Path(profile) / "DevToolsActivePort"
            while not (ready.exists() and ready.read_text().count("\n")):  # noqa: ASYNC110 - it is another program's file
                await asyncio.sleep(0.05)
            async with httpx.AsyncClient() as http:
                targets = (await http.get(f"http://127.0.0.1:{ready.read_text().split()[0]}/json/list")).json()
            address = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
            async with connect(address, max_size=None) as socket:
                yield BareTab(socket)
        finally:
            browser.terminate()
            await browser.wait()


async def traced_tasks_ms(tab: BareTab) -> list[tuple[float, float]]:
    """End a trace of the category `toplevel`; return how long each task of the page's main thread ran, and its CPU."""
    await tab.call("Tracing.end")
    ended = await tab.received(lambda message: message.get("method") == "Tracing.tracingComplete")
    text = ""
    while True:
        part = await tab.call("IO.read", handle=ended["params"]["stream"], size=4 << 20)
        text += part["data"]
        if part.get("eof"):
            break
    events = json.loads(text)["traceEvents"]
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    tasks = [each for each in events if each["name"] == "ThreadControllerImpl::RunTask" and each["ph"] == "X"]
    threads = Counter((each["pid"], each["tid"]) for each in tasks)
    # A spare renderer has a main thread too, with a few tasks.
    page = max((each for each in threads if names.get(each) == "CrRendererMain"), key=lambda each: threads[each])
    mine = [each for each in tasks if (each["pid"], each["tid"]) == page]
    return [(each["dur"] / 1000, each.get("tdur", 0) / 1000) for each in mine]


async def long_stream(url: str, token: str, backend: FakeBackend, tokens_per_s: float) -> None:
    backend.script = partial(long_answer, tokens_per_s=tokens_per_s)
    async with bare_tab() as tab:
        await tab.call("Page.navigate", url=await link(url, token))
        await tab.until("document.querySelector('#model')?.options.length > 0")
        await tab.evaluate(f"({FRAMES})()")
        trace = {
            "includedCategories": ["toplevel"],
            "excludedCategories": ["*"],
            "recordMode": "recordAsMuchAsPossible",
        }
        await tab.call("Tracing.start", transferMode="ReturnAsStream", traceConfig=trace)
        await tab.evaluate("document.querySelector('#message').value = 'Write a lot.'")
        await tab.evaluate("document.querySelector('#send').click()")
        await tab.until(
            "document.querySelector('#stop').hidden"
            f" && document.querySelector('.markdown').textContent.includes('word{NUM_TOKENS - 1}')"
        )
        frames = sorted(await tab.evaluate("window.isDone = true, window.frames_"))
        tasks = await traced_tasks_ms(tab)
    late = sum(each > 50 for each in frames)
    value = f"worst {frames[-1]:.0f} ms, {late} of {len(frames)} over 50 ms"
    is_paced = tokens_per_s < math.inf
    rate = f"{tokens_per_s:g} tokens/s" if is_paced else "as fast as they are taken"
    show(f"frames of {NUM_TOKENS} tokens, {rate}", value, "none over 50 ms" if is_paced else "-")
    for what, lengths in zip(("by the clock", "by CPU time"), zip(*tasks, strict=True), strict=True):
        value = f"worst {max(lengths):.0f} ms, {sum(each > 50 for each in lengths)} of {len(lengths)} over 50 ms"
        show(f"- tasks of the main thread, {what}", value, "-")


async def memory(tab: Page, backend: FakeBackend) -> None:
    backend.script = short_answer
    session = await tab.context.new_cdp_session(tab)
    await session.send("Performance.enable")

    async def heap_mb() -> float:
        await session.send("HeapProfiler.collectGarbage")
        metrics = (await session.send("Performance.getMetrics"))["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize")) / 1e6

    await tab.click("#new")
    sizes = [await heap_mb()]
    for number in range(NUM_TURNS):
        await tab.fill("#message", f"Turn {number}?")
        await tab.press("#message", "Enter")
        await ended(tab, number + 1)
        if number + 1 in (NUM_TURNS // 2, NUM_TURNS):
            sizes.append(await heap_mb())
    await tab.click("#new")
    sizes.append(await heap_mb())
    value = " / ".join(f"{each:.1f}" for each in sizes) + " MB"
    show(f"heap at 0 / {NUM_TURNS // 2} / {NUM_TURNS} turns / new conversation", value, "flat")


async def measure(num: int) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with tempfile.TemporaryDirectory(prefix="page-figures-") as folder:
            state, port = Path(folder) / "state", free_port()
            url = f"http://127.0.0.1:{port}"
            daemon = Child(edgeagent_command("builtin", state, port), Path(folder) / "log", f"{url}/ready")
            try:
                token = ensure_token(state)
                await paints(browser, url, token, num)
                context = await browser.new_context()
                await context.add_init_script(WATCH)
                tab = await entered(context, url, token)
                await keystrokes(tab, max(2, num // 4))
                bare = await entered(context, url, token)
                await tab.bring_to_front()
                await first_tokens(tab, bare, num)
                await context.close()
            finally:
                daemon.stop()
        with tempfile.TemporaryDirectory(prefix="page-figures-") as folder:
            config, backend = Config(state_dir=Path(folder)), FakeBackend()
            token = ensure_token(config.state_dir)
            async with running(backend, config, keys=KeyRing(config.state_dir)) as scripted:
                for tokens_per_s in (TOKENS_PER_S, math.inf):
                    await long_stream(scripted.url, token, backend, tokens_per_s)
                tab = await entered(await browser.new_context(), scripted.url, token)
                await memory(tab, backend)
                await tab.context.close()
        await browser.close()


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.split(":", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--num", type=int, default=20, help="how often first paints and first tokens are measured")
    asyncio.run(measure(parser.parse_args().num))


if __name__ == "__main__":
    main()
