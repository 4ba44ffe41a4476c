"""The comparison of a response with an earlier one: hit, miss and its reason, not found, unavailable."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.api.responses.event_json import diagnose


def response(num_input: int, num_cached: int, **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": num_input, "input_tokens_details": {"cached_tokens": num_cached}}
    return {"model": "builtin", "tools": [], "reasoning": None, "usage": usage, **fields}


EARLIER = response(900, 0)


def test_a_reused_prompt_is_a_hit() -> None:
    assert diagnose(EARLIER, response(1500, 880), is_remote=False) == {"type": "cache_hit"}
    assert diagnose(EARLIER, response(400, 390), is_remote=False) == {"type": "cache_hit"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "input_changed"),
        ({"model": "other", "tools": [{"name": "f"}]}, "model_changed"),
        ({"tools": [{"name": "f"}]}, "tools_changed"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
    ],
)
def test_a_miss_has_its_first_reason(fields: dict[str, Any], reason: str) -> None:
    assert diagnose(EARLIER, response(1000, 20, **fields), is_remote=False) == {
        "type": "cache_miss",
        "reason": reason,
        "comparison_reusable_tokens": 900,
        "cache_missed_tokens": 880,
    }


def test_there_may_be_nothing_to_compare() -> None:
    for earlier in (None, {**EARLIER, "usage": None}):
        found = diagnose(earlier, response(9, 0), is_remote=False)
        assert found == {"type": "comparison_response_not_found"}
    assert diagnose(EARLIER, response(9, 0), is_remote=True) == {"type": "unavailable"}
