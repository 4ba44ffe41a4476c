"""Random weights in ggml's block formats: the blocks are generated directly, so nothing needs to be quantized."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
K_WEIGHTS = 256  # of a block of the K types


def random_rows(random: np.random.Generator, kind: Type, rows: int, columns: int, std: float) -> Bytes:
    """Return rows of random weights with mean 0 and this deviation, as bytes of this type."""
    if kind in (Type.F32, Type.F16):
        values = random.standard_normal((rows, columns), np.float32) * np.float32(std)
        return values.astype("<f4" if kind is Type.F32 else "<f2").view(np.uint8)
    return _PACKERS[kind](random, rows * columns, std).reshape(rows, -1)


def _q4_0(random: np.random.Generator, count: int, std: float) -> Bytes:
    """A block is a float16 scale and 32 nibbles; a nibble stands for scale * (nibble - 8)."""
    return _scaled(random, count // 32, 16, std / _spread(16))


def _q5_0(random: np.random.Generator, count: int, std: float) -> Bytes:
    """A block is a float16 scale and the high bits and nibbles of 32 values; each stands for scale * (value - 16)."""
    return _scaled(random, count // 32, 4 + 16, std / _spread(32))


def _q8_0(random: np.random.Generator, count: int, std: float) -> Bytes:
    """A block is a float16 scale and 32 signed bytes."""
    return _scaled(random, count // 32, 32, std / _spread(256))


def _q4_k(random: np.random.Generator, count: int, std: float) -> Bytes:
    """A block is two float16 factors (for scales and offsets), 8 scales and 8 offsets in 6 bits each, and 256 nibbles.

    A nibble stands for scale * nibble - offset; all 6-bit scales and offsets are 1 here.
    """
    num_blocks = count // K_WEIGHTS
    scale = _float16(_signs(random, num_blocks) * (std / _spread(16)))
    blocks = np.empty((num_blocks, 16 + 128), np.uint8)
    blocks[:, :2] = scale.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:4] = _float16(7.5 * scale.astype(np.float32)).view(np.uint8).reshape(-1, 2)
    blocks[:, 4:16] = [1] * 8 + [0x11] * 4
    blocks[:, 16:] = _bytes(random, num_blocks, 128)
    return blocks


def _q6_k(random: np.random.Generator, count: int, std: float) -> Bytes:
    """A block is 256 values' low nibbles and high two bits, 16 signed scales, and their float16 factor."""
    num_blocks = count // K_WEIGHTS
    blocks = np.empty((num_blocks, 128 + 64 + 16 + 2), np.uint8)
    blocks[:, :192] = _bytes(random, num_blocks, 192)
    blocks[:, 192:208] = _signs(random, num_blocks * 16).astype(np.int8).view(np.uint8).reshape(-1, 16)
    blocks[:, 208:] = _float16(np.full(num_blocks, std / _spread(64))).view(np.uint8).reshape(-1, 2)
    return blocks


_PACKERS: dict[Type, Callable[[np.random.Generator, int, float], Bytes]] = {
    Type.Q4_0: _q4_0,
    Type.Q5_0: _q5_0,
    Type.Q8_0: _q8_0,
    Type.Q4_K: _q4_k,
    Type.Q6_K: _q6_k,
}


def _scaled(random: np.random.Generator, num_blocks: int, num_bytes: int, scale: float) -> Bytes:
    """Return blocks that consist of a scale and random bytes."""
    blocks = np.empty((num_blocks, 2 + num_bytes), np.uint8)
    blocks[:, :2] = _float16(_signs(random, num_blocks) * scale).view(np.uint8).reshape(-1, 2)
    blocks[:, 2:] = _bytes(random, num_blocks, num_bytes)
    return blocks


def _bytes(random: np.random.Generator, rows: int, columns: int) -> Bytes:
    """Return random bytes, ten times faster than Generator.bytes."""
    words = random.integers(0, 1 << 64, -(-rows * columns // 8), np.uint64)
    return words.view(np.uint8)[: rows * columns].reshape(rows, columns)


def _signs(random: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Return random signs for scales; with equal signs, the values' mean of -1/2 would add up in one direction."""
    return random.integers(0, 2, count, np.int8).astype(np.float32) * 2 - 1


def _spread(levels: int) -> float:
    """Return the deviation of a whole number drawn uniformly from this many levels."""
    return float(((levels**2 - 1) / 12) ** 0.5)


def _float16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    return values.astype("<f2")
