"""The edgeagent command: one module for each command group, imported only when its command is asked for."""

from edgeagent.cli.app import main

__all__ = ["main"]
