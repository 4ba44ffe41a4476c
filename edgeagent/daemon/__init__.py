"""The daemon's process: `serve` takes a configuration and returns the process's exit status."""

from edgeagent.daemon.lifecycle import build_router, serve
from edgeagent.daemon.reporter import ConsoleReporter, Reporter
from edgeagent.daemon.state import ExitCode

__all__ = ["ConsoleReporter", "ExitCode", "Reporter", "build_router", "serve"]
