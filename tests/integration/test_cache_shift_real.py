"""`--cache-shift` on a real daemon: what is computed, what the answer and the status say, and how exact answers are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from tests.integration.conftest import Daemon, serving
from tests.integration.test_cache_miss_real import ask
from tests.patience import patient


def shift_of(daemon: Daemon) -> dict[str, Any]:
    (model,) = httpx.get(f"{daemon.url}/edgeagent/status").json()["models"]
    shift: dict[str, Any] = (model["worker"] or {}).get("shift") or {"num_measured": 0}  # until the next pong
    return shift


def test_the_text_behind_a_changed_clock_is_not_computed_again(tmp_path: Path) -> None:
    with serving(tmp_path / "state", "builtin", "--cache-shift") as daemon:
        first = ask(daemon, "seven o'clock")
        late = ask(daemon, "a quarter past eight in the evening")
        usage, cache = late["usage"], late["edgeagent"]["cache"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        assert 32 <= computed < 96
        assert cache == {"shifted_tokens": cache["shifted_tokens"]}
        assert cache["shifted_tokens"] > 256
        deadline_s = time.monotonic() + patient(30)
        while not (shift := shift_of(daemon))["num_measured"] and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert (shift["num_prompts"], shift["num_measured"]) == (1, 1)
        assert shift["most_distance"] < 0.5  # of another prompt's probabilities it is 5 or more
        assert "likeliest first token was the exact one" in " ".join(daemon.run("status").split())
        # The measurement left the exact prompt in the cache, and the first one is still there.
        for clock in ("a quarter past eight in the evening", "seven o'clock"):
            again = ask(daemon, clock)
            assert "cache" not in again["edgeagent"]
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 256
        assert again["choices"] == first["choices"]
