"""Copies records about models to the temporary state folder of another daemon."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from edgeagent.store.names.own import NAMES_FILE
from edgeagent.store.verified import VERIFIED_FILE


def lend_records(owner: Path, borrower: Path) -> None:
    """Copy the user's names of models and the record of verified files to another state folder.

    They are copied from the state folder `owner` to the state folder `borrower`. With them, a daemon that uses
    `borrower` need not hash verified files again. What cannot be copied is left out. Nothing is copied back later.
    """
    borrower.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (NAMES_FILE, VERIFIED_FILE):
        with suppress(OSError):
            shutil.copy2(owner / name, borrower / name)
