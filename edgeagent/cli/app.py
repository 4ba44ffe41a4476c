"""The typer app. Only the command that is used is imported."""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import typer

from edgeagent.cli.commands import COMMANDS, COMPLETE_VARIABLE, HELP
from edgeagent.cli.display import complain
from edgeagent.cli.help import PlainCommand
from edgeagent.cli.streams import raise_interrupts
from edgeagent.errors import EdgeAgentError

# typer's completion scripts for the shells put the words typed so far into one of these variables.
COMPLETION_VARIABLES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name; return the exit status. See `edgeagent.cli.main`."""
    arguments = list(arguments) or ["--help"]
    try:
        with _completing():
            wanted = _command_asked_for(arguments)
            app = build_app(wanted, has_options=arguments[0] != wanted)
            raise_interrupts()
            # With standalone_mode=False the app returns the status of typer.Exit, or the command's result, here None.
            return int(app(arguments, prog_name="edgeagent", standalone_mode=False) or 0)
    except typer.TyperException as error:
        # Imported only when needed, since its regular expressions take a while to compile.
        from edgeagent.cli.usage import usage_message

        complain(usage_message(error, arguments))
        return error.exit_code
    except EdgeAgentError as error:
        if "--json" in itertools.takewhile(lambda word: word != "--", arguments):
            # On one line, since some commands print one JSON object a line.
            typer.echo(json.dumps({"error": {"code": error.code, "message": error.message}}))
        complain(error.message)
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        return 130


def build_app(wanted: str | None, *, has_options: bool = True) -> typer.Typer:
    """Return the Typer app with all commands. Import only the command `wanted`; import none if it is None.

    `has_options`: whether options may stand before the command (--help, and those of the shells' completion). To read
    one, typer imports pydantic, also if it is not given. That takes as long as all the rest of a command's help.
    """
    app = typer.Typer(
        name="edgeagent",
        help=HELP,
        context_settings={"help_option_names": ["--help", "-h"]},
        rich_markup_mode=None,  # rich would double the start-up time
        add_completion=has_options,
        add_help_option=has_options,
        pretty_exceptions_enable=False,
    )
    for name, command in COMMANDS.items():
        target = _resolve(command.target) if name == wanted else _unimported
        if isinstance(target, typer.Typer):
            for member in target.registered_commands:
                member.cls = PlainCommand
            app.add_typer(target, name=name, help=command.summary)
        else:
            app.command(name, cls=PlainCommand, short_help=command.summary)(target)
    return app


def _resolve(target: str) -> Callable[..., Any] | typer.Typer:
    module, _, attribute = target.partition(":")
    resolved: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(module), attribute)
    return resolved


def _unimported() -> None:
    raise AssertionError("a command was reached that the arguments did not name")


def _completing() -> AbstractContextManager[None]:
    """Return `bash_words_joined()` if bash asks for completions, otherwise a context manager without effect."""
    if os.environ.get(COMPLETE_VARIABLE) != "complete_bash":
        return nullcontext()
    from edgeagent.cli.completion import bash_words_joined

    return bash_words_joined()


def _command_asked_for(arguments: Sequence[str]) -> str | None:
    typed = [word for variable in COMPLETION_VARIABLES for word in os.environ.get(variable, "").split()]
    return next((word for word in (*arguments, *typed) if word in COMMANDS), None)
