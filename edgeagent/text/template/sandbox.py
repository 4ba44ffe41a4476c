"""Runs a model's untrusted Jinja template: it has access to plain values only, and a budget for work and memory.

A template is part of a model file that anyone may have made. Jinja's sandbox restricts attributes. The budget limits
time and size: every loop iteration, call, filter, concatenation and output is charged to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Undefined, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, do_join, do_round
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from edgeagent.text.template.budget import MAX_RANGE, Budget, num_chars, replaced_size, result_size, size_of

MAX_SOURCE_CHARS = 256 << 10
_MAX_INDENT = 64
_MAX_PRECISION = 100
_LARGE_LITERAL = 32

_words = re.compile(r"\w+").findall
_PLAIN_FILTERS = _words(
    "abs capitalize count d default dictsort e escape first float groupby int items last length list "
    "lower map max min reject rejectattr reverse safe select selectattr sort title trim truncate "
    "unique upper wordcount"
)
# Filters that read the characters of a text, or compare or hash the elements of a list.
_CONTENT_READING_FILTERS = frozenset(
    _words("capitalize dictsort e escape groupby list lower max min sort title trim truncate unique upper wordcount")
)
_CONTENT_READING_TESTS = _words("== != > >= < <= eq equalto ge gt greaterthan in le lessthan lt ne")
_CONTENT_READING_METHODS = {"count", "get", "index"}
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (
        str,
        frozenset(
            _words(
                "capitalize casefold count endswith find index isalnum isalpha isdecimal isdigit islower isnumeric "
                "isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
                "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
            )
        ),
    ),
    (dict, frozenset({"get", "items", "keys", "values", "copy"})),
    (list, frozenset({"index", "count", "copy"})),
    (tuple, frozenset({"index", "count"})),
    (float, frozenset({"is_integer"})),
    (object, frozenset()),
)


class TemplateRaisedError(Exception):
    """The template called raise_exception, with this message."""


class RawJson(dict[str, Any]):
    """A JSON object with its original text, so that `tojson` returns exactly what the model wrote."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class _BudgetInstrumenter(NodeTransformer):
    """Changes a template's syntax tree: costly operations become filters of the Sandbox, which charge the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filter(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _filter(parts, "_concat")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            node.arg = _comparable(node.arg)
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _filter(node.node, "_slice", bounds)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _comparable(node.expr)
        for operand in node.ops:
            operand.expr = _comparable(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        self.generic_visit(node)
        node.key = _comparable(node.key)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if len(node.items) < _LARGE_LITERAL else _filter(node, "_literal")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if len(node.items) < _LARGE_LITERAL else _filter(node, "_literal")

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Const:  # noqa: N802
        # Constants go through `finalize`, but template text does not.
        return nodes.Const(node.data, lineno=node.lineno, environment=node.environment)


def _filter(node: nodes.Expr, name: str, arguments: Sequence[nodes.Expr] = ()) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno, environment=node.environment)


def _comparable(node: nodes.Expr) -> nodes.Expr:
    """Return a filter that charges the budget for a value that is about to be compared or hashed.

    A constant is returned as it is.
    """
    return node if isinstance(node, nodes.Const) else _filter(node, "_comparable")


class _Generation(Extension):
    """Accepts the tags {% generation %} … {% endgeneration %} around text to train on, and renders the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of one template. Set `budget` to a new Budget for each rendering."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        # Without the optimizer, and with a finalize that needs the context, nothing is computed during compilation.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.budget = Budget()
        self._now = now
        self.globals = {
            "range": self._range,
            "namespace": Namespace,
            "dict": dict,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        self.filters = {
            name: self._metered(FILTERS[name], name in _CONTENT_READING_FILTERS) for name in _PLAIN_FILTERS
        } | {
            "_comparable": self._comparable,
            "_counted": self._counted,
            "_concat": self._concat,
            "_literal": self._literal,
            "_slice": self._slice,
            "format": self._format,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "round": self._round,
            "string": self._string,
            "sum": self._sum,
            "tojson": self._tojson,
        }
        tests: dict[str, Any] = self.tests
        self.tests = tests | {name: self._charge_arguments(tests[name]) for name in _CONTENT_READING_TESTS}

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.budget.spend()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | int | float | bytes | dict | list | tuple):
            self._check_method(owner, obj.__name__, args)
        result = super().call(context, obj, *args, **kwargs)
        self.budget.spend(size_of(result))
        return result

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is not None:
            raise SecurityError("str.format is not available in templates")
        return None

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.spend(result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_BudgetInstrumenter().visit(source), *args, **kwargs)

    def _check_method(self, owner: object, name: str, args: tuple[Any, ...]) -> None:
        allowed = next(names for owner_type, names in _METHODS if isinstance(owner, owner_type))
        if name not in allowed:
            raise SecurityError(f"{type(owner).__name__}.{name} is not available in templates")
        if name in _CONTENT_READING_METHODS:
            for value in (owner, *args):
                self.budget.spend_on(value)
        if isinstance(owner, str) and name == "replace" and len(args) >= 2:
            self.budget.spend(replaced_size(owner, str(args[0]), str(args[1])))
        if isinstance(owner, str) and name == "join" and args and isinstance(args[0], list | tuple):
            self.budget.spend(num_chars(args[0]) + len(owner) * len(args[0]))

    def _charge_arguments(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def charged(*args: Any) -> Any:
            self.budget.spend()
            for value in args:
                self.budget.spend_on(value)
            return function(*args)

        return charged

    def _metered(self, function: Callable[..., Any], reads_content: bool) -> Callable[..., Any]:
        @wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            self.budget.spend()
            if reads_content:
                # Charge for every argument: a text may become a list of its characters, and some filters get the
                # environment as their first argument.
                for value in args:
                    self.budget.spend_on(value)
            result = function(*args, **kwargs)
            self.budget.spend(size_of(result))
            return result

        return metered

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        if len(numbers) > MAX_RANGE:
            raise SecurityError(f"range over {len(numbers)} numbers; at most {MAX_RANGE}")
        return numbers

    def _strftime_now(self, pattern: str) -> str:
        return self._now().strftime(str(pattern)[:256])

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, list | tuple | Mapping):
            self.budget.spend_on(value)
        return value

    def _round(self, value: float, precision: int = 0, method: str = "common") -> float:
        if abs(precision) > _MAX_PRECISION:
            raise SecurityError(f"round to {precision} digits; at most {_MAX_PRECISION}")
        self.budget.spend()
        return do_round(value, precision, method)  # type: ignore[arg-type]

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.spend()
            yield value

    def _concat(self, values: list[Any]) -> str:
        self.budget.spend(sum(map(num_chars, values)))
        return "".join(map(str, values))

    def _literal(self, value: Any) -> Any:
        self.budget.spend(size_of(value))
        return value

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        result = value[start:stop:step]
        self.budget.spend(size_of(result))
        return result

    def _format(self, pattern: str, *args: Any) -> str:
        self.budget.spend(result_size("%", pattern, args))
        return str(pattern % args)

    def _indent(self, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        size = len(width) if isinstance(width, str) else width
        if size > _MAX_INDENT:
            raise SecurityError(f"indent by {size}; at most {_MAX_INDENT}")
        self.budget.spend(len(text) + (text.count("\n") + 1) * size)
        return str(do_indent(text, width, first, blank))

    @pass_eval_context
    def _join(
        self, context: EvalContext, values: Iterable[Any], separator: str = "", attribute: str | int | None = None
    ) -> str:
        items = list(values)
        self.budget.spend(num_chars(items) + len(items) * len(separator))
        return str(do_join(context, items, separator, attribute))

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text = self._string(value)
        self.budget.spend(replaced_size(text, old, new))
        return text.replace(old, new, -1 if count is None else count)

    def _string(self, value: Any) -> str:
        self.budget.spend(num_chars(value))
        return str(value)

    def _sum(self, values: Iterable[Any], attribute: str | None = None, start: float = 0) -> Any:
        items = [value[attribute] if attribute is not None else value for value in values]
        if not all(isinstance(item, int | float) for item in [*items, start]):
            raise TemplateRuntimeError("sum adds numbers only")
        return sum(items, start)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if isinstance(value, RawJson) and not (ensure_ascii or indent or separators or sort_keys):
            return value.text
        if indent is not None and not 0 <= indent <= _MAX_INDENT:
            raise SecurityError(f"tojson with indent {indent}; at most {_MAX_INDENT}")
        self.budget.spend(num_chars(value))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise TemplateRaisedError(str(message)[:1000])


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    environment = context.environment
    assert isinstance(environment, Sandbox)
    if isinstance(value, str | Undefined):
        text = str(value)
        environment.budget.spend(len(text))
        return text
    environment.budget.spend(num_chars(value))
    return value
