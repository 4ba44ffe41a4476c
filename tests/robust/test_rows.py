"""README's table of rows and the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")


def test_every_file_that_is_named_exists() -> None:
    for name in set(re.findall(r"`([\w/*]*test_[\w*]+\.py)`", README)):
        places = (HERE, ROOT, ROOT / "tests" / "integration")
        assert any(list(place.glob(name)) for place in places), name


def test_every_row_is_there() -> None:
    rows = {
        row for cell in re.findall(r"^\| ([^|]+) \|", README, re.MULTILINE) for row in re.findall(r"[ABFL]\d+", cell)
    }
    assert {f"A{number}" for number in range(1, 8)} <= rows
    assert {f"B{number}" for number in range(1, 16)} <= rows


def test_every_test_is_named() -> None:
    for path in HERE.glob("test_*.py"):
        row = re.match(r"test_([A-Z]\d+)_", path.name)
        is_named = path.name in README or (row is not None and re.search(rf"\b{row[1]}\b", README) is not None)
        assert is_named or path.name == Path(__file__).name, path.name
