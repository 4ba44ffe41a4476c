"""Print how large the program is, for the whole and by package: `python -m tests.size`. There is no limit in it.

A numeric constant is a name in capitals that a module or a class binds to a number or to arithmetic of numbers. The
words of docs/ are those that people write: what is made from the code is counted apart, reference pages and the tables
that programs write into docs/figures.md.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from edgeagent.config_sources import declared_options

ROOT = Path(__file__).resolve().parent.parent
_MADE = "<!-- Made from the code"
_MADE_PART = re.compile(r"<!-- (\w+): begin -->.*?<!-- \1: end -->", re.DOTALL)


@dataclass(slots=True)
class Size:
    """The size of some Python files."""

    num_lines: int = 0
    num_code_lines: int = 0
    num_modules: int = 0
    num_classes: int = 0
    num_constants: int = 0

    def add(self, file: Path) -> None:
        """Count one file."""
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        self.num_lines += text.count("\n")
        self.num_code_lines += len(_code_lines(text, nodes))
        self.num_modules += 1
        self.num_classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        self.num_constants += sum(1 for _ in numeric_constants(tree, nodes))

    def __add__(self, other: Size) -> Size:
        return Size(*map(operator.add, astuple(self), astuple(other)))


def _code_lines(text: str, nodes: Sequence[ast.AST]) -> set[int]:
    """Return the numbers of the lines that are neither blank nor only a comment or a docstring."""
    lines = {
        number
        for number, line in enumerate(text.split("\n"), 1)
        if (stripped := line.lstrip()) and not stripped.startswith("#")
    }
    docstrings: set[int] = set()
    for node in nodes:
        match node:
            # A text that stands alone is a docstring, also below an attribute.
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.update(_lines_of(node))
            case ast.Constant(value=str()) | ast.JoinedStr():
                lines.update(_lines_of(node))
    return lines - docstrings


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def numeric_constants(tree: ast.Module, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of a module's numeric constants."""
    scopes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in nodes if isinstance(node, ast.ClassDef))]
    for scope in scopes:
        for node in scope.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper() and _is_number(value):
                    yield name
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if (
                    name.isupper() and _is_number(value)
                ):
                    yield name


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):  # one side may be another constant: 2 * MIB
            return _is_number(left) or _is_number(right)
        case _:
            return False


def size_of(files: Iterable[Path]) -> Size:
    """Return the size of Python files together."""
    size = Size()
    for file in files:
        size.add(file)
    return size


def _num_words(pages: Iterable[Path]) -> tuple[int, int]:
    """Return how many words of pages are written by people, and how many are made by programs."""
    written = made = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        own = "" if text.startswith(_MADE) else _MADE_PART.sub("", text)
        written += len(own.split())
        made += len(text.split()) - len(own.split())
    return written, made


def _report() -> Iterator[str]:
    package = ROOT / "edgeagent"
    rooms: dict[str, list[Path]] = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "(top)", []).append(file)
    by_room = {name: size_of(files) for name, files in rooms.items()}
    sizes = {"edgeagent": sum(by_room.values(), Size())}
    sizes |= dict(sorted(by_room.items(), key=lambda item: -item[1].num_lines))
    yield f"{'':16}{'lines':>8}{'code':>8}{'modules':>9}{'classes':>9}{'constants':>11}"
    for name, size in sizes.items():
        yield (
            f"{name:16}{size.num_lines:8,}{size.num_code_lines:8,}{size.num_modules:9,}{size.num_classes:9,}"
            f"{size.num_constants:11,}"
        )
    written, made = _num_words((ROOT / "docs").rglob("*.md"))
    num_readme = len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    yield f"options {len(list(declared_options()))} · words of docs/ {written:,}, and {made:,} made by programs"
    num_tests = sum(file.read_bytes().count(b"\n") for file in (ROOT / "tests").rglob("*.py"))
    yield f"README.md {num_readme} lines · tests/ {num_tests:,}, {num_tests / sizes['edgeagent'].num_lines:.2f} x"


if __name__ == "__main__":
    print("\n".join(_report()))
