"""The daemon's process. `serve` runs it with a configuration and returns the exit status."""

from edgeagent.daemon.console import ConsoleReporter
from edgeagent.daemon.lifecycle import build_router, serve
from edgeagent.daemon.state import ExitCode

__all__ = ["ConsoleReporter", "ExitCode", "build_router", "serve"]
