"""A real daemon with a disk cache expects what it kept before a restart as cached, and what is gone as uncached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2

from edgeagent.cache_folder import PREFIXES_FILE
from tests.integration.conftest import Daemon, serving
from tests.patience import patient

# So much longer than a follow-up's own text takes a prompt of which nothing is cached, however fast the machine is.
MUCH = 3


def say(daemon: Daemon, messages: list[dict[str, str]], **fields: Any) -> httpx2.Response:
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, **fields}
    return httpx2.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60))


def told(guide_of: str) -> list[dict[str, str]]:
    system = f"You are the guide of {guide_of}, and answer in one sentence. " * 40
    return [{"role": "system", "content": system}, {"role": "user", "content": "When do you open?"}]


def further(guide_of: str) -> list[dict[str, str]]:
    said = {"role": "assistant", "content": "At nine."}
    return [*told(guide_of), said, {"role": "user", "content": "Why?"}]


def learn_rates(daemon: Daemon) -> None:
    """Return once the daemon knows the worker's rates: short prompts alone do not show how long a token takes."""
    for number in range(100):
        asked = f"Question {number}. " + "Is the light on in the kitchen? " * (10 + number % 10)
        if "expected_ms" in say(daemon, [{"role": "user", "content": asked}]).json()["edgeagent"]:
            return
    raise AssertionError("no first token was predicted")


def expected_ms(daemon: Daemon, *guides_of: str) -> list[int]:
    """Return when follow-ups to conversations are expected. They are refused, so nothing changes the expectation."""
    refused = [say(daemon, further(guide_of), edgeagent={"ttft_ms": 1}) for guide_of in guides_of]
    assert [reply.status_code for reply in refused] == [429] * len(guides_of)
    return [int(reply.headers["x-edgeagent-expected-ms"]) for reply in refused]


def test_what_is_on_disk_is_expected_as_cached_after_a_restart(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with serving(state_dir, "builtin") as daemon:
        assert say(daemon, told("a museum by the sea")).status_code == 200
        assert say(daemon, told("a bank in the city"), store=False).status_code == 200
    with serving(state_dir, "builtin") as daemon:
        learn_rates(daemon)
        known, hidden, new = expected_ms(daemon, "a museum by the sea", "a bank in the city", "a station of old")
        assert MUCH * known < min(hidden, new)
        answer = say(daemon, further("a museum by the sea")).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 200
        daemon.run("cache", "purge")
        assert not list(state_dir.rglob(PREFIXES_FILE))
        gone, new = expected_ms(daemon, "a museum by the sea", "a station of old")
        assert MUCH * gone > new
