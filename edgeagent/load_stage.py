"""The stages of a model's load, in words for every display."""

from __future__ import annotations


def load_stage(progress: float) -> str:
    """Return the stage: the file is read, then the model is tried out on a few tokens."""
    # Rounded down: what is not 1.0 is not 100 %.
    return "checking the model" if progress >= 1 else f"loading {int(progress * 100)}%"
