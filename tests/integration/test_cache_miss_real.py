"""A clock in the instructions: the answer says what it cost; log and status say what to do, without its text."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.conftest import Daemon
from tests.patience import patient

HOUSE = " ".join(f"Device {number} is in room {number % 9} and can be turned on and off." for number in range(40))


def ask(daemon: Daemon, clock: str) -> dict[str, Any]:
    """Ask with a clock at the beginning of the instructions; return the last chunk of the stream."""
    instructions = f"You are the voice assistant of a house. It is {clock} now. {HOUSE}"
    messages = [{"role": "system", "content": instructions}, {"role": "user", "content": "Is the light on?"}]
    body = {"messages": messages, "max_tokens": 2, "temperature": 0}
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60))
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_a_clock_in_the_instructions_is_named(own_daemon: Daemon) -> None:
    first = ask(own_daemon, "seven o'clock")
    assert "cache" not in first["edgeagent"]
    for clock in ("eight o'clock", "nine o'clock", "ten o'clock"):
        answer = ask(own_daemon, clock)
        miss = answer["edgeagent"]["cache"]["miss"]
        computed = answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert miss["part"] == "instructions"
        assert miss["shared_tokens"] < 40 < 256 < miss["recomputed_tokens"] < computed
        assert 0 < miss["recomputed_ms"] <= answer["edgeagent"]["stages_ms"]["prefill"]
        assert miss["now"].startswith(clock.split()[0])
        assert "o'clock" in miss["earlier"]
        assert miss["earlier"] != miss["now"]
    assert "cache" not in ask(own_daemon, "ten o'clock")["edgeagent"]
    log = own_daemon.log.read_text()
    assert log.count("change at about token") == 1
    assert not any(word in log for word in ("o'clock", "seven", "Device"))
    assert "Move such text (a clock" in " ".join(own_daemon.run("status").split())
    metrics = httpx.get(f"{own_daemon.url}/metrics").text
    assert 'edgeagent_recomputed_tokens_total{model="builtin",part="instructions"}' in metrics


def test_a_response_is_compared_with_an_earlier_one(daemon: Daemon) -> None:
    def create(clock: str, compared: str) -> dict[str, Any]:
        instructions = f"You are the assistant of a hotel. It is {clock} now. {HOUSE}"
        body = {"instructions": instructions, "input": "Is the light on?", "max_output_tokens": 2}
        options = {"prompt_cache_options": {"comparison_response_id": compared}} if compared else {}
        reply = httpx.post(f"{daemon.url}/v1/responses", json={**body, **options}, timeout=patient(60))
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    first = create("noon", "")
    assert "prompt_cache_diagnostics" not in first
    assert create("noon", first["id"])["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    found = create("midnight", first["id"])["prompt_cache_diagnostics"]
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed")
    assert found["cache_missed_tokens"] > 256
    gone = create("midnight", "resp_gone")["prompt_cache_diagnostics"]
    assert gone == {"type": "comparison_response_not_found"}
