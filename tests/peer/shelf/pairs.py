"""Targets with a draft model whose tokens are accepted at a chosen rate."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

from tests.peer.shelf.files import make_model
from tests.peer.shelf.shapes import Shape
from tests.peer.shelf.tensors import Matrix, Tensor

DRAFT_LAYERS = 2
# The scale of the target's later layers: drafts are accepted always, mostly, and rarely.
LOUDNESS = (0.0, 0.03, 0.3)
PAIR = Shape("pair", "qwen2", 24, 896, 14, 2, 64, 4864, "qwen2", 32_000)


def make_pair(folder: Path, loudness: float, shape: Shape = PAIR) -> tuple[Path, Path]:
    """Return a target and its draft, which is the target's first layers; write them unless they exist.

    The output of the other layers is multiplied by `loudness`; with 0 both models are the same function.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{shape.name}-{loudness:g}.gguf"
    draft = folder / f"{shape.name}-draft.gguf"
    if not draft.exists():
        make_model(draft, dataclasses.replace(shape, num_layers=DRAFT_LAYERS))
    if not target.exists():
        make_model(target, shape, change=partial(_quieten, loudness))
    return target, draft


def _quieten(loudness: float, tensor: Tensor) -> Tensor:
    _, *numbers = tensor.name.split(".")
    is_later = tensor.name.startswith("blk.") and int(numbers[0]) >= DRAFT_LAYERS
    if is_later and isinstance(tensor, Matrix) and tensor.name.endswith(("attn_output.weight", "ffn_down.weight")):
        return dataclasses.replace(tensor, std=tensor.std * loudness)
    return tensor
