"""How the measured choices for a model are explained to users."""

from __future__ import annotations

from edgeagent.cli.status import explained_choices

CHOICES = [
    {
        "name": "flash attention",
        "value": "on",
        "by": "measurement",
        "why": "`edgeagent tune` measured it",
    },
    {"name": "micro-batch", "value": "512", "by": "default", "why": "no other fits"},
    {"name": "cache block", "value": "32 tokens", "by": "model", "why": "they take 3.5 MiB"},
]


def test_each_choice_has_its_reason() -> None:
    text = "\n".join(explained_choices({"name": "m", "info": {"choices": CHOICES}}))
    assert text.splitlines() == [
        "m: flash attention on (measured): `edgeagent tune` measured it",
        "m: micro-batch 512 (the default): no other fits",
        "m: cache block 32 tokens (for this model): they take 3.5 MiB",
    ]


def test_a_model_that_is_not_loaded_has_none() -> None:
    for model in ({"name": "m", "info": None}, {"name": "m", "info": {}}):
        assert list(explained_choices(model)) == ["m: nothing was chosen yet"]
