"""The daemon's process. `serve` runs it with a configuration and returns the exit status."""

from edgeagent.daemon.console import ConsoleReporter, Reporter
from edgeagent.daemon.lifecycle import build_router, serve
from edgeagent.daemon.state import ExitCode

__all__ = ["ConsoleReporter", "ExitCode", "Reporter", "build_router", "serve"]
