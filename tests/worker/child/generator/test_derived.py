"""The settings that follow from a model's shape, as the status explains them."""

from __future__ import annotations

from typing import cast

import pytest

from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.worker.child.generator.derived import derived_choices


class Tiles:
    """A runner of which only the tiles are known."""

    def __init__(self, weights: int, attention: int) -> None:
        self.weight_tile, self.attention_tile = weights, attention


@pytest.mark.parametrize(
    ("weights", "attention", "expected"),
    [(4, 64, "to 4 tokens and to 64 tokens"), (8, 0, "to 8 tokens"), (0, 0, "none")],
)
def test_the_padding_names_the_tiles(weights: int, attention: int, expected: str) -> None:
    choices = derived_choices(cast(LlamaRunner, Tiles(weights, attention)), 32, 112 * 1024)
    assert {choice.name: choice.value for choice in choices} == {
        "KV cells": "one pool",
        "cache block": "32 tokens",
        "padding": expected,
    }


def test_the_size_of_a_block_has_its_reason() -> None:
    [why] = [
        each.why for each in derived_choices(cast(LlamaRunner, Tiles(4, 64)), 32, 112 * 1024) if "block" in each.name
    ]
    assert "3.5 MiB, at 112 KiB for each token" in why
