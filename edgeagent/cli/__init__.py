"""The edgeagent command. The module of a command is imported only when that command is used."""

import contextlib
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. Until the command is imported, Ctrl-C ends the process at once."""
    # KeyboardInterrupt in the middle of an import would print a traceback. In an import of pydantic it would be lost.
    if sys.platform != "win32" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # this is not the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgeagent.cli.app import main as run

    return run(arguments)


__all__ = ["main"]
