"""The text that all displays show for a stage of a model's load."""

from __future__ import annotations


def load_stage(progress: float) -> str:
    """Return the text for a progress of 0 to 1. At 1 the file has been read, and the model is tried on a few tokens."""
    # Rounded down, so that 100% never appears while the file is still being read.
    return "checking the model" if progress >= 1 else f"loading {int(progress * 100)}%"
