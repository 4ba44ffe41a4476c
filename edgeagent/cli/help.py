"""Commands with help in plain words, and values that are read without pydantic.

typer would show types and ranges in Python's notation. To convert values, it would import pydantic and build an adapter
for each option, given or not: 0.07 s for `serve`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer._click import Context
from typer._coercion import RuntimeParam, build_runtime_param
from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import HelpFormatter

SHOWS_ALL = "edgeagent.shows_all"
"""Set in a context's `meta` if its help has the options of all groups."""
FIRST_PAGE = ("Arguments", "Model", "Network", "Privacy", "Options")
"""The groups on the first page of a command's help, in their order. `--help-all` shows the others below them."""
_TYPE = re.compile(r" <[^>]*>$")  # the type of an argument; its name is enough
_CHOICES = re.compile(r"<([^<>]*)>$")
_RANGES = (
    (re.compile(r"(\S+)<=x<=(\S+)\]$"), r"\1 to \2]"),
    (re.compile(r"x>=(\S+)\]$"), r"\1 or more]"),
    (re.compile(r"x<=(\S+)\]$"), r"\1 or less]"),
)


DEFAULT_COMMAND = "measure"
"""The subcommand of `edgeagent bench` whose name may be left out, and is left out in help and errors."""


class _PlainContext(Context):
    @property
    def command_path(self) -> str:
        return super().command_path.removesuffix(f" {DEFAULT_COMMAND}")


class _AsGiven(RuntimeParam):
    """Keeps a text as it is. Other values are converted as typer does it."""

    def _coerce_value(self, value: Any, param: Any, ctx: Context) -> Any:
        if type(value) is str and self.annotation is str:
            return value
        return build_runtime_param(param.type_descriptor)._coerce_value(value, param, ctx)


class PlainCommand(TyperCommand):
    """A command whose help shows values as N, FILE or a|b|c, and ranges as "1 or more"."""

    context_class = _PlainContext

    def get_params(self, ctx: Context) -> list[Any]:
        """Return the command's parameters and the help option, which convert no texts."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if param._runtime_param is None:
                described = param.type_descriptor
                param._runtime_param = _AsGiven(described.parameter_info, described.annotation)
        return params

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the groups of FIRST_PAGE; for `--help-all`, then the others."""
        shown: dict[str, list[tuple[str, str]]] = {}
        num_more = 0
        for param in self.get_params(ctx):
            kind = param.param_type_name
            group = "Arguments" if kind == "argument" else getattr(param, "rich_help_panel", None) or "Options"
            if group not in FIRST_PAGE and SHOWS_ALL not in ctx.meta:
                num_more += 1
            elif (record := param.get_help_record(ctx)) is not None:
                shown.setdefault(group, []).append(plain_record(record, kind))
        for group in (*FIRST_PAGE, *(group for group in shown if group not in FIRST_PAGE)):
            if group in shown:
                with formatter.section(group):
                    formatter.write_dl(shown[group])
        if num_more:
            formatter.write_paragraph()
            formatter.write_text(f"{num_more} more options: {ctx.command_path} --help-all")

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return the parts of the usage line. A required argument is shown by its name only."""
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def plain_record(record: tuple[str, str], kind: str) -> tuple[str, str]:
    """Return the name and the text of a help line in plain words. `kind` is "argument" or "option"."""
    name, text = record
    name = _TYPE.sub("", name) if kind == "argument" else _CHOICES.sub(r"\1", name)
    for pattern, words in _RANGES:
        text = pattern.sub(words, text)
    return name, text
