"""Copies a state folder's records on models for a daemon that temporarily has a state folder of its own."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from edgeagent.store.names.own import NAMES_FILE
from edgeagent.store.verified import VERIFIED_FILE


def lend_records(owner: Path, borrower: Path) -> None:
    """Copy the owner's names of models and the records of verified files from one state folder to another.

    `owner` and `borrower` are the two state folders. With the records, the borrower need not hash verified files again.
    Changes in the borrower's copies are not copied back.
    """
    borrower.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (NAMES_FILE, VERIFIED_FILE):
        with suppress(OSError):
            shutil.copy2(owner / name, borrower / name)
