"""How the measured choices for a model are explained to users."""

from __future__ import annotations

from edgeagent.cli.status import explained_choices

CHOICES = [
    {
        "name": "flash attention",
        "value": "on",
        "by": "measurement",
        "why": "mean time over 2 kinds of work, on being 1: off 1.30",
        "alternatives": [
            {"value": "on", "work_ms": {"prompt alone": 1472.25, "token behind": 23.0}},
            {"value": "off", "work_ms": {"prompt alone": 516.4, "token behind": 30.12}},
        ],
    },
    {"name": "micro-batch", "value": "512", "by": "default", "why": "no other fits", "alternatives": []},
    {"name": "cache block", "value": "32 tokens", "by": "model", "why": "they take 3.5 MiB", "alternatives": []},
]


def test_each_choice_has_its_reason_and_its_numbers() -> None:
    text = "\n".join(explained_choices({"name": "m", "info": {"choices": CHOICES}}))
    assert text.splitlines() == [
        "m: flash attention on (measured): mean time over 2 kinds of work, on being 1: off 1.30",
        "                         on    off",
        "  prompt alone, ms  1,472.2  516.4",
        "  token behind, ms     23.0   30.1",
        "m: micro-batch 512 (the default): no other fits",
        "m: cache block 32 tokens (for this model): they take 3.5 MiB",
    ]


def test_a_model_that_is_not_loaded_has_none() -> None:
    for model in ({"name": "m", "info": None}, {"name": "m", "info": {}}):
        assert list(explained_choices(model)) == ["m: nothing was chosen yet"]
