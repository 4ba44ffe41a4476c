"""The form of attention of a context: which forms are possible, how long each takes, and which one to use.

With flash attention, each token reads only the cells that it attends to. Plain attention multiplies all tokens with the
used cells of all sequences. It takes two matrix products and a buffer of scores (cells x heads x tokens). Which form is
faster depends on the model and the machine, so three things are measured when a model is loaded, all behind a text: a
chunk of a prompt, a short turn, and a token. The form with which a turn of an agent takes the least time is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Protocol

from edgeagent.config import UNQUANTIZED_KV_TYPES, EngineConfig
from edgeagent.engine.costs.step_shape import FLASH_TILE
from edgeagent.types.choices import Alternative, FormTimes, Measurements, SettingChoice

PROMPT_TOKENS, TURN_TOKENS = 128, 40
"""The tokens of the measured chunk of a prompt, and of the measured short turn."""
# A turn of an agent: a chunk of a prompt (results of tools), a short turn, and an answer of this many tokens.
_ANSWER_TOKENS = 64
# Another form must be better than the default by _MARGIN, or better than an earlier choice by _KEPT_MARGIN, since
# blocks on disk fit one form. Repeated measurements differ by about as much.
_MARGIN, _KEPT_MARGIN = 0.05, 0.15
# The micro-batch of plain attention, and a smaller one if its buffer of scores takes too much memory. Larger ones are
# slower, since the scores no longer fit into the processor's cache: with 128, SmolLM2-135M computed 1,400 tokens at 139
# tokens/s, with 512 at 126, and with flash attention at 144 (AMD EPYC, one thread).
_MICRO_BATCH, _SMALLER_MICRO_BATCH = PROMPT_TOKENS, 64
_MAX_SCORES_BYTES = 192 << 20
# The most rounds, if there is time. In each round, a token is measured _NUM_TOKEN_REPEATS times.
_MAX_ROUNDS, _NUM_TOKEN_REPEATS = 3, 3
# The number of measured layers is chosen so that two rounds should take this share of the time.
_PLANNED_SHARE = 0.5
# A sample counts if the threads had cores for at least the share _UNDISTURBED of its time. Threads wait for each other,
# so one thread without a core slows all of them. Systems measure CPU time in ticks of up to 10 ms, so a sample shorter
# than _MIN_COUNTED_S always counts.
_UNDISTURBED = 0.8
_MIN_COUNTED_S = 0.02
_MIN_S = 1e-6


@dataclass(frozen=True, slots=True)
class Attention:
    """The form of attention of a context ("auto": llama.cpp decides), and its micro-batch in tokens."""

    flash: Literal["auto", "on", "off"]
    micro_batch: int


def possible_attention(
    config: EngineConfig, *, num_heads: int, num_cells: int, is_on_gpu: bool
) -> tuple[Attention, ...]:
    """Return the settings that a context of `num_cells` may use: one for each form, the default first."""
    flash, plain = Attention("on", config.batch), _plain(config, num_heads * num_cells)
    if config.flash_attention == "on":
        return (flash,)
    if config.flash_attention == "off":
        return (plain or Attention("off", min(config.batch, _SMALLER_MICRO_BATCH)),)
    if is_on_gpu or config.kv_type_v not in UNQUANTIZED_KV_TYPES:
        # On a GPU llama.cpp chooses. Plain attention does not support a quantized V cache.
        return (Attention("auto", config.batch),)
    return (flash,) if plain is None else (flash, plain)


def _plain(config: EngineConfig, num_scores: int) -> Attention | None:
    """Return plain attention with the largest micro-batch whose buffer fits; None if none does.

    `num_scores`: the scores of one token.
    """
    sizes = {min(config.batch, size) for size in (_MICRO_BATCH, _SMALLER_MICRO_BATCH)}
    fitting = [size for size in sizes if 4 * num_scores * size <= _MAX_SCORES_BYTES]
    return Attention("off", max(fitting)) if fitting else None


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one measurement, and the share of that time in which the threads had cores."""

    seconds: float
    share: float = 1.0


class Probe(Protocol):
    """A context with one form of attention, which computes only the first layers, behind a text."""

    def measure(self, num_tokens: int, num_layers: int, deadline_s: float) -> Sample | None:
        """Measure a step of `num_tokens` with the first `num_layers` layers. Return None if the deadline passes."""
        ...

    def close(self) -> None:
        """Free the context."""
        ...


