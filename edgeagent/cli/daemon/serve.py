"""`edgeagent serve`: the daemon in the foreground, with every declared option as a flag."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated

import typer

from edgeagent.cli.options import with_declared_options
from edgeagent.config_sources import LoadedConfig

STDIN = 0


def _serve(
    loaded: LoadedConfig,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Serve a model until stopped (Ctrl-C, SIGTERM or `edgeagent stop`).

    MODEL is a path to a .gguf, org/repo[:QUANT] of a model that was pulled, or builtin.
    """
    # fastapi and uvicorn are not needed to print help or complain about a flag.
    from edgeagent.daemon import serve

    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_input, name="stdin", daemon=True).start()
    raise typer.Exit(serve(loaded.config) or 0)


def _stop_at_end_of_input() -> None:
    """Stop the daemon when the process that started it is gone: its end of the pipe closes even without a clean-up."""
    # Not through sys.stdin: its lock, held by a waiting thread, makes the interpreter abort at exit.
    while os.read(STDIN, 4096):
        pass
    if os.name == "nt":
        signal.raise_signal(signal.SIGTERM)  # os.kill would end the process there without a handler
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # the signal goes to the main thread and interrupts its sleep


serve = with_declared_options(_serve, positional="model")
