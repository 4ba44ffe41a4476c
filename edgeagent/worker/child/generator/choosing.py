"""Chooses the engine's settings for a model from a calibration, which is saved from one load to the next.

The daemon stores the calibration, since the sandbox does not let the worker write files. Another process could have
changed it, so it is validated when it is read. A forged calibration can only lead to a slow choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import psutil
from msgspec.structs import replace

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.batch_padding import can_fill, usual_padding
from edgeagent.engine.llama.conditions import make_conditions
from edgeagent.engine.llama.context import attention_candidates, num_cells_of, num_sequences_of
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.probe import LlamaProbe, num_probe_cells
from edgeagent.engine.runner import OutOfCells
from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.calibration import MAX_DEPTH, Calibration, most_probes
from edgeagent.engine.tuning.choices import ContextSize, decide
from edgeagent.engine.tuning.padding import WeightPadding
from edgeagent.errors import EdgeAgentError
from edgeagent.types import MemoryKind
from edgeagent.types.choices import LearnedCosts, Measurements, SavedTuning, SettingChoice
from edgeagent.types.file_shape import LayerShape

# If a model has different kinds of layers and its file does not say which, their pattern probably repeats after this
# many layers. Files do not say which layers have a sliding window.
_PATTERN = 6
# A calibration that its time budget cut off is repeated at later loads, up to this many tries in total.
_MAX_TRIES = 3
# The probes may use this share of the free memory. If they need more, nothing is measured. A probe needs cells, and for
# each sequence a recurrent state and the logits of a token.
_MEMORY_SHARE = 0.25
_VALUE_BYTES = 4  # of a logit, or of a value of a state

_decoder = msgspec.json.Decoder(SavedTuning)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The result of `choose`.

    `choices` has all choices with their reasons. `tuning` has the calibration and the chosen settings, for the next
    load. `learned` is what earlier processes learned with the same settings; empty if they learned nothing.
    """

    attention: Attention
    weight_padding: WeightPadding | None
    choices: tuple[SettingChoice, ...]
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
    free_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available),
) -> Chosen:
    """Choose attention settings and weight padding by the calibration in `saved_tuning`. If it is not usable, measure.

    `layers` are the layers in the file's header, if known. With `is_replacing`, flash attention stays on or off as
    before; see Load. `on_measure` is called before measuring. Nothing is measured if there is only one choice, if
    calibration is off, after three tries, or if too little memory is free.
    """
    candidates = attention_candidates(model, config)
    size = ContextSize(num_cells_of(model, config), config.num_parallel, keeps_idle=config.cache_memory_bytes == 0)
    num_threads = config.threads or num_usable_cores()
    conditions = make_conditions(model, config, num_cells=size.num_cells, num_threads=num_threads)
    former = read_tuning(saved_tuning)
    valid = former if former is not None and former.conditions == conditions else None
    measurements, num_tries = (None, 0) if valid is None else (valid.measurements, valid.num_tries)
    is_enough = measurements is not None and measurements.is_whole
    probe_bytes = num_probe_cells(_depth(size)) * kv_bytes_per_token + _sequence_bytes(model, config, layers)
    has_room = most_probes(candidates) * probe_bytes <= _MEMORY_SHARE * free_bytes()
    if config.calibration_s > 0 and len(candidates) > 1 and not is_enough and num_tries < _MAX_TRIES and has_room:
        on_measure()
        measurements = _measure(model, config, candidates, size, layers) or measurements
        num_tries += 1
    decision = decide(
        candidates,
        measurements,
        size,
        num_layers=model.num_layers,
        option_value=config.flash_attention,
        former=former,
        work=() if valid is None else valid.work,
        keep_former_form=valid is not None and is_replacing,
        usual_padding=usual_padding(model),
    )
    taken = decision.attention
    # "auto" does not count as plain: on a GPU llama.cpp usually takes flash attention.
    now = SavedTuning(conditions, measurements, taken.flash != "off", taken.micro_batch, num_tries, work=decision.work)
    learned = former.learned if former is not None and _has_same_settings(former, now) else None
    return Chosen(taken, decision.weight_padding, decision.choices, now, learned or LearnedCosts())


def _has_same_settings(former: SavedTuning, now: SavedTuning) -> bool:
    """Whether step times that were learned with `former` hold for `now`."""
    former, now = (replace(each, measurements=None, num_tries=0, learned=None, work=()) for each in (former, now))
    return former == now


def _sequence_bytes(model: Model, config: EngineConfig, layers: Sequence[LayerShape]) -> int:
    """Return how many bytes a context's sequences need for their recurrent states and logits."""
    num_values = sum(each.num_state_values for each in layers) + model.num_tokens
    return num_sequences_of(model, config) * num_values * _VALUE_BYTES


def _depth(context_size: ContextSize) -> int:
    return max(1, min(MAX_DEPTH, context_size.num_cells // 2))


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
    model: Model,
    config: EngineConfig,
    candidates: Sequence[Attention],
    context_size: ContextSize,
    layers: Sequence[LayerShape],
) -> Measurements | None:
    depth = _depth(context_size)
    calibration = Calibration(
        lambda attention: LlamaProbe(model, config, attention, depth),
        min_layers=_min_layers(model, layers),
        max_layers=model.num_layers,
        depth=depth,
        has_padding=can_fill(model),
    )
    # Ignore errors: the trial, which comes next, reports what is wrong with the model.
    try:
        return calibration.measure(candidates, context_size, config.calibration_s)
    except (EdgeAgentError, OutOfCells):
        return None
