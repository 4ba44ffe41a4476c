"""README's tables of rows match the tests."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")


def rows() -> set[str]:
    """Return the rows of the tables; L1–L6 means six rows."""
    return {row for line in README.splitlines() for row in _rows_of(line)}


def _rows_of(line: str) -> set[str]:
    named: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", line):
        for letter, first, last in re.findall(r"([ABCFIL])(\d+)(?:–[ABCFIL](\d+))?", cell):
            named |= {f"{letter}{number}" for number in range(int(first), int(last or first) + 1)}
    return named


def test_every_file_that_is_named_exists() -> None:
    for name in set(re.findall(r"`([\w/*]*test_[\w*]+\.py)`", README)):
        places = (HERE, ROOT, ROOT / "tests" / "integration")
        assert any(list(place.glob(name)) for place in places), name


# Every row of the lists of attacks and faults.
LAST = {"A": 9, "B": 15, "C": 7, "F": 21, "I": 8, "L": 11}
ROWS = {f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)}


def test_every_row_is_there() -> None:
    assert rows() == ROWS


def test_every_row_names_a_test_that_exists() -> None:
    """The test is in a file named after the row, or in a file that the row's line names."""
    for row in ROWS:
        assert list(HERE.glob(f"test_{row}_*.py")) or _named_in_line(row), row


def _named_in_line(row: str) -> bool:
    lines = [line for line in README.splitlines() if re.match(r"\| [^|]*[ABCFIL]\d+[^|]* \|", line)]
    return any(row in _rows_of(line) and re.search(r"test_\w+|faults|tests/|.\| [ABFL]\d+[,:]", line) for line in lines)


def test_every_test_is_named() -> None:
    for path in HERE.glob("test_*.py"):
        row = re.match(r"test_([A-Z]\d+)_", path.name)
        assert path.name in README or (row is not None and row[1] in rows()) or path == Path(__file__), path.name
