"""A headless Chromium, and the page of a daemon whose model is scripted."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgeagent.answers.answers import Answers
from edgeagent.config import Config
from edgeagent.credentials.keys import KeyRing, ensure_token
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SHOTS = os.environ.get("PAGE_SCREENSHOTS")
"""A folder in which the tests leave screenshots."""


@dataclass
class Visit:
    """A tab of a browser with the daemon's page, and what went wrong in it."""

    tab: Any
    daemon: Running
    token: str
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that show the owner's token."""
        return {"authorization": f"Bearer {self.token}"}

    async def enter(self) -> None:
        """Open the page with a one-time link, and wait until it is ready."""
        made = await self.daemon.http.post(f"{self.daemon.url}/edgeagent/page/link", headers=self.headers, json={})
        await self.tab.goto(self.daemon.url + made.json()["path"])
        await self.tab.wait_for_selector("#message")
        await self.tab.wait_for_function("() => document.querySelector('#model').options.length > 0")

    async def say(self, text: str) -> None:
        """Type a message and send it."""
        await self.tab.fill("#message", text)
        await self.tab.press("#message", "Enter")

    async def ended(self, num_answers: int) -> None:
        """Wait until so many turns are shown, and none is being answered."""
        await self.tab.wait_for_function(
            "num => document.querySelectorAll('.turn').length === num && document.querySelector('#stop').hidden"
            " && [...document.querySelectorAll('.answer')].every(each => each.innerText.trim())",
            arg=num_answers,
        )

    async def shot(self, name: str) -> None:
        """Leave a screenshot, if one is wanted."""
        if SHOTS:
            await self.tab.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    driver = pytest.importorskip("playwright.async_api", reason="Playwright is not installed (the extra `page`)")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    async with driver.async_playwright() as playwright:
        # Chromium's own sandbox does not start for root, as in a container.
        camera = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
        started = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera])
        yield started
        await started.close()


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def size() -> tuple[int, int]:
    return 1280, 800


@pytest.fixture
async def visit(browser: Any, backend: FakeBackend, tmp_path: Path, size: tuple[int, int]) -> AsyncIterator[Visit]:
    async with visiting(browser, backend, Config(state_dir=tmp_path), size) as found:
        yield found


@asynccontextmanager
async def visiting(
    browser: Any,
    backend: FakeBackend,
    config: Config,
    size: tuple[int, int],
    answers: Answers | None = None,
    **options: Any,
) -> AsyncIterator[Visit]:
    """A new tab, and a daemon, with a cache of answers if one is given.

    At the end nothing may have gone wrong in the tab, and nothing left the daemon.
    """
    folder = config.state_dir
    token = ensure_token(folder)
    async with running(backend, config, keys=KeyRing(folder), answers=answers) as daemon:
        context = await browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        tab = await context.new_page()
        found = Visit(tab, daemon, token)
        tab.on("pageerror", lambda error: found.faults.append(str(error)))
        tab.on("console", lambda line: found.faults.append(line.text) if line.type == "error" else None)
        tab.on("dialog", lambda dialog: found.faults.append(f"dialog {dialog.message}"))
        context.on("request", lambda request: found.asked.append(request.url))
        yield found
        await context.close()
        assert found.faults == []
        elsewhere = [url for url in found.asked if not url.startswith((daemon.url, "blob:", "data:"))]
        assert elsewhere == []
