"""The small changes to a module's source, one at a time.

Annotations, decorators, messages, log lines and assertions are never changed, since no test should pin them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Its text is only for people.
_LEFT_ALONE = {"__repr__"}
# Arguments for people and type checkers: without `strict`, lengths would be equal anyway.
_KEYWORDS_LEFT_ALONE = {"strict", "slots"}
_LOGS = {"logger", "logging", "_log"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: `text` replaces the bytes `start` to `end` of the source.

    `line` is its first line, counted from 1.
    """

    start: int
    end: int
    text: str
    line: int

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def find_mutants(source: bytes) -> list[Mutant]:
    """Return every change of a module, in the order of the source; each changed module compiles."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[Mutant, None] = {}
    for node, text in _Changes().of(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        found[Mutant(start, end, text, node.lineno)] = None
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.text))


Change = tuple[ast.stmt | ast.expr, str]


class _Changes:
    """Walks a module and yields nodes with the text that replaces them."""

    def of(self, node: ast.AST) -> Iterator[Change]:
        """Yield the changes of a node and of all nodes below it."""
        if _is_left_alone(node):
            return
        yield from self._own(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(node, ast.Call):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.of(child)

    def _own(self, node: ast.AST) -> Iterator[Change]:
        match node:
            case ast.Compare():
                for index, operator in enumerate(node.ops):
                    if type(operator) in _COMPARISONS:
                        changed = deepcopy(node)
                        changed.ops[index] = _COMPARISONS[type(operator)]()
                        yield node, f"({ast.unparse(changed)})"
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
            case ast.UnaryOp(op=ast.Not()):
                yield node, f"({ast.unparse(node.operand)})"
            case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
                changed_op = _OPERATORS[type(node.op)]()
                yield node, f"({ast.unparse(ast.BinOp(node.left, changed_op, node.right))})"
            case ast.AugAssign() if type(node.op) in _OPERATORS:
                changed_op = _OPERATORS[type(node.op)]()
                yield node, ast.unparse(ast.AugAssign(node.target, changed_op, node.value))
            case ast.Constant(value=bool()):
                yield node, repr(not node.value)
            case ast.Constant(value=int() | float()):
                yield node, repr(node.value + 1)  # type: ignore[operator]
            case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
                yield node.func, _CALLS[name]
            case ast.If() | ast.While() | ast.IfExp():
                if isinstance(node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Await):
                    yield node.test, f"(not ({ast.unparse(node.test)}))"
            case ast.Return() if node.value is not None and not isinstance(node.value, ast.Constant):
                yield node, "return None"
            case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())) | ast.Raise():
                yield node, "pass"
            case ast.Break():
                yield node, "continue"
            case ast.Continue():
                yield node, "break"


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.keyword():
            return node.arg in _KEYWORDS_LEFT_ALONE
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name in _LEFT_ALONE
        case (
            ast.Call(func=ast.Attribute(value=ast.Name(id=name)))
            | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))))
        ):
            return name in _LOGS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _is_text(node: ast.BinOp) -> bool:
    """Return whether an operator joins or formats text."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )
