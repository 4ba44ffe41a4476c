"""The shelf: GGUF models with random weights and the sizes of real models, for measuring speed.

Their answers mean nothing, but they cost as much as real ones. Each is made in seconds, and is the same for the same
seed: `python -m tests.peer.shelf qwen3-0.6b OUT.gguf --quant Q4_K_M`.
"""

from tests.peer.shelf.files import cached_model, make_model
from tests.peer.shelf.mixture import QUANTS, Quant
from tests.peer.shelf.shapes import SHAPES, TWINS, Shape

__all__ = ["QUANTS", "SHAPES", "TWINS", "Quant", "Shape", "cached_model", "make_model"]
