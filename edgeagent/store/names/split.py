"""The naming rule of split models: <stem>-00001-of-00003.gguf. This module opens no files."""

from __future__ import annotations

import re
from pathlib import Path

MAX_SPLITS = 1000

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.ASCII)


def split_stem(name: str) -> str:
    """Return a file name without its part number and suffix."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is not None:
        return match["stem"]
    return name[:-5] if name.lower().endswith(".gguf") else name


def split_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts in order, from the name of any part; (name,) for a file that is not a part.

    llama.cpp opens the first part and finds the others by this rule.
    """
    match = _SPLIT_NAME.fullmatch(name)
    if match is None:
        return (name,)
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count <= MAX_SPLITS:
        return (name,)
    return tuple(f"{match['stem']}-{part:05d}-of-{count:05d}{match['suffix']}" for part in range(1, count + 1))


def split_paths(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts in order, from the path of any part; (path,) for a file that is not a part."""
    return tuple(path.with_name(name) for name in split_names(path.name))
