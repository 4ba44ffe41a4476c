"""How many padding tokens make a CPU batch faster.

llama.cpp's CPU kernels multiply the weights with several tokens at once, in tiles. They multiply each remaining token
separately, which is slow. Batches of 16 tokens are fast for every type below. Milliseconds of a step with 3 / 4, 7 / 8
and 15 / 16 tokens, measured on a 0.5 B model on two cores, with 500 tokens in the context:

- Q4_0: 20 / 16, 27 / 23, 43 / 34
- IQ4_NL: 22 / 20, 32 / 29, 52 / 44
- Q4_K: 38 / 39, 54 / 49, 74 / 63
- Q8_0: 41 / 48, 63 / 52, 78 / 71
- F16: 31 / 33, 40 / 45, 62 / 60. Padding is not worth it here.

On an Intel Xeon, with the shape of Qwen3-0.6B and flash attention:

- Q4_K: 47 / 40, 64 / 65, 104 / 80
- Q8_0: 55 / 58, 82 / 83, 132 / 134. Padding is not worth it there.

`padding_of_type` gives the padding that suited the first machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.engine.costs.step_shape import FLASH_TILE
from edgeagent.engine.llama.model import Model
from edgeagent.types import MemoryKind

_LARGE_TILE = 16
_TILED_KV_TYPES = ("auto", "f32", "f16")  # "auto" is f16
# By llama_ftype. Weights that llama.cpp repacks for the CPU are computed four tokens at once.
_UNQUANTIZED = {0: "F32", 1: "F16", 32: "BF16"}
_REPACKED = {2: "Q4_0", 25: "IQ4_NL"}


@dataclass(frozen=True, slots=True)
class WeightPadding:
    """How many tokens are added to a batch to fill the tiles in which the weights are multiplied.

    `tile`: one token is added if it completes a multiple of this number; 0: no batch is padded. `most`: up to this many
    tokens are added if they complete a multiple of 16.
    """

    tile: int = 0
    most: int = 0


def attention_tile(kv_type_k: str, kv_type_v: str) -> int:
    """Return the tile of ggml's flash attention on a CPU, in tokens; 0 if cells of these types have no tiles."""
    return FLASH_TILE if kv_type_k == kv_type_v and kv_type_k in _TILED_KV_TYPES else 0


def can_fill(model: Model) -> bool:
    """Whether batches of this model may be padded: only on a CPU, and only with full attention.

    With a window or a state, padding would add another sequence to a batch, with unknown effects.
    """
    return model.num_gpu_layers == 0 and model.memory_kind is MemoryKind.FULL_ATTENTION


def padding_of_type(file_type: int | None) -> WeightPadding:
    """Return the usual padding for weights of this llama_ftype: none if they are unquantized or of unknown type."""
    if file_type is None or file_type in _UNQUANTIZED:
        return WeightPadding()
    return WeightPadding(4 if file_type in _REPACKED else 8, 3)


def num_to_fill(num_tokens: int, padding: WeightPadding, micro_batch: int) -> int:
    """Return how many padding tokens to add to a batch of `num_tokens`.

    llama.cpp splits the batch into parts of `micro_batch` tokens. If the last part would have a single token, at least
    one padding token is added, since a single token is rounded differently (see engine.replay).
    """
    is_last_alone = num_tokens > 1 and num_tokens % micro_batch == 1
    return max(_num_to_round(num_tokens, padding, micro_batch), 1 if is_last_alone else 0)


def _num_to_round(num_tokens: int, padding: WeightPadding, micro_batch: int) -> int:
    """Return how many padding tokens make a batch of `num_tokens` faster; 0 if none do."""
    if padding.tile == 0:
        return 0
    added = -num_tokens % _LARGE_TILE
    if added > padding.most:
        added = 1 if -num_tokens % padding.tile == 1 else 0
    # Parts of an attention tile or more use a kernel that rounds differently. Padding must not change the kernel.
    num_last = num_tokens % micro_batch or micro_batch
    return 0 if num_last < FLASH_TILE <= num_last + added else added
