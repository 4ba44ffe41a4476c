"""Finds the projector of a model: the file (mmproj) with which it reads images and sounds. No network."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"mmproj", re.IGNORECASE)
# The part of a model's name before its quantization or its number of a split file.
_STEM = re.compile(r"(.+?)(?:[-.](?:i?q\d\w*|f16|f32|bf16|ud|\d{5}-of-\d{5}))*\.gguf", re.IGNORECASE)


def is_projector(path: Path) -> bool:
    """Whether a file is a projector, by its name."""
    return path.suffix.lower() == ".gguf" and _NAME.search(path.name) is not None


def find_projector(model: Path) -> Path | None:
    """Return the projector in a model's folder; None if there is none, or if it may be that of another model.

    It belongs to the model if its name contains the model's, without the quantization, or if the folder has no other
    model. If there are several, return the smallest.
    """
    try:
        files = sorted(model.parent.glob("*.gguf"))
        found = sorted(filter(is_projector, files), key=lambda path: path.stat().st_size)
    except OSError:
        return None
    stem = _stem_of(model)
    named = [path for path in found if stem in path.name.lower()]
    is_alone = all(_stem_of(path) == stem for path in files if path not in found)
    return next(iter(named or (found if is_alone else [])), None)


def _stem_of(path: Path) -> str:
    match = _STEM.fullmatch(path.name)
    return (match[1] if match else path.stem).lower()
