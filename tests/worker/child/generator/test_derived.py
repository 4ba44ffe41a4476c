"""The settings that follow from a model's shape, as the status explains them."""

from __future__ import annotations

from typing import cast

import pytest

from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.worker.child.generator.host import derived_choices


class Tiles:
    """A runner of which only the tile of attention is known."""

    def __init__(self, attention: int) -> None:
        self.attention_tile = attention


@pytest.mark.parametrize(("attention", "expected"), [(64, "to 64 tokens"), (0, "none")])
def test_the_padding_names_the_tile(attention: int, expected: str) -> None:
    choices = derived_choices(cast(LlamaRunner, Tiles(attention)), 32, 112 * 1024)
    assert {choice.name: choice.value for choice in choices} == {
        "cache block": "32 tokens",
        "padding for attention": expected,
    }


def test_the_size_of_a_block_has_its_reason() -> None:
    [why] = [each.why for each in derived_choices(cast(LlamaRunner, Tiles(64)), 32, 112 * 1024) if "block" in each.name]
    assert "3.5 MiB, at 112 KiB for each token" in why
