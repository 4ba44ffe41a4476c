"""The sizes of the models on the shelf, and of a tiny version of each for tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

CELL_VALUE_BYTES = 2  # for the KV cells' default type, f16


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. `architecture` is llama.cpp's name, `vocabulary` a name of vocabularies.py.

    `attending` holds the layers with attention if the others keep a state; None if all have attention. The state of a
    layer is that of a convolution over `conv_width` tokens and, with `num_state_heads`, a matrix for each of these
    heads.
    """

    name: str
    architecture: str
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    num_ffn: int
    vocabulary: str
    num_vocab: int
    context_length: int = 32_768
    rope_base: float = 1_000_000.0
    window: int = 0
    num_experts: int = 0
    num_used_experts: int = 0
    attending: tuple[int, ...] | None = None
    conv_width: int = 0
    num_state_heads: int = 0
    state_width: int = 0

    def attends(self, layer: int) -> bool:
        """Return whether a layer has attention, and so cells for each token."""
        return self.attending is None or layer in self.attending

    @property
    def token_bytes(self) -> int:
        """The bytes of KV cells per token; a sliding window keeps fewer of them."""
        num_attending = self.num_layers if self.attending is None else len(self.attending)
        return 2 * CELL_VALUE_BYTES * self.num_kv_heads * self.head_width * num_attending


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, "qwen2", 151_936),
        Shape("qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, "qwen2", 151_936, context_length=40_960),
        Shape(
            "llama-3.2-1b",
            "llama",
            16,
            2048,
            32,
            8,
            64,
            8192,
            "llama-bpe",
            128_256,
            context_length=131_072,
            rope_base=500_000.0,
        ),
        Shape("gemma-3-1b", "gemma3", 26, 1152, 4, 1, 256, 6912, "gemma", 262_144, window=512),
        # A delta net in three of four layers: its state is 19 MiB per sequence, whatever the sequence's length.
        Shape(
            "qwen3.5-0.8b",
            "qwen35",
            24,
            1024,
            8,
            2,
            256,
            3584,
            "qwen35",
            248_320,
            rope_base=10_000_000.0,
            attending=tuple(range(3, 24, 4)),
            conv_width=4,
            num_state_heads=16,
            state_width=128,
        ),
        # Convolutions over three tokens in ten of sixteen layers: a state of a few kilobytes.
        Shape(
            "lfm2-350m",
            "lfm2",
            16,
            1024,
            16,
            8,
            64,
            4608,
            "lfm2",
            65_536,
            attending=(2, 5, 8, 10, 12, 14),
            conv_width=3,
        ),
        # Qwen3's mixture in the sizes of a small model in real use: 32 experts, 8 of them for each token.
        Shape(
            "qwen3moe-1b-a400m",
            "qwen3moe",
            24,
            1024,
            16,
            8,
            64,
            512,
            "qwen2",
            49_152,
            num_experts=32,
            num_used_experts=8,
        ),
        # The KV cells of an 8B model (128 KiB per token), and little other computation.
        Shape("8b-kv", "qwen2", 32, 1024, 8, 8, 128, 1024, "qwen2", 32_000),
    )
}


SEEING = Shape("qwen2-vl-0.5b", "qwen2vl", 24, 896, 14, 2, 64, 4864, "qwen2", 151_936)
"""Positions in three dimensions (M-RoPE), for images. It is not among the shapes whose figures are compared."""

SEVEN_B = Shape("qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18_944, "qwen2", 152_064)
"""For a GPU: too large for the machines of the other figures."""


def _twin(name: str, num_layers: int = 4, **sizes: object) -> Shape:
    """Return a narrow version with few layers: two heads of width 32, the minimum for quantized cells."""
    narrow = replace(
        SEEING if name == SEEING.name else SHAPES[name],
        num_layers=num_layers,
        width=64,
        num_heads=2,
        num_kv_heads=1,
        head_width=32,
    )
    narrow = replace(narrow, num_ffn=128, num_vocab=512, context_length=2048, rope_base=10_000.0)
    return replace(narrow, **sizes)  # type: ignore[arg-type]


TWINS = {
    shape.name: shape
    for shape in (
        _twin("qwen2.5-0.5b"),
        _twin("qwen3-0.6b"),
        _twin("llama-3.2-1b"),
        # The sixth layer is the first without a window.
        _twin("gemma-3-1b", num_layers=7, window=32),
        _twin("qwen3.5-0.8b", attending=(3,), num_state_heads=2, state_width=32),
        _twin("lfm2-350m", attending=(1, 3)),
        _twin("qwen3moe-1b-a400m", num_ffn=64, num_experts=6, num_used_experts=2),
        _twin("8b-kv", num_kv_heads=2),
    )
}
SEEING_TWIN = _twin(SEEING.name)
