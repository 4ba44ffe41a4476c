"""Imported by Python at start; makes edgeagent take its Windows branches."""

from tests.platforms.rename import rename

rename("win32")
