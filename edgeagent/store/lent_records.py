"""What a state folder says of models, lent to a daemon that has a state folder of its own for a while."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from edgeagent.store.names.own import NAMES_FILE
from edgeagent.store.verified import VERIFIED_FILE


def lend_records(owner: Path, borrower: Path) -> None:
    """Copy the names that the owner gave, and which files were found right; those need not be read again.

    What the borrower adds to its copies is lost.
    """
    borrower.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (NAMES_FILE, VERIFIED_FILE):
        with suppress(OSError):
            shutil.copy2(owner / name, borrower / name)
