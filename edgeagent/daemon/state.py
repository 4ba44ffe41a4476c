"""The state folder: private to the user, locked by one daemon at a time. The running daemon's address is in it.

The file daemon.json has the address, for this user's programs. It is written once the daemon listens, and again if it
is removed or damaged. If it cannot be written, for example on a full disk, the daemon tries again every few seconds. It
runs anyway, since clients that know its address can use it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.metrics.slo import SloLedger
from edgeagent.runtime_file import (
    LOCK_FILE,
    Runtime,
    find_daemon,
    is_published,
    read_private,
    remove_runtime,
    write_private,
    write_runtime,
)
from edgeagent.state_files import holder, open_own, try_lock
from edgeagent.usable import NETWORK_FILE_SYSTEMS, file_system, process_text

logger = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """The exit status of the daemon. A service manager should restart it after FAILED only."""

    OK = 0
    FAILED = 1
    WRONG_SETTING = 2
    PORT_TAKEN = 3
    ALREADY_RUNNING = 4


class StartError(Exception):
    """Raised if the daemon cannot start. The message says why and what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def locked_state_dir(state_dir: Path) -> Iterator[None]:
    """Create the folder if there is none, make it private, and lock it until the context ends.

    Raise StartError if another daemon holds the lock, if the folder belongs to another user, or if it cannot be used. A
    folder that other users can access is refused if it has files but no lock file, since these may be another
    program's. The kernel releases the lock when the process ends, even after a crash.
    """
    _make_private(state_dir)
    path = state_dir / LOCK_FILE
    try:
        descriptor = open_own(path)
    except OSError as error:
        raise StartError(f"cannot use {path}: {error.strerror}; delete it, and start again") from error
    try:
        if not try_lock(descriptor):
            raise StartError(_already_running(state_dir), ExitCode.ALREADY_RUNNING)
        _warn_of_network(state_dir)
        yield
    finally:
        os.close(descriptor)


def _make_private(state_dir: Path) -> None:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sys.platform == "win32":
            return
        status = state_dir.stat()
        if status.st_uid != os.getuid():
            raise StartError(
                f"the state folder {state_dir} belongs to another user; choose one with --state-dir",
                ExitCode.WRONG_SETTING,
            )
        if status.st_mode & 0o077:
            # Other programs may have files in this folder, and making it private could break them.
            if not (state_dir / LOCK_FILE).exists() and any(state_dir.iterdir()):
                raise StartError(
                    f"the state folder {state_dir} is open to other users and holds other things; "
                    f"choose one with --state-dir, or run `chmod 700 {state_dir}` if all of it is edgeagent's",
                    ExitCode.WRONG_SETTING,
                )
            state_dir.chmod(0o700)  # fails on a read-only file system
    except OSError as error:
        raise StartError(
            f"cannot use the state folder {state_dir}: {error.strerror}; choose another with --state-dir"
        ) from error


def warn_if_missing(models_dir: Path | None) -> None:
    """Warn if the models' folder does not exist: a download would create it, but its name may be misspelt."""
    if models_dir is not None and not os.path.isdir(models_dir):  # noqa: PTH112 Path.is_dir may raise
        logger.warning("the models' folder %s does not exist; see store.models_dir, or --models-dir", models_dir)


def _warn_of_network(state_dir: Path) -> None:
    """Warn if the folder is on a network file system, where locks may hold on this machine only or not at all."""
    kind = file_system(state_dir)
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        logger.warning(
            "the state folder %s is on a network file system (%s), where locks are not reliable; "
            "choose one on this machine with --state-dir",
            state_dir,
            kind,
        )


def _already_running(state_dir: Path) -> str:
    try:
        daemon = find_daemon(state_dir)
    except ConfigError:
        daemon = None
    pid = daemon.pid if daemon else holder(state_dir / LOCK_FILE)
    who = ", ".join([*([process_text(pid)] if pid else []), *([daemon.url] if daemon else [])])
    return (
        f"another daemon{f' ({who})' if who else ''} holds the state folder {state_dir}: use that one, "
        "end it with `edgeagent stop`, or choose another folder with --state-dir"
    )


CHECK_S = 5.0


class Publication:
    """Writes and removes the runtime file of a running daemon."""

    def __init__(self, state_dir: Path, runtime: Runtime) -> None:
        self._state_dir = state_dir
        self._runtime = runtime
        self.trouble: str | None = None
        """Why the last write failed, and what follows from that. None if it did not fail, or if none was tried."""

    def publish(self) -> bool:
        """Write the file, and return whether that succeeded. Of failures in a row, only the first is logged."""
        try:
            write_runtime(self._state_dir, self._runtime)
        except ConfigError as error:
            if self.trouble is None:
                logger.warning(
                    "%s; requests to %s are served, but the command line and other programs do not find this daemon "
                    "until the file can be written, which is tried every few seconds",
                    error.message,
                    self._runtime.url,
                )
            self.trouble = f"{error.message}; programs that look for this daemon in the state folder do not find it"
            return False
        if self.trouble is not None:
            logger.info("daemon.json is written: programs find this daemon again")
            self.trouble = None
        return True

    async def keep_published(self) -> None:
        """Every CHECK_S, forever: write the file if it is not there, or if it is not this daemon's."""
        while True:
            await asyncio.sleep(CHECK_S)
            if not await asyncio.to_thread(is_published, self._state_dir, self._runtime.pid):
                # Not in a thread, which could write the file after `withdraw`.
                self.publish()

    def withdraw(self) -> None:
        """Remove the file if it is this daemon's own."""
        remove_runtime(self._state_dir, self._runtime.pid)


SLO_FILE = "slo.json"
# A crash costs the figures of this time at most. The file has some ten kilobytes, so a write a minute wears no flash.
SAVE_S = 60.0


class SloFile:
    """The file that keeps the SLO ledger over restarts. If it cannot be used, only its figures are lost."""

    def __init__(self, state_dir: Path, ledger: SloLedger) -> None:
        """Restore the ledger from the file."""
        self._path = state_dir / SLO_FILE
        self._ledger = ledger
        self._writing: asyncio.Future[None] | None = None
        self._has_failed = False
        try:
            # A day in which every tier runs at ten remotes too takes 2 MB.
            content = read_private(self._path, 16 << 20)
            if content is not None:
                ledger.restore(content)
        except (ConfigError, ValueError) as error:
            logger.warning("%s is not used, and its figures are lost: %s", self._path, error)

    async def keep_saved(self) -> None:
        """Write the file once in SAVE_S, forever, if anything has changed."""
        while True:
            await asyncio.sleep(SAVE_S)
            await self._save()

    async def close(self) -> None:
        """Write the file a last time."""
        if self._writing is not None:
            await self._writing
        await self._save()

    async def _save(self) -> None:
        self._ledger.tick()
        if not self._ledger.is_saved:
            # In a thread, since a disk may be slow. A write goes on if this task is cancelled; `close` waits for it.
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, self._ledger.dump()))
            await asyncio.shield(self._writing)

    def _write(self, content: bytes) -> None:
        try:
            write_private(self._path, content)
            self._has_failed = False
        except ConfigError as error:
            if not self._has_failed:
                logger.warning("%s; the figures of latency targets are lost at the next restart", error.message)
            self._has_failed = True
