"""Checks whether a model can use speculation: its memory must be able to remove refused drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeagent.engine.first_steps import FIRST_STEPS, can_rewind
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import CUTTABLE, OutOfCells
from edgeagent.errors import InternalError
from edgeagent.types import SettingChoice
from edgeagent.worker.protocol import Load, rewind_part

_DRAFTS = "drafts"


def check_drafts(
    model: Model, runner: LlamaRunner, load: Load, choices: Sequence[SettingChoice], on_part: Callable[[str], None]
) -> tuple[str, tuple[SettingChoice, ...]]:
    """Return why a model cannot use drafts, and its choices. If it can, return "" and `choices`.

    If it cannot, the choice named "drafts" is set to "none", with the reason, in the returned choices. Before a
    computation that may end the process, `on_part` gets a description of it. The runner's cells must be empty before
    the call, and are empty again afterwards.
    """
    if load.why_no_drafts:
        return load.why_no_drafts, _without(choices, "trial", load.why_no_drafts)
    if model.memory_kind in CUTTABLE:
        return "", tuple(choices)
    planned = next((choice for choice in choices if choice.name == _DRAFTS), None)
    if runner.max_rewind:
        on_part(rewind_part(load.path))
        try:
            if can_rewind(runner):
                return "", tuple(choices)
            by, why = "measurement", "after a refused draft was removed, the model computed other results than before"
        except (InternalError, OutOfCells) as error:
            by, why = "trial", f"removing refused drafts was tried and failed ({error})"
        finally:
            on_part(f"{FIRST_STEPS} of {load.path}")  # which are computed next
    elif planned is not None and planned.value == "none":
        by, why = planned.by, planned.why
    else:
        architecture = model.metadata("general.architecture") or "unknown"
        by = "default"
        why = (
            f"a refused draft cannot be removed from a {model.memory_kind} memory: llama.cpp keeps no earlier states "
            f"of it for the architecture {architecture}"
        )
    return why, _without(choices, by, why)


def _without(choices: Sequence[SettingChoice], by: str, why: str) -> tuple[SettingChoice, ...]:
    """Return `choices` with the choice named "drafts" set to "none", for the reason `why`."""
    return (*(choice for choice in choices if choice.name != _DRAFTS), SettingChoice(_DRAFTS, "none", by, why))
