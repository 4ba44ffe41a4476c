"""Finds the projector of a model: the file (mmproj) with which it reads images and sounds. No network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from edgeagent.errors import EdgeAgentError, ModelDamaged
from edgeagent.store.gguf.header import read_facts
from edgeagent.types import MediaKind

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
        found = sorted(filter(is_projector, files), key=lambda path: (path.stat().st_size, "bf16" in path.name.lower()))
    except OSError:
        return None
    stem = _stem_of(model)
    named = [path for path in found if stem in path.name.lower()]
    is_alone = all(_stem_of(path) == stem for path in files if path not in found)
    return next(iter(named or (found if is_alone else [])), None)


def _stem_of(path: Path) -> str:
    match = _STEM.fullmatch(path.name)
    return (match[1] if match else path.stem).lower()


def choose_projector(model: str, sizes: Mapping[str, int]) -> str | None:
    """Return which file in a model's folder of a repository is its projector: the smallest. None if there is none.

    `sizes`: the bytes of the repository's files by name. Of equal ones, F16 is better than BF16 on most processors.
    """
    folder = PurePosixPath(model).parent
    found = [name for name in sizes if is_projector(Path(name)) and PurePosixPath(name).parent == folder]
    return min(found, key=lambda name: (sizes[name], "bf16" in name.lower(), name), default=None)


def check_projector(path: Path) -> None:
    """Raise ModelNotFound if there is no such file, or ModelLoadFailed if it cannot be read or is no projector."""
    facts = read_facts(path)
    kind = facts.get("general.architecture")
    if kind != "clip":
        raise ModelDamaged(
            f"{path} is no projector: its general.architecture is {kind!r:.80}, not 'clip'; a projector is usually "
            "named mmproj-*.gguf",
            param="model",
        )
    if not media_of(path):
        raise ModelDamaged(f"{path} is a projector for neither images nor sounds", param="model")


def media_of(projector: Path) -> tuple[MediaKind, ...]:
    """Return what a model reads with this projector, by its header; () if the header cannot be read."""
    try:
        stamp = projector.stat()
        return _media_at(projector, stamp.st_size, stamp.st_mtime_ns)
    except (OSError, EdgeAgentError):
        return ()


@lru_cache(maxsize=64)
def _media_at(projector: Path, _size: int, _mtime_ns: int) -> tuple[MediaKind, ...]:
    facts = read_facts(projector)
    senses: dict[MediaKind, str] = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
    return tuple([kind for kind, key in senses.items() if facts.get(key)])
