"""The text that all displays show for a stage of a model's load."""

from __future__ import annotations


def load_stage(progress: float) -> str:
    """Return the text of a stage: first the file is read, then, at 1.0, the model is tried on a few tokens."""
    # Rounded down, so that 100% never appears while the file is still being read.
    return "checking the model" if progress >= 1 else f"loading {int(progress * 100)}%"
