"""Chooses the form of attention for a model from measurements, which are saved from one load to the next.

The daemon stores them, since the sandbox does not let the worker write files. Another process could have changed them,
so they are validated when they are read. Forged ones can only lead to a slow choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention, choose_form, measure_forms
from edgeagent.engine.llama.batch_padding import attention_tile, can_fill
from edgeagent.engine.llama.conditions import make_conditions
from edgeagent.engine.llama.context import attention_candidates, num_cells_of, num_sequences_of
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.probe import LlamaProbe, num_probe_cells
from edgeagent.engine.runner import OutOfCells
from edgeagent.errors import EdgeAgentError
from edgeagent.types import LayerShape, MemoryKind, replace
from edgeagent.types.choices import LearnedCosts, Measurements, SavedTuning, SettingChoice
from edgeagent.usable import usable_memory

# The forms are measured again at each load whose number is a multiple of this, since one measurement may have been
# disturbed, and machines change. A measurement that its time budget cut off is repeated at the next loads, up to
# _MAX_TRIES in total.
_LOADS_BETWEEN = 8
_MAX_TRIES = 3
_SHARE_OF_FIRST = 0.6  # of the time, for the usual number of threads; the rest is for one thread
# The text of the measurements has a quarter of the context's cells, within these limits.
_MIN_DEPTH, _MAX_DEPTH = 256, 4096
# If a model has different kinds of layers and its file does not say which, their pattern probably repeats after this
# many layers. Files do not say which layers have a sliding window.
_PATTERN = 6
# The probes may use this share of the free memory. If they need more, the text is shorter, or nothing is measured. A
# probe needs cells, and for each sequence a recurrent state and the logits of a token.
_MEMORY_SHARE = 0.25
_VALUE_BYTES = 4  # of a logit, or of a value of a state

_decoder = msgspec.json.Decoder(SavedTuning)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of `choose`.

    `choice` has the reason. `tuning` has the measurements and the choice, for the next load. `learned` is what earlier
    processes learned with the same settings; empty if they learned nothing.
    """

    attention: Attention
    choice: SettingChoice
    tuning: SavedTuning
    learned: LearnedCosts


def choose(
    model: Model,
    config: EngineConfig,
    saved_tuning: bytes,
    on_measure: Callable[[], None],
    *,
    kv_bytes_per_token: float = 0.0,
    layers: Sequence[LayerShape] = (),
    is_replacing: bool = False,
    free_bytes: Callable[[], int] = lambda: usable_memory().available,
) -> Chosen:
    """Choose the form of attention by the measurements in `saved_tuning`. If they are not usable or old, measure.

    `layers` are the layers in the file's header, if known. With `is_replacing`, nothing is measured, and flash
    attention stays on or off as before; see Load. `on_measure` is called before measuring. Nothing is measured either
    if only one form is possible, if `calibration_s` is 0, or if too little memory is free.
    """
    candidates, num_cells = attention_candidates(model, config), num_cells_of(model, config)
    num_threads = config.threads or num_usable_cores()
    conditions = make_conditions(model, config, num_cells=num_cells, num_threads=num_threads)
    former = read_tuning(saved_tuning)
    is_valid = former is not None and former.conditions == conditions
    measurements, num_loads = (former.measurements, former.num_loads) if former and is_valid else (None, 0)
    is_due = num_loads % _LOADS_BETWEEN < (1 if measurements is not None else _MAX_TRIES)
    if config.calibration_s > 0 and len(candidates) > 1 and is_due and not is_replacing:
        depth = _affordable_depth(model, config, layers, kv_bytes_per_token, len(candidates), free_bytes())
        if depth:
            on_measure()
            measurements = _measure(model, config, candidates, depth, layers) or measurements
    choice = choose_form(
        candidates,
        measurements,
        num_layers=model.num_layers,
        option_value=config.flash_attention,
        kept=None if former is None else "on" if former.is_flash else "off",
        is_fixed=is_valid and is_replacing,
    )
    taken = next(each for each in candidates if each.flash == choice.value)
    # "auto" does not count as plain: on a GPU llama.cpp usually takes flash attention.
    now = SavedTuning(conditions, measurements, taken.flash != "off", num_loads + (not is_replacing))
    learned = former.learned if former is not None and _has_same_settings(former, now) else None
    return Chosen(taken, choice, now, learned or LearnedCosts())


def _has_same_settings(former: SavedTuning, now: SavedTuning) -> bool:
    """Whether step times that were learned with `former` hold for `now`."""
    return (former.conditions, former.is_flash) == (now.conditions, now.is_flash)


def _affordable_depth(
    model: Model,
    config: EngineConfig,
    layers: Sequence[LayerShape],
    kv_bytes_per_token: float,
    num_probes: int,
    num_free_bytes: int,
) -> int:
    """Return the length of the text to measure behind; 0 if too little memory is free for probes."""
    num_values = sum(each.num_state_values for each in layers) + model.num_tokens
    sequence_bytes = num_sequences_of(model, config) * num_values * _VALUE_BYTES
    depth = max(1, min(_MAX_DEPTH, num_cells_of(model, config) // 4))
    while num_probes * (num_probe_cells(depth) * kv_bytes_per_token + sequence_bytes) > _MEMORY_SHARE * num_free_bytes:
        if depth < 2 * _MIN_DEPTH:
            return 0
        depth //= 2
    return depth


def read_tuning(content: bytes) -> SavedTuning | None:
    """Return the tuning in `content`; None if `content` is empty or not valid."""
    try:
        return _decoder.decode(content) if content else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def period(layers: Sequence[LayerShape]) -> int:
    """Return after how many layers the pattern of layer kinds repeats; 0 if it does not repeat.

    Layers are of the same kind if they agree in three things: KV cells or not, recurrent state or not, experts or not.
    """
    kinds = [(each.num_k_values > 0, each.num_state_values > 0, each.num_expert_bytes > 0) for each in layers]
    lengths = range(1, len(kinds) // 2 + 1)
    return next((length for length in lengths if kinds[length:] == kinds[:-length]), 0)


def _min_layers(model: Model, layers: Sequence[LayerShape]) -> int:
    """Return the fewest layers to calibrate with: enough for all kinds of the model's layers, in their proportion."""
    known = period(layers)
    if model.memory_kind is MemoryKind.FULL_ATTENTION and (known == 1 or not layers):
        return 1
    return min(known if known > 1 else _PATTERN, model.num_layers)


def _measure(
    model: Model, config: EngineConfig, candidates: Sequence[Attention], depth: int, layers: Sequence[LayerShape]
) -> Measurements | None:
    # If other programs use the cores, threads wait for each other, and no time counts. Then one thread is measured.
    alone = replace(config, threads=1)
    for tried, share in ((config, _SHARE_OF_FIRST), (alone, 1 - _SHARE_OF_FIRST)):
        # Ignore errors: the trial, which comes next, reports what is wrong with the model.
        with contextlib.suppress(EdgeAgentError, OutOfCells):
            found = measure_forms(
                partial(LlamaProbe, model, tried, depth=depth),
                candidates,
                depth=depth,
                min_layers=_min_layers(model, layers),
                max_layers=model.num_layers,
                budget_s=share * config.calibration_s,
                has_tiles=can_fill(model) and attention_tile(config.kv_type_k, config.kv_type_v) > 0,
            )
            if found is not None:
                return found
    return None
