"""Finds the projector of a model: the file (mmproj) with which it reads images and sounds. No network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from edgeagent.errors import EdgeAgentError, ModelDamaged
from edgeagent.state_files import until_changed
from edgeagent.store.gguf.header import read_facts
from edgeagent.types import MediaKind

_NAME = re.compile(r"mmproj", re.IGNORECASE)
# The part of a model's name before its quantization or its number of a split file.
_STEM = re.compile(r"(.+?)(?:[-.](?:i?q\d\w*|f16|f32|bf16|ud|\d{5}-of-\d{5}))*\.gguf", re.IGNORECASE)

# The most patches that llama.cpp lets an image have, by the kind of the projector (clip.cpp, set_limit_image_tokens).
# Other encoders get images, or tiles of them, of one size.
_MOST_PATCHES = {"qwen2vl_merger": 1 << 14, "qwen2.5vl_merger": 1 << 14, "qwen3vl_merger": 1 << 14, "lfm2": 1 << 10}
_MOST_FRAMES = 1500  # of a sound: Whisper's encoder computes half a minute at a time


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
        facts = _facts_of(projector)
    except (OSError, EdgeAgentError):
        return ()
    senses: dict[MediaKind, str] = {"image": "clip.has_vision_encoder", "audio": "clip.has_audio_encoder"}
    return tuple([kind for kind, key in senses.items() if facts.get(key)])


def memory_bytes(projector: Path) -> int:
    """Return the memory that a projector takes: its file, and the buffers of its encoder for the largest image.

    For each patch these have four rows of the width and one of the feed-forward part: the encoders of Gemma 3,
    SmolVLM, Qwen2-VL (at 40 megapixels) and Ultravox took 76 to 106 % of that. If the header cannot be read, only the
    file counts; if there is no file, the result is 0.
    """
    try:
        size = projector.stat().st_size
    except OSError:
        return 0
    try:
        facts = _facts_of(projector)
    except (OSError, EdgeAgentError):
        return size

    def number(key: str) -> int:
        value = facts.get(f"clip.{key}")
        return value if isinstance(value, int) else 0

    patch = max(1, number("vision.patch_size"))
    largest = max(number("vision.image_size") ** 2, number("vision.image_max_pixels")) // patch**2
    kind = facts.get("clip.projector_type") or facts.get("clip.vision.projector_type")  # of a file with both senses
    num_patches = _MOST_PATCHES.get(str(kind), largest)
    rows = {"vision": num_patches, "audio": _MOST_FRAMES}
    return size + max(
        4 * num * (number(f"{sense}.feed_forward_length") + 4 * number(f"{sense}.embedding_length"))
        for sense, num in rows.items()
    )


_facts_of = until_changed(read_facts)
