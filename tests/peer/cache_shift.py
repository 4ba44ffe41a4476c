"""What a clock at the start of a long prompt costs with `--cache-shift`: `python -m tests.peer.cache_shift [tokens]`.

It runs a daemon with SmolLM2, computes a prompt, and then prompts that differ in the clock. It prints the time to the
first token as a share of that of the first prompt, and the measured distance to exact answers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.integration.conftest import serving
from tests.smollm2 import MODEL

CLOCKS = ("half past seven", "07:31", "Monday, 7:32 in the morning, 4 degrees and rain")
_SENTENCE = "Device {} in room {} is {} and can be turned on and off by its name. "  # about 20 tokens


def main(num_tokens: int) -> None:
    """Measure a prompt of about `num_tokens` tokens."""
    house = "".join(_SENTENCE.format(n, n % 9, ("on", "off")[n % 2]) for n in range(num_tokens // 20))
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder) / "state", str(MODEL), "--cache-shift", "--ctx", "8192", "--parallel", "1") as daemon,
        httpx.Client(base_url=daemon.url, timeout=600) as http,
    ):
        whole_ms = 0.0
        for clock in ("noon", *CLOCKS):
            system = f"You are the voice assistant of a house. It is {clock} now. {house}"
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": "Which device is in room 3?"},
            ]
            body = {"messages": messages, "max_tokens": 1, "temperature": 0}
            answer = http.post("/v1/chat/completions", json=body).json()
            first_ms = answer["edgeagent"]["stages_ms"]["first_token"]
            whole_ms = whole_ms or first_ms
            num_prompt = answer["usage"]["prompt_tokens"]
            num_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            print(
                f"{clock}: {num_prompt} tokens, {num_prompt - num_cached} computed, first token after "
                f"{first_ms:.0f} ms, {first_ms / whole_ms:.1%} of a prefill"
            )
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            shift = http.get("/edgeagent/status").json()["models"][0]["worker"]["shift"]
            if shift["num_measured"]:
                break
            time.sleep(0.5)
        print(shift)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
