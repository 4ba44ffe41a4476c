"""Pulls models for clients of the daemon, one at a time, in a thread. A disconnect of the client cancels the pull."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.config import StoreConfig
from edgeagent.credentials.grants import revoked, until_revoked
from edgeagent.errors import BackendUnavailable, EdgeAgentError, InternalError

if TYPE_CHECKING:
    from edgeagent.store.hub.pull import OnProgress, Progress, PulledModel

    Pulled = tuple[PulledModel, PulledModel | None]
    """A model and its draft model. The draft model is None if none was pulled."""

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.1


class Pulls:
    """Runs one pull at a time."""

    def __init__(self, store: StoreConfig, state_dir: Path) -> None:
        self._store = store
        self._state_dir = state_dir
        self._running: _Running | None = None

    async def run(self, name: str, *, with_draft: bool = True) -> AsyncGenerator[Progress | Pulled, None]:
        """Pull a model. Yield the progress, and at the end the model with its draft model.

        Raise the errors of `Puller.pull`, BackendUnavailable while another pull runs, or InternalError for an
        unexpected failure.

        Closing the generator cancels the pull: it ends at its next report of progress, and the downloaded bytes are
        kept. If the token of the request is removed, the pull is cancelled too, and Unauthorized is raised.
        """
        if self._running is not None and not self._running.is_done:
            raise BackendUnavailable("another model is being pulled; try again when that is done", retry_after_s=10)
        running = self._running = _Running(lambda on_progress: self._pull(name, on_progress, with_draft=with_draft))
        running.start()
        try:
            with until_revoked(running.revoke):
                while (progress := await running.next()) is not None:
                    yield progress
            if running.pulled is not None:
                yield running.pulled
        finally:
            running.cancel()

    def _pull(self, name: str, on_progress: OnProgress, *, with_draft: bool) -> Pulled:
        # Imported here, in the pull's thread: most daemons pull nothing.
        from edgeagent.store.hub.pull import Puller

        puller = Puller(self._store, self._state_dir)
        return puller.pull_with_draft(name, on_progress) if with_draft else (puller.pull(name, on_progress), None)


class _CancelledPull(Exception):
    """Raised in the pull's thread to end it, because its client has disconnected or the client's token was removed."""


class _Running:
    """One pull. Its thread passes progress and the result to the event loop, and reads `_is_cancelled`."""

    def __init__(self, pull: Callable[[OnProgress], Pulled]) -> None:
        self.is_done = False
        self.pulled: Pulled | None = None
        self._pull = pull
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._latest: Progress | None = None
        self._error: EdgeAgentError | None = None
        self._revoked: EdgeAgentError | None = None
        self._is_cancelled = False
        self._told: tuple[str, str] = ("", "")
        self._told_at_s = 0.0

    def start(self) -> None:
        # A daemon thread, so that a download from a silent server does not delay the end of the process.
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    def cancel(self) -> None:
        self._is_cancelled = True

    def revoke(self) -> None:
        self.cancel()
        self._revoked = revoked()
        self._changed.set()

    async def next(self) -> Progress | None:
        """Wait for new progress and return it; None at the end of the pull. Raise the error that ended the pull."""
        while self._latest is None and not self.is_done and self._revoked is None:
            self._changed.clear()
            await self._changed.wait()
        if self._revoked is not None:
            raise self._revoked
        if self._latest is None and self._error is not None:
            raise self._error
        latest, self._latest = self._latest, None
        return latest

    def _run(self) -> None:
        error: EdgeAgentError | None = None
        pulled: Pulled | None = None
        try:
            pulled = self._pull(self._on_progress)
        except EdgeAgentError as failure:
            error = failure
        except _CancelledPull:
            pass
        except Exception as failure:
            logger.error("a pull failed: %s", type(failure).__name__)
            error = InternalError("unhandled")
        with suppress(RuntimeError):  # the loop is closed: the daemon has ended
            self._loop.call_soon_threadsafe(self._end, pulled, error)

    def _on_progress(self, progress: Progress) -> None:
        if self._is_cancelled:
            raise _CancelledPull
        now, what = time.monotonic(), (progress.stage, progress.file)
        is_last = progress.done_bytes >= progress.total_bytes
        if what == self._told and not is_last and now - self._told_at_s < PROGRESS_INTERVAL_S:
            return
        self._told, self._told_at_s = what, now
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note, progress)

    def _note(self, progress: Progress) -> None:
        self._latest = progress
        self._changed.set()

    def _end(self, pulled: Pulled | None, error: EdgeAgentError | None) -> None:
        self.pulled = pulled
        self._error = error
        self.is_done = True
        self._changed.set()
