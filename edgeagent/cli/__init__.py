"""The edgeagent command. The module of a command is imported only when that command is used."""

import contextlib
import signal
import sys
from collections.abc import Sequence

from edgeagent.cli.streams import raise_interrupts, with_usable_streams


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0 done, 1 failed, 2 wrong usage or setting, 130 interrupted.

    `serve` may also return another status of daemon.ExitCode. Until the command is imported, Ctrl-C ends the process at
    once.
    """
    # KeyboardInterrupt in the middle of an import would print a traceback. In an import of pydantic it would be lost.
    if sys.platform != "win32" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # this is not the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = list(sys.argv[1:] if arguments is None else arguments)
    return with_usable_streams(lambda: _run(words))


def _run(words: list[str]) -> int:
    from edgeagent.cli.commands import short_answer

    answer = short_answer(words)
    if answer is not None:
        raise_interrupts()
        sys.stdout.write(f"{answer}\n")
        return 0
    from edgeagent.cli.app import run

    return run(words)


__all__ = ["main"]
