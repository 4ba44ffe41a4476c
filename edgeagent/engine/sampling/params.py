"""Sampling parameters: their ranges, and defaults for those that are not set."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.errors import InvalidRequest
from edgeagent.types import SamplingParams


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling parameters that are all in range.

    A `top_k` of 0 or -1 and a `repeat_last_n` of -1 mean no limit; a `repeat_last_n` of 0 switches penalties off. If
    `seed` is None, a random seed is used. `logit_bias`: pairs of a token and the number to add to its logit.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def has_penalties(self) -> bool:
        factors = (self.repeat_penalty - 1.0, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(factors)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "repeat_last_n": (-1, 2**31 - 1),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}


def is_in_range(field: str, value: float) -> bool:
    low, high = _RANGES[field]
    return low <= value <= high


def resolve(params: SamplingParams, defaults: SamplingParams) -> ResolvedSampling:
    """Return `params` with each unset field taken from `defaults`, or else from the defaults of llama.cpp.

    Raise InvalidRequest if a value is out of range.
    """
    values: dict[str, float] = {}
    for field, (low, high) in _RANGES.items():
        asked = getattr(params, field)
        value = getattr(defaults, field) if asked is None else asked
        if value is None:
            continue
        if not is_in_range(field, value):
            raise InvalidRequest(f"{field} is {value}; it must lie between {low:g} and {high:g}", param=field)
        values[field] = value
    for token, bias in params.logit_bias:
        if not -100.0 <= bias <= 100.0:
            raise InvalidRequest(
                f"logit_bias of token {token} is {bias}; it must lie between -100 and 100", param="logit_bias"
            )
    seed = defaults.seed if params.seed is None else params.seed
    logit_bias = params.logit_bias or defaults.logit_bias
    return ResolvedSampling(**values, seed=seed, logit_bias=logit_bias)  # type: ignore[arg-type]
