"""/metrics and the log of a real daemon with a real model."""

from __future__ import annotations

import json
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import Daemon
from tests.patience import patient

CANARY = "c4n4ry"


def scrape(daemon: Daemon) -> dict[str, float]:
    """Return each series' sum over its labels, by name."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=patient(60)) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    sums: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def chat(daemon: Daemon, text: str) -> dict[str, int]:
    """Ask something; return the usage that the answer reports."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24}
    request = urllib.request.Request(
        f"{daemon.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=patient(60)) as response:
        usage: dict[str, int] = json.load(response)["usage"]
    return usage


def test_numbers_are_the_model_s_own(daemon: Daemon) -> None:
    daemon.wait_until_idle()
    before = scrape(daemon)
    text = f"Please tell me what the word {CANARY} means, and where it comes from."
    usages = [chat(daemon, text), chat(daemon, text)]
    daemon.wait_until_idle()
    after = scrape(daemon)

    def moved(name: str) -> float:
        return after[f"edgeagent_{name}"] - before.get(f"edgeagent_{name}", 0.0)

    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)  # type: ignore[index]
    assert cached > 0
    assert moved("prefix_cache_hit_tokens_total") == cached
    assert moved("prefill_tokens_total") == sum(usage["prompt_tokens"] for usage in usages) - cached
    assert moved("decode_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert moved("generations_total") == moved("first_token_seconds_count") == 2
    assert moved("stage_seconds_count") == 2 * 7
    # The worker's numbers come with its pongs, and the loop measures its lag at intervals.
    lag = "edgeagent_loop_lag_seconds_count"
    deadline_s = time.monotonic() + patient(30)
    while not after.get("edgeagent_kv_cells") or after[lag] == before[lag]:
        assert time.monotonic() < deadline_s
        after = scrape(daemon)
    assert after["edgeagent_kv_cells"] >= after["edgeagent_kv_cells_used"]
    assert after["edgeagent_worker_resident_bytes"] > 0
    log = daemon.log.read_text()
    assert log.count("generation ended") >= 2
    assert CANARY not in log
