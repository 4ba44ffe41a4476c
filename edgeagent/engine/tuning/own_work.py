"""Predicts how long a model's own work takes with a form of attention, from the measured times of a calibration.

A step's time has two parts: its tokens, and attention. Attention takes time for each pair of a token and an earlier
token of its sequence. Each pair of a token and a used cell of another sequence takes at most as much: plain attention
computes these pairs too, and flash attention skips most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgeagent.engine.tuning.workload import (
    FORM_WORKS,
    MAX_STREAMS,
    PROMPT_TOKENS,
    TILE_TOKENS,
    TURN_TOKENS,
    Workload,
)
from edgeagent.types import replace
from edgeagent.types.choices import StepSums

# A form of attention is never expected to take less than this share of the recorded seconds.
_LEAST_SHARE = 0.1
_NEEDED = frozenset(FORM_WORKS)


def expected_work(
    seconds: Mapping[str, Mapping[str, float]],
    sums: Sequence[StepSums],
    recorded_with: str,
    *,
    depth: int,
    parallel: int,
    scale: float,
) -> dict[str, tuple[StepSums, ...]]:
    """Return, by form of attention, the recorded `sums` with their expected seconds if this form is used.

    The result is empty if there are no sums, or if a needed kind of work was not measured with each form.

    - `seconds`: the measured seconds of each kind of work, by form.
    - `recorded_with`: the form with which the sums were recorded.
    - `depth`: how many cells were in use when work that needs used cells was measured.
    - `parallel`: how many sequences the context has. Up to MAX_STREAMS of them were measured as streams.
    - `scale`: the number of the model's layers, divided by the number of measured layers.

    Measured times lack the output matrix and all else that is not a layer. So they only give the difference between two
    forms, which is added to the recorded seconds.
    """
    predicted = {form: _predict(times, sums, depth, parallel, is_flash=form == "on") for form, times in seconds.items()}
    if not all(predicted.values()):
        return {}
    recorded = predicted[recorded_with]

    def expected_s(each: StepSums, form: str) -> float:
        added_s = scale * (predicted[form][each.kind] - recorded[each.kind])
        return max(_LEAST_SHARE * each.seconds, each.seconds + added_s)

    return {form: tuple(replace(each, seconds=expected_s(each, form)) for each in sums) for form in predicted}


def _predict(
    seconds: Mapping[str, float], sums: Sequence[StepSums], depth: int, parallel: int, *, is_flash: bool
) -> dict[str, float]:
    """Return the expected seconds of all steps in `sums`, by their kind. They are those of the measured layers only.

    Return an empty dict if a needed kind of work was not measured.
    """
    if not seconds.keys() >= _NEEDED:
        return {}
    num_streams = min(parallel, MAX_STREAMS)
    sizes = [1, TURN_TOKENS, PROMPT_TOKENS]
    alone_s = [seconds[work] for work in (Workload.TOKEN_ALONE, Workload.TURN_ALONE, Workload.PROMPT_ALONE)]
    if num_streams > 1:
        sizes.insert(1, num_streams)
        alone_s.insert(1, seconds[Workload.STREAMS_ALONE])
    found: dict[str, float] = {}
    for each in sums:
        num_tokens = each.num_tokens / max(1.0, each.num_steps)
        # Prompts of more tokens than measured take proportionally longer.
        factor = max(1.0, num_tokens / PROMPT_TOKENS)
        tokens_s = each.num_steps * factor * float(np.interp(num_tokens, sizes, alone_s))
        pair_s, other_s = _attention_s(seconds, each.kind, depth, num_streams)
        num_others = max(0.0, each.num_products - each.num_pairs)
        found[each.kind] = tokens_s + pair_s * each.num_pairs + other_s * num_others
        if is_flash and each.kind == "turn":
            # The engine pads a turn to a whole tile where that is faster (see CostModel.padded).
            pair_s, other_s = _attention_s(seconds, "prompt", depth, num_streams)
            padding = TILE_TOKENS / max(1.0, num_tokens)
            tile_s = each.num_steps * float(np.interp(TILE_TOKENS, sizes, alone_s))
            padded_s = tile_s + padding * (pair_s * each.num_pairs + other_s * num_others)
            found[each.kind] = min(found[each.kind], padded_s)
    return found


def _attention_s(seconds: Mapping[str, float], kind: str, depth: int, num_streams: int) -> tuple[float, float]:
    """Return the seconds of attention for two kinds of pairs, in steps of this kind.

    They are a token with an earlier token of its sequence, and a token with a used cell of another sequence.
    """

    def added_s(work: Workload, alone: Workload) -> float:
        return max(0.0, seconds[work] - seconds[alone])

    if kind == "prompt":
        pair_s = added_s(Workload.PROMPT_AFTER_TEXT, Workload.PROMPT_ALONE) / (PROMPT_TOKENS * depth)
        return pair_s, min(
            pair_s, added_s(Workload.PROMPT_BESIDE_IDLE, Workload.PROMPT_ALONE) / (PROMPT_TOKENS * depth)
        )
    own_s, others_s = (
        added_s(Workload.TOKEN_AFTER_TEXT, Workload.TOKEN_ALONE),
        added_s(Workload.TOKEN_BESIDE_IDLE, Workload.TOKEN_ALONE),
    )
    ratio = min(1.0, others_s / own_s) if own_s else 1.0
    if kind == "streams":
        # Each stream had its own share of the used cells.
        num_pairs = depth * (1 + ratio * (num_streams - 1))
        pair_s = added_s(Workload.STREAMS_AFTER_TEXT, Workload.STREAMS_ALONE) / num_pairs
    elif kind == "turn":
        pair_s = added_s(Workload.TURN_AFTER_TEXT, Workload.TURN_ALONE) / (TURN_TOKENS * depth)
    else:
        pair_s = own_s / depth
    return pair_s, ratio * pair_s
