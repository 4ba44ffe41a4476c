"""Codex, the coding agent, as its npm package installs it: over HTTP and over WebSocket.

With all its tools and instructions its prompt does not fit the bundled model, which it must say in its own words. With
fewer it answers. SmolLM2 takes all its tools, of which some are in a namespace and one is run by another server.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from cases import ASK_TIMER, BASE_URL, MODEL, case, main

CODEX = Path(os.environ["CLIENTS_FOLDER"]) / "node_modules" / ".bin" / "codex"
SMOLLM2 = os.environ.get("SMOLLM2_NAME", "")
LIMIT_S = 600.0
CONFIG = """
model_provider = "edgeagent"
model_instructions_file = "{folder}/instructions.md"
[model_providers.edgeagent]
name = "edgeagent"
base_url = "{base_url}"
wire_api = "responses"
supports_websockets = {is_socket}
"""
# What makes its prompt small: its other tools, and what it says of the machine, are off.
FEW = ("goals", "multi_agent", "skill_search", "plugins", "apps", "view_image")
SILENT = (
    *("include_permissions_instructions=false", "include_environment_context=false"),
    *('web_search="disabled"', "skills.include_instructions=false"),
)


async def ask(*options: str, is_socket: bool, instructions: str = "Be brief.") -> list[dict[str, object]]:
    """Run `codex exec` in an empty folder, and return the events that it prints."""
    with tempfile.TemporaryDirectory(prefix="codex-") as name:
        folder = Path(name)
        (folder / "instructions.md").write_text(instructions, encoding="utf-8")
        config = CONFIG.format(folder=folder, base_url=BASE_URL, is_socket=str(is_socket).lower())
        (folder / "config.toml").write_text(config, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *(str(CODEX), "exec", "--json", "--skip-git-repo-check", *options, ASK_TIMER),
            cwd=folder,
            env={**os.environ, "CODEX_HOME": name},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return [json.loads(line) for line in printed.decode().splitlines() if line.startswith("{")]


def few() -> list[str]:
    """Return the options that leave Codex the tools for a shell alone."""
    off = [word for feature in FEW for word in ("--disable", feature)]
    return ["-m", MODEL, *off, *[word for setting in SILENT for word in ("-c", setting)]]


def check_answered(events: list[dict[str, object]]) -> None:
    """Check that a turn ended well, with a text or with the run of a command."""
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "turn.completed", events[-1]
    assert "item.completed" in kinds


@case("few tools, over HTTP")
async def _() -> None:
    check_answered(await ask(*few(), is_socket=False))


@case("few tools, over WebSocket")
async def _() -> None:
    check_answered(await ask(*few(), is_socket=True))


@case("all tools do not fit, and it says so")
async def _() -> None:
    *_, last = await ask("-m", MODEL, is_socket=False)
    assert last["type"] == "turn.failed" and "context" in str(last["error"]), last


if SMOLLM2:

    @case("all tools as installed, SmolLM2, over HTTP")
    async def _() -> None:
        check_answered(await ask("-m", SMOLLM2, is_socket=False))

    @case("all tools as installed, SmolLM2, over WebSocket")
    async def _() -> None:
        check_answered(await ask("-m", SMOLLM2, is_socket=True))


main(LIMIT_S)
