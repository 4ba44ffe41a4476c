"""Which models are served, under which names, and the worker of each.

It knows how a model's files become a worker (found, checked, loaded); what is in the files, and how a worker lives, it
asks others. One model is configured; a second would be a second entry of `_supervisors`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from edgeagent.config import Config
from edgeagent.errors import BackendUnavailable, ModelNotFound
from edgeagent.types import GenerateRequest, ModelStatus, TextAnswer, TextQuery, WorkerState
from edgeagent.worker.ledger import Sink
from edgeagent.worker.model_files import ModelFiles, identity
from edgeagent.worker.protocol import DiskCache, Load
from edgeagent.worker.supervisor import WORKER_COMMAND, Supervisor
from edgeagent.worker.watchdog import Patience

_DEFAULT_NAMES = ("", "default")

logger = logging.getLogger(__name__)


class FoundModel(Protocol):
    """Where a model is: what the store's resolver answers."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def draft_path(self) -> Path | None: ...


class Pool:
    """The models of this machine.

    `resolve` finds a model's files by name; `validate` raises ModelLoadFailed for a file that must not be loaded;
    `disk_cache` makes ready what a worker may use of the disk. They run in a thread, before each load.
    """

    def __init__(
        self,
        config: Config,
        resolve: Callable[[str], FoundModel],
        validate: Callable[[Path], object],
        *,
        command: Sequence[str] = WORKER_COMMAND,
        patience: Patience | None = None,
        disk_cache: Callable[[], DiskCache | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._disk_cache = disk_cache
        self._resolve = resolve
        self._validate = validate
        self._command = command
        self._patience = patience or Patience.from_config(config.engine)
        self._clock = clock
        self._supervisors: dict[str, Supervisor] = {}
        self._aliases: dict[str, str] = {}
        self._watches: list[asyncio.Task[None]] = []

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
        return next(iter(self._supervisors), self._config.model)

    async def start(self) -> None:
        """Find the configured model and begin to load it; raise StoreError or NotFound where there is none."""
        if self._supervisors:
            return
        files = await asyncio.to_thread(self._resolve, self._config.model)
        draft_path = files.draft_path
        if self._config.draft is not None:
            draft_path = (await asyncio.to_thread(self._resolve, self._config.draft)).path
        self._add(files, draft_path)

    async def stop(self) -> None:
        """End all workers and their requests."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))

    def models(self) -> list[ModelStatus]:
        """Return what is known of each model."""
        return [supervisor.status() for supervisor in self._supervisors.values()]

    def num_live(self, model: str) -> int:
        """Return how many requests a model has that have not ended; raise ModelNotFound."""
        return self._supervisor(model).num_live

    def submit(self, request: GenerateRequest, sink: Sink) -> None:
        """Give a request to its model's worker; raise ModelNotFound, or as Supervisor.submit does."""
        self._supervisor(request.model).submit(request, sink)

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Return a model's answer to a question about text; raise ModelNotFound, or as Supervisor.ask does."""
        return await self._supervisor(model).ask(query)

    def cancel(self, request_id: str) -> None:
        """End a request politely, whichever model has it."""
        for supervisor in self._supervisors.values():
            supervisor.cancel(request_id)

    def abandon(self, request_id: str) -> None:
        """End a request whose sink wants nothing more."""
        for supervisor in self._supervisors.values():
            supervisor.abandon(request_id)

    def reload(self, model: str) -> None:
        """Start a model's worker anew; raise ModelNotFound."""
        self._supervisor(model).reload()

    def _add(self, found: FoundModel, draft_path: Path | None) -> None:
        files = ModelFiles([path for path in (found.path, draft_path) if path is not None])

        async def prepare() -> Load:
            return await asyncio.to_thread(self._check, found, draft_path, files)

        supervisor = Supervisor(found.name, prepare, command=self._command, patience=self._patience, clock=self._clock)
        self._supervisors[found.name] = supervisor
        self._aliases = dict.fromkeys((*_DEFAULT_NAMES, self._config.model), found.name)
        supervisor.start()
        self._watches.append(asyncio.create_task(self._lift_quarantine(supervisor, files)))

    async def _lift_quarantine(self, supervisor: Supervisor, files: ModelFiles) -> None:
        """Try a model again as soon as its files are not those any more that killed their workers."""
        while True:
            await asyncio.sleep(self._patience.look_interval_s)
            is_quarantined = supervisor.status().state is WorkerState.QUARANTINED
            if is_quarantined and await asyncio.to_thread(files.are_replaced):
                logger.warning("the files of %s were replaced; it is tried again", supervisor.name)
                supervisor.reload()

    def _check(self, found: FoundModel, draft_path: Path | None, files: ModelFiles) -> Load:
        """Look at the files before a worker does, before each load: they may have changed since the last."""
        files.give()
        for path in files.paths:
            self._validate(path)
        disk = self._disk_cache()
        return Load(
            name=found.name,
            path=str(found.path.absolute()),
            draft_path=None if draft_path is None else str(draft_path.absolute()),
            engine_config=self._config.engine.model_dump_json().encode(),
            identity=identity(found.path),
            writable=() if disk is None else (disk.folder,),
            disk=disk,
        )

    def _supervisor(self, model: str) -> Supervisor:
        if not self._supervisors:
            raise BackendUnavailable("no model is loaded yet; the daemon is starting", retry_after_s=1.0)
        supervisor = self._supervisors.get(self._aliases.get(model, model))
        if supervisor is None:
            names = ", ".join(self._supervisors)
            raise ModelNotFound(f"there is no model {model!r} here; available: {names}", param="model")
        return supervisor
