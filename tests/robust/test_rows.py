"""README's tables of rows and the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")


def rows() -> set[str]:
    """Return the rows of the tables; L1–L6 are six."""
    named: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", README, re.MULTILINE):
        for letter, first, last in re.findall(r"([ABCFIL])(\d+)(?:–[ABCFIL](\d+))?", cell):
            named |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return named


def test_every_file_that_is_named_exists() -> None:
    for name in set(re.findall(r"`([\w/*]*test_[\w*]+\.py)`", README)):
        places = (HERE, ROOT, ROOT / "tests" / "integration")
        assert any(list(place.glob(name)) for place in places), name


def test_every_row_is_there() -> None:
    assert {f"A{number}" for number in range(1, 8)} <= rows()
    assert {f"B{number}" for number in range(1, 16)} <= rows()
    assert {f"C{number}" for number in range(1, 8)} <= rows()
    assert {f"F{number}" for number in (1, 2, 3, 4, 5, 7, 8, 11, 13, *range(16, 22))} <= rows()
    assert {f"I{number}" for number in range(1, 9)} <= rows()
    assert {f"L{number}" for number in range(1, 7)} <= rows()


def test_every_test_is_named() -> None:
    for path in HERE.glob("test_*.py"):
        row = re.match(r"test_([A-Z]\d+)_", path.name)
        assert path.name in README or (row is not None and row[1] in rows()) or path == Path(__file__), path.name
