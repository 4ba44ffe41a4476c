"""Copies a state folder's records on models for a daemon that temporarily has a state folder of its own."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from edgeagent.store.names.own import NAMES_FILE
from edgeagent.store.verified import VERIFIED_FILE


def lend_records(owner: Path, borrower: Path) -> None:
    """Copy the owner's names for models, and the records of verified files, so that these are not hashed again.

    Changes that the borrower makes to its copies are lost.
    """
    borrower.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (NAMES_FILE, VERIFIED_FILE):
        with suppress(OSError):
            shutil.copy2(owner / name, borrower / name)
