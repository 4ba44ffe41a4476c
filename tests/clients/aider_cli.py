"""aider, the coding assistant, as its command: a question about a file, through OpenAI's API and through Ollama's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import BASE_URL, KEY, MODEL, URL, case, main

FLAGS = (
    *("--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--edit-format", "ask", "--map-tokens", "0", "--no-pretty", "--no-show-release-notes"),
)


async def ask(model: str, *, stream: bool) -> str:
    """Ask about a small file, and return what aider prints."""
    with tempfile.TemporaryDirectory(prefix="aider-") as folder:
        (Path(folder) / "lamp.py").write_text("def lamp() -> str:\n    return 'on'\n", encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aider", "--model", model, *FLAGS, "--stream" if stream else "--no-stream"),
            *("--message", "What is this?", "lamp.py"),
            cwd=folder,
            env={
                **os.environ,
                "HOME": folder,
                "OPENAI_API_BASE": BASE_URL,
                "OPENAI_API_KEY": KEY,
                "OLLAMA_API_BASE": URL,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
    return printed.decode(errors="replace")


def check(printed: str) -> None:
    """Check that an answer was counted, and no error of the transport shown."""
    assert "Tokens:" in printed and "litellm." not in printed, printed[-600:]


@case("through OpenAI's API, streamed and not")
async def _() -> None:
    for stream in (True, False):
        check(await ask(f"openai/{MODEL}", stream=stream))


@case("through Ollama's API")
async def _() -> None:
    check(await ask(f"ollama_chat/{MODEL}", stream=True))


main()
