"""Checks whether a model can use speculation: its memory must be able to remove refused drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import CUTTABLE
from edgeagent.engine.trial import can_take_back
from edgeagent.types import Choice

_DRAFTS = "drafts"


def check_drafts(
    model: Model, runner: LlamaRunner, choices: Sequence[Choice], on_try: Callable[[str], None]
) -> tuple[str, tuple[Choice, ...]]:
    """Return why a model cannot use drafts ("" if it can), and the model's choices.

    If the model can use drafts, these are `choices`. If not, the choice named "drafts" is replaced, or added if it is
    missing: its value is "none", and it says why. `on_try` is called before a trial computation. The runner's cells
    must be empty before the call, and are empty again afterwards. Raise OutOfCells or InternalError if the trial fails.
    """
    if model.memory_kind in CUTTABLE:
        return "", tuple(choices)
    planned = next((choice for choice in choices if choice.name == _DRAFTS), None)
    if runner.max_drafts:
        on_try(f"removing refused drafts of {model.path}")
        if can_take_back(runner):
            return "", tuple(choices)
        by, why = "measurement", "after a refused draft was removed, the model computed other results than before"
    elif planned is not None and planned.value == "none":
        by, why = planned.by, planned.why
    else:
        architecture = model.metadata("general.architecture") or "unknown"
        by = "default"
        why = (
            f"a refused draft cannot be removed from a {model.memory_kind} memory: llama.cpp keeps no earlier states "
            f"of it for the architecture {architecture}"
        )
    others = [choice for choice in choices if choice is not planned]
    return why, (*others, Choice(_DRAFTS, "none", by, why))
