"""The standard streams and the interrupt of a command.

Closed streams are opened, and an output that cannot be written is no traceback.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable


def with_usable_streams(run: Callable[[], int]) -> int:
    """Call `run` and return its exit status: 0 also if the reader of the output has gone, 1 if it cannot be written."""
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Answers and file names may have characters that a terminal or a pipe (cp1252 on Windows) cannot encode.
        sys.stdout.reconfigure(errors="replace")
    try:
        status = run()
        sys.stdout.flush()
        return status
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
        from edgeagent.cli.display import complain

        complain(f"cannot write the output: {error.strerror}")
        return 1


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again. The caller has imported what it needs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
