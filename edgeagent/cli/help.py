"""Formats the help of commands in plain words. typer would show types and ranges in Python's notation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

_TYPE = re.compile(r" <[^>]*>$")  # the type of an argument; its name is enough
_CHOICES = re.compile(r"<([^<>]*)>$")
_RANGES = (
    (re.compile(r"(\S+)<=x<=(\S+)\]$"), r"\1 to \2]"),
    (re.compile(r"x>=(\S+)\]$"), r"\1 or more]"),
    (re.compile(r"x<=(\S+)\]$"), r"\1 or less]"),
)


class PlainCommand(TyperCommand):
    """A command whose help shows values as N, FILE or a|b|c, and ranges as "1 or more"."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments, then the options."""
        for heading, kind in (("Arguments", "argument"), ("Options", "option")):
            params = [param for param in self.get_params(ctx) if param.param_type_name == kind]
            records = [record for param in params if (record := param.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl([plain_record(record, kind) for record in records])

    def collect_usage_pieces(self, ctx: Context) -> list[str]:
        """Return the parts of the usage line. A required argument is shown by its name only."""
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def plain_record(record: tuple[str, str], kind: str) -> tuple[str, str]:
    """Return the name and the text of a help line in plain words. `kind` is "argument" or "option"."""
    name, text = record
    return _plain_name(name, kind), _plain_range(text)


def _plain_name(name: str, kind: str) -> str:
    return _TYPE.sub("", name) if kind == "argument" else _CHOICES.sub(r"\1", name)


def _plain_range(text: str) -> str:
    for pattern, words in _RANGES:
        text = pattern.sub(words, text)
    return text
