"""Describes the settings that follow from a model's shape. No option sets them, and no measurement decides them."""

from __future__ import annotations

from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_BLOCK_TOKENS
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.types.choices import SettingChoice

_BY = "model"


def derived_choices(runner: LlamaRunner, block_tokens: int, token_bytes: float) -> tuple[SettingChoice, ...]:
    """Return the settings that follow from the model's shape, for the status.

    `token_bytes` is how many bytes one token takes in a cached block.
    """
    return (
        SettingChoice(
            "KV cells",
            "one pool",
            _BY,
            "sequences share prefixes without a copy, and a prefix that leaves the cells makes room for any other",
        ),
        _block(block_tokens, token_bytes),
        _padding(runner),
    )


def _block(num_tokens: int, token_bytes: float) -> SettingChoice:
    size = f"they take {num_tokens * token_bytes / (1 << 20):.2g} MiB, at {token_bytes / 1024:.3g} KiB for each token"
    bounds = (
        f"a block has {MIN_BLOCK_TOKENS} to {MAX_BLOCK_TOKENS} tokens, and is small enough to be read between steps"
    )
    return SettingChoice("cache block", f"{num_tokens} tokens", _BY, f"{size}; {bounds}")


def _padding(runner: LlamaRunner) -> SettingChoice:
    name, tile = "padding for attention", runner.attention_tile
    if not tile:
        why = "this form of attention, or this model's memory, has no tiles that padding would fill"
        return SettingChoice(name, "none", _BY, why)
    why = "flash attention computes whole tiles; a batch is padded only if that should be faster"
    return SettingChoice(name, f"to {tile} tokens", _BY, why)