def measure_forms(
    open_probe: Callable[[Attention], Probe],
    forms: Sequence[Attention],
    *,
    depth: int,
    min_layers: int,
    max_layers: int,
    budget_s: float,
    has_tiles: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Measurements | None:
    """Measure the forms for at most about `budget_s` seconds. Return None if something could not be measured.

    - Only the first layers are computed. Layers are alike, so an 8 B model takes no longer than a small one. The number
      of layers is a multiple of `min_layers`, at most `max_layers`.
    - The forms are measured alternately, so that other load affects all of them. The shortest time counts.
    - A sample is dropped if other programs took the cores meanwhile.

    `depth`: how many cells each probe's text has. `has_tiles`: with flash attention, the engine pads a short turn to a
    whole tile if that is faster (see CostModel.padded).
    """
    deadline_s = clock() + budget_s
    found: list[dict[int, float]] = [{} for _ in forms]
    with ExitStack() as stack:
        probes: list[Probe] = []
        for form in forms:
            probes.append(open_probe(form))
            stack.callback(probes[-1].close)
        num_layers = _layers_to_measure(probes, min_layers, max_layers, deadline_s, clock)
        if not num_layers:
            return None
        for num_tokens in _MAX_ROUNDS * (PROMPT_TOKENS, FLASH_TILE, TURN_TOKENS, *_NUM_TOKEN_REPEATS * (1,)):
            for probe, seconds in zip(probes, found, strict=True):
                sample = probe.measure(num_tokens, num_layers, deadline_s)
                if sample is None:
                    return _measurements(forms, found, depth, num_layers, has_tiles=has_tiles)
                if sample.share >= _UNDISTURBED or sample.seconds < _MIN_COUNTED_S:
                    seconds[num_tokens] = min(max(sample.seconds, _MIN_S), seconds.get(num_tokens, math.inf))
    return _measurements(forms, found, depth, num_layers, has_tiles=has_tiles)


def _layers_to_measure(
    probes: Sequence[Probe], min_layers: int, max_layers: int, deadline_s: float, clock: Callable[[], float]
) -> int:
    """Load the weights of the first layers, and return how many layers to compute; 0 if the deadline passes."""
    took_s = 0.0
    for probe in [*probes, probes[0]]:
        sample = probe.measure(TURN_TOKENS, min_layers, deadline_s)
        if sample is None:
            return 0
        took_s = max(sample.seconds, _MIN_S)
    num_tokens = PROMPT_TOKENS + FLASH_TILE + TURN_TOKENS * (1 + _NUM_TOKEN_REPEATS / 4)
    round_s = len(probes) * took_s / min_layers * num_tokens / TURN_TOKENS
    num_layers = min(max_layers, int(_PLANNED_SHARE * (deadline_s - clock()) / (2 * round_s)))
    return max(min_layers, num_layers - num_layers % min_layers)


def _measurements(
    forms: Sequence[Attention], found: Sequence[dict[int, float]], depth: int, num_layers: int, *, has_tiles: bool
) -> Measurements | None:
    times = []
    for form, seconds in zip(forms, found, strict=True):
        if not seconds.keys() >= {PROMPT_TOKENS, FLASH_TILE, TURN_TOKENS, 1}:
            return None
        is_flash = form.flash == "on"
        tile_s = seconds[FLASH_TILE] if is_flash and has_tiles else None
        times.append(FormTimes(is_flash, seconds[PROMPT_TOKENS], seconds[TURN_TOKENS], seconds[1], tile_s))
    return Measurements(depth, num_layers, tuple(times))


def choose_form(
    candidates: Sequence[Attention],
    measurements: Measurements | None,
    *,
    num_layers: int,
    option_value: str = "auto",
    kept: str | None = None,
    is_fixed: bool = False,
) -> SettingChoice:
    """Choose the form of one of the candidates. The first one is the default.

    `option_value`: the value of the option --flash-attention. `kept`: the form that was chosen before; None if there
    was none. `is_fixed`: the earlier form must be used, if it is possible.
    """
    forms, name = [candidate.flash for candidate in candidates], "flash attention"
    default = forms[0]
    if option_value != "auto":
        return SettingChoice(name, default, "option", f"--flash-attention {option_value} was asked for")
    if default == "auto":
        return SettingChoice(name, default, "default", "llama.cpp decides on a GPU, and for a quantized V cache")
    if len(forms) == 1:
        why = "plain attention's buffer would take too much memory for this context"
        return SettingChoice(name, default, "default", why)
    usual = kept if kept in forms else default
    assert usual is not None
    if is_fixed and kept in forms:
        return SettingChoice(name, usual, "default", "kept for the requests that continue after a worker's end")
    times = {} if measurements is None else {_form_of(each): each for each in measurements.forms}
    if measurements is None or not times.keys() >= set(forms):
        return SettingChoice(name, usual, "default", "it was not measured, or the time for it was too short")
    turns_s = {form: _turn_s(times[form]) * num_layers / measurements.num_layers for form in forms}
    best = min(turns_s, key=lambda form: turns_s[form])
    margin = _KEPT_MARGIN if kept in forms else _MARGIN
    taken = best if turns_s[best] < (1 - margin) * turns_s[usual] else usual
    rest = ", ".join(f"{form} {turns_s[form] / turns_s[taken]:.2f}" for form in forms if form != taken)
    why = f"time of a turn behind {measurements.depth} tokens, {taken} being 1: {rest}"
    if taken != best:
        which = "was chosen before" if kept in forms else "is the default"
        why += f"; {taken} {which}, and another must be better by {margin:.0%}"
    scale = 1000 * num_layers / measurements.num_layers
    alternatives = tuple(
        Alternative(
            form,
            {
                f"{PROMPT_TOKENS} prompt tokens": round(scale * times[form].prompt_s, 3),
                f"turn of {TURN_TOKENS} tokens": round(scale * _short_turn_s(times[form]), 3),
                "token": round(scale * times[form].token_s, 3),
            },
        )
        for form in forms
    )
    return SettingChoice(name, taken, "measurement", why, alternatives)


def _form_of(times: FormTimes) -> str:
    return "on" if times.is_flash else "off"


def _turn_s(times: FormTimes) -> float:
    """Return the seconds of a turn of an agent; see _ANSWER_TOKENS."""
    return times.prompt_s + _short_turn_s(times) + _ANSWER_TOKENS * times.token_s


def _short_turn_s(times: FormTimes) -> float:
    return times.turn_s if times.tile_s is None else min(times.turn_s, times.tile_s)
