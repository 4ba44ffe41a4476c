"""How many padding tokens make a CPU batch faster.

llama.cpp's CPU kernels multiply the weights with several tokens at once, in tiles. They multiply each remaining token
separately, which is slow. Batches of 16 tokens are fast for every type below. Milliseconds of a step with 3 / 4, 7 / 8
and 15 / 16 tokens, measured on a 0.5 B model on two cores, with 500 tokens in the context:

- Q4_0: 20 / 16, 27 / 23, 43 / 34
- IQ4_NL: 22 / 20, 32 / 29, 52 / 44
- Q4_K: 38 / 39, 54 / 49, 74 / 63
- Q8_0: 41 / 48, 63 / 52, 78 / 71
- F16: 31 / 33, 40 / 45, 62 / 60. Padding is not worth it here.
"""

from __future__ import annotations

from edgeagent.engine.costs.step_shape import FLASH_TILE

_LARGE_TILE = 16
_MAX_ADDED = 3
_TILED_KV_TYPES = ("auto", "f32", "f16")  # "auto" is f16
# By llama_ftype. Weights that llama.cpp repacks for the CPU are computed four tokens at once.
_UNQUANTIZED = {0: "F32", 1: "F16", 32: "BF16"}
_REPACKED = {2: "Q4_0", 25: "IQ4_NL"}


def attention_tile(kv_type_k: str, kv_type_v: str) -> int:
    """Return the tile of ggml's flash attention on a CPU, in tokens; 0 if cells of these types have no tiles."""
    return FLASH_TILE if kv_type_k == kv_type_v and kv_type_k in _TILED_KV_TYPES else 0


def choose_tile(file_type: int | None) -> int:
    """Return how many tokens a model's weights are multiplied with at once. Return 0 if padding would not help."""
    if file_type is None or file_type in _UNQUANTIZED:
        return 0
    return 4 if file_type in _REPACKED else 8


def num_to_fill(num_tokens: int, tile: int, micro_batch: int) -> int:
    """Return how many padding tokens, 0 to 3, to add to a batch of `num_tokens`.

    `tile`: the result of `choose_tile`. llama.cpp splits the batch into parts of `micro_batch` tokens. If the last part
    would have a single token, at least one padding token is added, since a single token is rounded differently (see
    engine.replay).
    """
    is_last_alone = num_tokens > 1 and num_tokens % micro_batch == 1
    return max(_num_to_round(num_tokens, tile), 1 if is_last_alone else 0)


def _num_to_round(num_tokens: int, tile: int) -> int:
    """Return how many padding tokens make a batch of `num_tokens` faster; 0 if none do."""
    if tile == 0:
        return 0
    added = -num_tokens % _LARGE_TILE
    if added > _MAX_ADDED:
        added = 1 if -num_tokens % tile == 1 else 0
    # Batches of an attention tile or more use a kernel that rounds differently. Padding must not change the kernel.
    return 0 if num_tokens < FLASH_TILE <= num_tokens + added else added
