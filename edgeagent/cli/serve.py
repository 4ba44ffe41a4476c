"""`edgeagent serve`: the daemon in the foreground, with every declared option as a flag."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Annotated

import typer

from edgeagent.cli.options import with_declared_options
from edgeagent.config_sources import LoadedConfig


def _serve(
    loaded: LoadedConfig,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Serve a model until stopped (Ctrl-C, SIGTERM or `edgeagent stop`).

    MODEL is a path to a .gguf, org/repo[:QUANT] of a model that was pulled, or builtin.
    """
    # Importing leaves almost no garbage, and looking for it takes a tenth of the imports' time. The daemon collects
    # garbage from the moment when it listens; see keep_collections_short.
    gc.disable()
    try:
        # Imported here, since help and errors about flags do not need fastapi and uvicorn.
        from edgeagent.process_settings import import_when_used, share_one_arena

        share_one_arena()  # before the first thread
        import_when_used("html", "logging.config", "prometheus_client", "uvicorn")  # the daemon takes 2.1 MB less
        from edgeagent.daemon import serve

        if until_stdin_closes:
            threading.Thread(target=_stop_at_end_of_input, name="stdin", daemon=True).start()
        raise typer.Exit(serve(loaded.config) or 0)
    finally:
        gc.enable()


def _stop_at_end_of_input() -> None:
    """Stop the daemon when its standard input closes.

    That happens when the parent process ends, even if it was killed.
    """
    # Do not use sys.stdin: a waiting thread would hold its lock, which makes the interpreter abort at exit.
    while os.read(0, 4096):
        pass
    if os.name == "nt":
        signal.raise_signal(signal.SIGTERM)  # on Windows os.kill would end the process without calling the handler
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # the signal interrupts the main thread's sleep


serve = with_declared_options(_serve, positional="model")
