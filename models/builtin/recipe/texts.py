"""Reads the texts of the corpus: `data/*.toml`, one file for each module."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def read_texts(name: str) -> dict[str, Any]:
    """Return the contents of one file of texts, as nested tables of strings."""
    return tomllib.loads((_DATA / f"{name}.toml").read_text(encoding="utf-8"))


TRAINING = read_texts("training")
"""Wordings that training alone sees."""
HELD_OUT = {name: tuple(text.splitlines()) for name, text in read_texts("held_out").items()}
"""The sealed wordings of the test set, by pool."""
