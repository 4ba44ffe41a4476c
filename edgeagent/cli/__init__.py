"""The edgeagent command: one module for each command group, imported only when its command is used."""

from edgeagent.cli.app import main

__all__ = ["main"]
