"""Makes the pictures of README: `python packaging/pictures.py docs/pictures`, with the extra `page` and a Chromium.

A daemon serves the bundled model, with a state folder of its own. `terminal.svg` plays what commands printed, at the
speed at which they printed it. `chat.png` and `board.png` show the page.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright

COMMANDS = (
    ("run", "What can you do?"),
    ("run", "Tell me a joke."),
    ("ps", ""),
)
QUESTIONS = ("What can you do?", "Tell me a joke.")
COLUMNS, LINE_PX, CHAR_PX = 118, 19, 8.4
TYPED_S, PAUSE_S = 0.05, 1.2
NO_BREAK = "\N{NO-BREAK SPACE}"  # other blanks are collapsed by browsers


class Recording:
    """Lines of a terminal that grow in time, drawn as an SVG that plays once."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._versions: list[list[tuple[float, str]]] = [[(0.0, "")]]  # of each line: since when it is what

    def type(self, command: str) -> None:
        """Show how a command is typed at a prompt."""
        for number in range(len(command) + 1):
            self._versions[-1].append((self._now_s, f"$ {command[:number]}"))
            self._now_s += TYPED_S
        self._versions.append([(self._now_s, "")])

    def play(self, pieces: Sequence[tuple[float, str]]) -> None:
        """Show the output of a command: pieces of text, and the seconds since its start at which each came."""
        began_s, text, first = self._now_s, "", len(self._versions) - 1
        for after_s, piece in pieces:
            text += piece
            self._now_s = began_s + after_s
            for number, line in enumerate(part for each in text.split("\n") for part in _wrapped(each)):
                if first + number == len(self._versions):
                    self._versions.append([])
                versions = self._versions[first + number]
                if not versions or versions[-1][1] != line:
                    versions.append((self._now_s, line))
        self._now_s += PAUSE_S

    def svg(self) -> str:
        """Return the recording as an SVG document."""
        width, height = COLUMNS * CHAR_PX + 32, len(self._versions) * LINE_PX + 32
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="A terminal with edgeagent">',
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#16181d"/>',
            '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#e6e6e6">',
        ]
        for row, versions in enumerate(self._versions):
            for (since_s, line), until in zip(versions, [*versions[1:], None], strict=True):
                if not line:
                    continue
                ends = "" if until is None else f'<set attributeName="visibility" to="hidden" begin="{until[0]:.2f}s"/>'
                shown = escape(line).replace(" ", NO_BREAK)
                color = ' fill="#8fd3ff"' if line.startswith("$ ") else ""
                parts.append(
                    f'<text x="16" y="{26 + row * LINE_PX}"{color} visibility="hidden">{shown}'
                    f'<set attributeName="visibility" to="visible" begin="{since_s:.2f}s"/>{ends}</text>'
                )
        return "\n".join([*parts, "</g>", "</svg>", ""])


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, COLUMNS, replace_whitespace=False, drop_whitespace=False) or [""]


def record(state_dir: str) -> Recording:
    """Run the commands against the daemon of a state folder, and return how they looked."""
    recording = Recording()
    for verb, argument in COMMANDS:
        recording.type(f"edgeagent {verb}" + (f' "{argument}"' if argument else ""))
        command = [sys.executable, "-m", "edgeagent", verb, *([argument] if argument else []), "--state-dir", state_dir]
        began_s = time.perf_counter()
        pieces: list[tuple[float, str]] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            while content := process.stdout.read(4096):
                pieces.append((time.perf_counter() - began_s, content.decode()))
        if process.returncode != 0:
            raise SystemExit(f"{command} ended with {process.returncode}")
        recording.play(pieces)
    return recording


async def show_page(link: str, folder: Path) -> None:
    """Hold a conversation on the page, and leave pictures of it and of the board."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium on this machine (Debian: apt-get install chromium)")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": 1100, "height": 640}, color_scheme="dark")
        tab = await context.new_page()
        await tab.goto(link)
        await tab.wait_for_function("() => document.querySelector('#model')?.options.length > 0")
        for number, question in enumerate(QUESTIONS, 1):
            await tab.fill("#message", question)
            await tab.press("#message", "Enter")
            await _answered(tab, number)
        await tab.screenshot(path=str(folder / "chat.png"))
        await tab.click("#to-board")
        await tab.wait_for_timeout(4000)  # the plots have a point every second
        await tab.screenshot(path=str(folder / "board.png"))
        await browser.close()


async def _answered(tab: Page, num_turns: int) -> Any:
    await tab.wait_for_function(
        "num => document.querySelectorAll('.turn').length === num && document.querySelector('#stop').hidden"
        " && [...document.querySelectorAll('.answer')].every(each => each.innerText.trim())",
        arg=num_turns,
    )


def main(arguments: Sequence[str]) -> int:
    """Make the pictures; return the exit status."""
    parser = argparse.ArgumentParser(description="Make the pictures of README.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    edgeagent = [sys.executable, "-m", "edgeagent"]
    with tempfile.TemporaryDirectory(prefix="edgeagent-pictures-") as state_dir:
        serve = [*edgeagent, "serve", "builtin", "--port", "0", "--state-dir", state_dir]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as daemon:
            assert daemon.stdout is not None
            try:
                next(line for line in daemon.stdout if line.startswith("builtin ready"))
                (folder / "terminal.svg").write_text(record(state_dir).svg(), encoding="utf-8")
                link = subprocess.check_output([*edgeagent, "open", "--print", "--state-dir", state_dir], text=True)
                asyncio.run(show_page(next(word for word in link.split() if "://" in word), folder))
            finally:
                daemon.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
