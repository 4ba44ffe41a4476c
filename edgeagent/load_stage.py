"""How far a model's load is, in the words that all who watch one show."""

from __future__ import annotations


def load_stage(progress: float) -> str:
    """Return what is done: the file is read, then the model is tried out on a few tokens."""
    # Rounded down: what is not 1.0 is not 100 %.
    return "checking the model" if progress >= 1 else f"loading {int(progress * 100)}%"
