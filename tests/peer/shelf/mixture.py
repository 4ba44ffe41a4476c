"""The type that llama-quantize gives each tensor (llama.cpp's src/llama-quant.cpp, for the shelf's architectures)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from gguf import GGML_QUANT_SIZES, LlamaFileType
from gguf import GGMLQuantizationType as Type

from tests.peer.shelf.tensors import Matrix, Tensor

Quant = Literal["Q4_0", "Q4_K_M", "Q8_0", "F16", "F32"]
QUANTS: tuple[Quant, ...] = get_args(Quant)

FILE_TYPES: Mapping[Quant, LlamaFileType] = {
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
    "Q4_K_M": LlamaFileType.MOSTLY_Q4_K_M,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "F16": LlamaFileType.MOSTLY_F16,
    "F32": LlamaFileType.ALL_F32,
}
_DEFAULTS = {"Q4_0": Type.Q4_0, "Q4_K_M": Type.Q4_K, "Q8_0": Type.Q8_0, "F16": Type.F16, "F32": Type.F32}
_FALLBACKS = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}
"""For rows that are no multiple of a block of 256."""
_NEVER_QUANTIZED = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight")


def choose_types(tensors: Sequence[Tensor], quant: Quant, num_layers: int) -> dict[str, Type]:
    """Return the type of each tensor by name."""
    rich = _rich(tensors, num_layers) if quant == "Q4_K_M" else set()
    if quant in ("Q4_0", "Q4_K_M"):
        rich.add("token_embd.weight")  # it is also the output matrix
    types: dict[str, Type] = {}
    for tensor in tensors:
        if not isinstance(tensor, Matrix) or any(part in tensor.name for part in _NEVER_QUANTIZED):
            types[tensor.name] = Type.F32
            continue
        kind = Type.Q6_K if tensor.name in rich else _DEFAULTS[quant]
        fits = tensor.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0
        types[tensor.name] = kind if fits else _FALLBACKS[kind]
    return types


def _rich(tensors: Sequence[Tensor], num_layers: int) -> set[str]:
    """Return the tensors to which Q4_K_M gives more bits: the values and feed-forward outputs of some layers."""
    values = [tensor.name for tensor in tensors if re.search(r"attn_(v|qkv)\.weight$", tensor.name)]
    ends = [tensor.name for tensor in tensors if "ffn_down" in tensor.name]
    return {
        *(name for index, name in enumerate(values) if _gets_more_bits(index, len(values))),
        *(name for layer, name in enumerate(ends) if _gets_more_bits(layer, num_layers)),
    }


def _gets_more_bits(index: int, count: int) -> bool:
    """Return whether a layer is among the first eighth, the last eighth, or every third between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
