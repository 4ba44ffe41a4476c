"""Imported by Python at start; makes edgeagent take its macOS branches."""

from tests.platforms.rename import rename

rename("darwin")
