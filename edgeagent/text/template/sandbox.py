"""The Jinja environment of a model's template.

A template is part of a model file that anyone may have made. Jinja's sandbox restricts attributes, so that a template
has access to plain values only. Its work and its memory are not limited here; the renderer's process is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_SOURCE_CHARS = 256 << 10

_FILTERS = re.findall(
    r"\w+",
    "abs capitalize count d default dictsort e escape first float format groupby indent int items join last length "
    "list lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title trim "
    "truncate unique upper wordcount",
)


class TemplateRaisedError(Exception):
    """The template called raise_exception, with this message."""


class RawJson(dict[str, Any]):
    """A JSON object with its original text, so that `tojson` returns exactly what the model wrote."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class _Generation(Extension):
    """Accepts the tags {% generation %} … {% endgeneration %} around text to train on, and renders the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of one template. `now` returns the time for templates that show the date."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.globals = {
            "range": range,
            "namespace": Namespace,
            "dict": dict,
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: now().strftime(str(pattern)),
        }
        self.filters = {name: FILTERS[name] for name in _FILTERS} | {"tojson": _tojson}


def _raise_exception(message: object) -> None:
    raise TemplateRaisedError(str(message)[:1000])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, RawJson) and not (ensure_ascii or indent or separators or sort_keys):
        return value.text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
