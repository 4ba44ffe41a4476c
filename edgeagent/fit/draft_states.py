"""Chooses how many earlier states a recurrent or hybrid model keeps, so that rejected draft tokens can be undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.config import EngineConfig
from edgeagent.fit.need import num_states
from edgeagent.fit.placement import FreeMemory
from edgeagent.sizes import memory_text
from edgeagent.types import FileShape, SettingChoice

_STATE_BYTES = 4  # for each value
# Three limits on the memory of the states: a share of the free memory; a share of the model's size, or _LITTLE_BYTES if
# that is more; and _MAX_BYTES.
_FREE_MEMORY_SHARE, _WEIGHTS_SHARE, _LITTLE_BYTES, _MAX_BYTES = 1 / 8, 1 / 2, 64 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class DraftStates:
    """How many earlier states a model keeps: one for each of the last `num_tokens` tokens of every sequence.

    Each of these tokens takes `token_bytes`, for all sequences together.
    """

    num_tokens: int
    token_bytes: int


def draft_states(shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory) -> DraftStates | None:
    """Return how many earlier states the model keeps; `num_tokens` is 0 if they would take too much memory.

    The first shape is the model, the others its draft model. Return None if drafts are off, if the model has no
    states, or if llama.cpp cannot keep its earlier states.
    """
    values = [layer.num_state_values for layer in shapes[0].layers]
    if not shapes[0].keeps_states or not any(values) or not config.draft_tokens:
        return None
    # A step also needs a buffer for the states of one layer.
    token_bytes = num_states(config) * (sum(values) + max(values)) * _STATE_BYTES
    on_gpus = sum(gpu.free_bytes for gpu in free_memory.gpus) if config.gpu_layers else 0
    most = float(_LITTLE_BYTES)
    # Without a draft model and without n-grams, only tokens that a grammar forces are drafted. Then the limit is
    # _LITTLE_BYTES.
    if config.draft_ngrams or len(shapes) > 1:
        most = min(max(most, _WEIGHTS_SHARE * shapes[0].num_bytes), _MAX_BYTES)
    most = min(most, _FREE_MEMORY_SHARE * (on_gpus or free_memory.ram_bytes))
    return DraftStates(min(config.draft_tokens, int(most // token_bytes)), token_bytes)


def describe_drafts(states: DraftStates, config: EngineConfig) -> SettingChoice:
    """Return how many tokens may be drafted and why, as the choice is shown to the user."""
    each = memory_text(states.token_bytes)
    if states.num_tokens == 0:
        why = f"the states needed to undo rejected drafts would take {each} for each token, which is too much"
        return SettingChoice("drafts", "none", "memory", why)
    by = "option" if states.num_tokens == config.draft_tokens else "memory"
    why = f"the states needed to undo rejected drafts take {each} for each token"
    return SettingChoice("drafts", f"up to {states.num_tokens}", by, why)
