"""The command table and the entry point. Only the command that is used is imported, so `--help` imports none."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import typer

from edgeagent.cli.display import complain
from edgeagent.cli.help import PlainCommand
from edgeagent.errors import EdgeAgentError

# typer's completion scripts for the shells put what they ask for (such as "complete_bash") into the first variable, and
# the words typed so far into one of the others.
COMPLETE_VARIABLE = "_EDGEAGENT_COMPLETE"
COMPLETION_VARIABLES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


@dataclass(frozen=True, slots=True)
class Command:
    """A command. `target` is the import path of its function, or of a Typer app if it has subcommands.

    `summary` is shown in the list of commands.
    """

    target: str
    summary: str


COMMANDS = {
    "serve": Command("edgeagent.cli.serve:serve", "Serve a model until stopped."),
    "run": Command("edgeagent.cli.run:run", "Chat with a model, or answer one prompt."),
    "status": Command("edgeagent.cli.status:status", "Show what the daemon runs, and how fast."),
    "stop": Command("edgeagent.cli.status:stop", "Stop the daemon; live requests may finish first."),
    "reload": Command("edgeagent.cli.status:reload", "Load a model again, also if it crashed too often."),
    "ps": Command("edgeagent.cli.status:ps", "List the loaded models, and how long they stay."),
    "load": Command("edgeagent.cli.status:load", "Load a model into the running daemon."),
    "unload": Command("edgeagent.cli.status:unload", "End a model's process, and free its memory."),
    "pull": Command("edgeagent.cli.pull:pull", "Download a model."),
    "list": Command("edgeagent.cli.models:list_models", "List the models on this machine."),
    "show": Command("edgeagent.cli.models:show", "Show one model: files, architecture, memory."),
    "fit": Command("edgeagent.cli.models:fit", "Show whether a model fits into memory, and what would."),
    "rm": Command("edgeagent.cli.changes:remove", "Delete models, and show how much space that frees."),
    "prune": Command("edgeagent.cli.changes:prune", "Delete downloads that no model needs."),
    "import": Command("edgeagent.cli.changes:import_models", "Use the models of Ollama, LM Studio or llama.cpp."),
    "cp": Command("edgeagent.cli.changes:copy", "Give a model another name."),
    "quantize": Command("edgeagent.cli.quantize:quantize", "Make a smaller copy of a model."),
    "bench": Command("edgeagent.cli.bench:bench_app", "Measure a server, or compare two."),
    "tune": Command("edgeagent.cli.tune:tune", "Find the fastest settings for a model."),
    "cache": Command("edgeagent.cli.cache:cache_app", "Show, purge or warm the prompt cache."),
    "token": Command("edgeagent.cli.token:token_app", "Replace the token, or give clients their own."),
    "remote": Command("edgeagent.cli.remote:remote_app", "Add and watch servers that may take requests."),
    "policy": Command("edgeagent.cli.settings:policy_app", "Show what the machine's policy allows."),
    "egress": Command("edgeagent.cli.egress:egress", "Show which requests left this machine."),
    "config": Command("edgeagent.cli.settings:config_app", "Show, check and change the settings."),
    "service": Command("edgeagent.cli.service:service_app", "Run the daemon as a service of this machine."),
    "uninstall-data": Command(
        "edgeagent.cli.uninstall:uninstall_data", "Show what is left on this machine; remove it."
    ),
    "doctor": Command("edgeagent.cli.machine:doctor", "Find problems on this machine."),
    "version": Command("edgeagent.cli.machine:version", "Show the versions of edgeagent and llama.cpp."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 1 failed, 2 wrong usage or setting, 130 interrupted.

    `serve` may also return another status of daemon.ExitCode.
    """
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Answers and file names may have characters that a terminal or a pipe (cp1252 on Windows) cannot encode.
        sys.stdout.reconfigure(errors="replace")
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments == ["--version"]:  # many users try this first
        arguments = ["version"]
    try:
        with _completing():
            wanted = _command_asked_for(arguments)
            app = build_app(wanted, has_options=arguments[0] != wanted)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set in edgeagent.cli for the time of the imports
                signal.signal(signal.SIGINT, signal.default_int_handler)
            # With standalone_mode=False the app returns the status of typer.Exit, or the command's result, here None.
            status = int(app(arguments, prog_name="edgeagent", standalone_mode=False) or 0)
            sys.stdout.flush()
            return status
    except typer.TyperException as error:
        # Imported only when needed, since its regular expressions take a while to compile.
        from edgeagent.cli.usage import usage_message

        complain(usage_message(error, arguments))
        return error.exit_code
    except EdgeAgentError as error:
        complain(error.message)
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit as leaving:
        # If the reader of the output is gone (`edgeagent list | head`), typer exits with status 1.
        if isinstance(leaving.__context__, BrokenPipeError):
            return 0
        raise
    except BrokenPipeError:
        # The reader of the output has gone, outside of a command.
        _discard_output()
        return 0
    except OSError as error:
        if _can_print():
            raise
        _discard_output()
        complain(f"cannot write the output: {error.strerror}")
        return 1


def build_app(wanted: str | None, *, has_options: bool = True) -> typer.Typer:
    """Return the Typer app with all commands. Import only the command `wanted`; import none if it is None.

    `has_options`: whether options may stand before the command (--help, and those of the shells' completion). To read
    one, typer imports pydantic, also if it is not given. That takes as long as all the rest of a command's help.
    """
    app = typer.Typer(
        name="edgeagent",
        help="A low-latency on-device inference daemon for GGUF models.",
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


def _can_print() -> bool:
    try:
        print(flush=True)  # noqa: T201
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Connect stdout to the null device, so that the interpreter's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """Open the null device in place of each standard stream that is closed, for example by `serve >&-`.

    Python sets a closed stream to None and leaves its descriptor free. The next opened file or socket would get that
    descriptor, and printed text could be written into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


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
