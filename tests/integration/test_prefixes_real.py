"""Prefixes configured in config.toml: the first request after the load finds them computed."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.integration.conftest import start_daemon, stop_daemon
from tests.patience import patient

INSTRUCTIONS = "You are a voice assistant in a kitchen. Answer in one short sentence. " * 8


def test_the_first_conversation_pays_nothing_for_its_instructions(tmp_path: Path) -> None:
    prompt = tmp_path / "assistant.txt"
    prompt.write_text(INSTRUCTIONS)
    config = tmp_path / "config.toml"
    config.write_text(f'[models."builtin"]\nprefixes = ["{prompt.as_posix()}"]\n')
    daemon = start_daemon(tmp_path / "state", "builtin", "--config", str(config))
    deadline_s = time.monotonic() + patient(30)
    while "is ready:" not in daemon.log.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": "Set a timer."}]
    reply = httpx.post(
        f"{daemon.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 2}, timeout=patient(60)
    ).json()
    usage = reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert usage["prompt_tokens"] - cached < 16
    assert cached > 100
    stop_daemon(daemon)
