"""Entry point of the edgeagent command, and of `python -m edgeagent`."""

import signal
import sys


def main() -> int:
    """Run the command line; return the exit status. Until the command is imported, Ctrl-C ends the process at once."""
    # As an exception it would appear in the middle of an import, which prints a traceback or, in pydantic, is lost.
    if sys.platform != "win32" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from edgeagent.cli import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
