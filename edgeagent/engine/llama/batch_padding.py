"""How many padding tokens make a CPU batch faster.

llama.cpp's CPU kernels take several tokens through the weights at once, and each left over by itself; attention's
matrices come in sixteens. Measured on a 0.5 B model, two cores, 500 tokens deep, milliseconds of 3 / 4, 7 / 8 and
15 / 16 tokens: Q4_0 20 / 16, 27 / 23, 43 / 34; IQ4_NL 22 / 20, 32 / 29, 52 / 44; Q4_K 38 / 39, 54 / 49, 74 / 63; Q8_0
41 / 48, 63 / 52, 78 / 71; F16 31 / 33, 40 / 45, 62 / 60, which is not worth it.
"""

from __future__ import annotations

_LARGE_TILE = 16
_MAX_ADDED = 3
# From this many tokens on llama.cpp uses another kernel, which rounds differently; padding must not reach that size.
_OTHER_KERNEL = 64
# By llama_ftype. Weights that llama.cpp repacks for the CPU are computed four tokens at once.
_UNQUANTIZED = {0: "F32", 1: "F16", 32: "BF16"}
_REPACKED = {2: "Q4_0", 25: "IQ4_NL"}


def choose_tile(file_type: int | None) -> int:
    """Return the number of tokens that a model's weights are computed with at once; 0: it does not matter."""
    if file_type is None or file_type in _UNQUANTIZED:
        return 0
    return 4 if file_type in _REPACKED else 8


def num_to_fill(num_tokens: int, tile: int, micro_batch: int) -> int:
    """Return how many tokens (at most 3) to add to a batch of `num_tokens`, which is computed in micro-batches.

    One is added if the last of several would be computed alone, which gives other bits (engine.replay).
    """
    is_last_alone = num_tokens > 1 and num_tokens % micro_batch == 1
    return max(_num_to_round(num_tokens, tile), 1 if is_last_alone else 0)


def _num_to_round(num_tokens: int, tile: int) -> int:
    """Return how many tokens to add to `num_tokens`; 0 if that would not be faster."""
    if tile == 0:
        return 0
    added = -num_tokens % _LARGE_TILE
    if added > _MAX_ADDED:
        added = 1 if -num_tokens % tile == 1 else 0
    return 0 if num_tokens < _OTHER_KERNEL <= num_tokens + added else added
