"""shell-gpt, the command `sgpt`, as its README sets it up for a local server: a question, a chat, text on stdin."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from cases import BASE_URL, KEY, MODEL, case, main

COMMAND = Path(sys.executable).with_name("sgpt")


async def sgpt(home: str, *arguments: str, text: str | None = None) -> str:
    """Run the command with its settings in a home folder; return what it prints. Fail if it fails."""
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "--model", MODEL, "--no-cache", "--no-md", *arguments),
        env={
            **os.environ,
            "HOME": home,
            "CHAT_CACHE_PATH": f"{home}/chats",
            "API_BASE_URL": BASE_URL,
            "OPENAI_API_KEY": KEY,
            "DEFAULT_MODEL": MODEL,
            "OPENAI_USE_FUNCTIONS": "false",
        },
        stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate(None if text is None else text.encode())
    said = printed.decode(errors="replace").strip()
    assert process.returncode == 0 and "Traceback" not in said, said[-600:]
    return said


@case("a question")
async def _() -> None:
    with tempfile.TemporaryDirectory(prefix="sgpt-") as home:
        assert await sgpt(home, "What can you do?")


@case("a chat of two turns, which it keeps and shows")
async def _() -> None:
    with tempfile.TemporaryDirectory(prefix="sgpt-") as home:
        first = await sgpt(home, "--chat", "lamps", "Hello!")
        second = await sgpt(home, "--chat", "lamps", "What can you do?")
        shown = await sgpt(home, "--show-chat", "lamps")
    assert first and second and "Hello!" in shown and "What can you do?" in shown, shown


@case("a question about text on standard input")
async def _() -> None:
    with tempfile.TemporaryDirectory(prefix="sgpt-") as home:
        assert await sgpt(home, "What is this?", text="milk, bread, eggs\n")


main()
