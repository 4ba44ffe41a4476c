"""Which models are served, under which names, and the worker of each.

It finds, checks and loads a model's files; it does not know their content or how a worker runs. One model is
configured; a second would be a second entry of `_supervisors`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edgeagent.config import Config
from edgeagent.errors import BackendUnavailable, ModelNotFound
from edgeagent.types import AnswerSoFar, GenerateRequest, ModelStatus, TextAnswer, TextQuery, WorkerState
from edgeagent.worker.fit import Header, check_draft, kv_bytes_per_token, num_cells_wanted
from edgeagent.worker.parent.kept_choices import KeptChoices
from edgeagent.worker.parent.live_requests import Sink
from edgeagent.worker.parent.model_files import GivenFolder, ModelFiles, identity
from edgeagent.worker.parent.pressure import read_pressure
from edgeagent.worker.parent.supervisor import WORKER_COMMAND, Supervisor
from edgeagent.worker.parent.watchdog import Patience
from edgeagent.worker.protocol import DiskCache, Load
from edgeagent.worker.sandbox.sandbox import READ_ONLY_FILES

_DEFAULT_NAMES = ("", "default")

logger = logging.getLogger(__name__)


class FoundModel(Protocol):
    """A model's files, as the store's resolver found them."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def draft_path(self) -> Path | None: ...


class Pool:
    """The models of this machine.

    `resolve` finds a model's files by name; `validate` raises ModelLoadFailed for a file that must not be loaded, and
    returns its header, if it could be read; `disk_cache` prepares a worker's disk cache. They run in a thread before
    each load. `kept` are the calibrations of earlier loads; None: only those of this process.
    """

    def __init__(
        self,
        config: Config,
        resolve: Callable[[str], FoundModel],
        validate: Callable[[Path], Header | None],
        *,
        command: Sequence[str] = WORKER_COMMAND,
        patience: Patience | None = None,
        disk_cache: Callable[[], DiskCache | None] = lambda: None,
        kept: KeptChoices | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._disk_cache = disk_cache
        self._kept = kept or KeptChoices()
        self._resolve = resolve
        self._validate = validate
        self._command = command
        save_s = config.server.drain_s if config.cache.disk_bytes else 0.0
        self._patience = patience or replace(Patience.from_config(config.engine), save_s=save_s)
        self._clock = clock
        self._supervisors: dict[str, Supervisor] = {}
        self._aliases: dict[str, str] = {}
        self.pressure = ""
        """What the machine is short of, in a word, as it was a moment ago."""
        self._watches: list[asyncio.Task[None]] = []
        self._writes: set[asyncio.Task[None]] = set()

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
        return next(iter(self._supervisors), self._config.model)

    def find_model(self, name: str) -> str:
        """Return the one name of a model that has several; raise ModelNotFound, or BackendUnavailable at the start."""
        if not self._supervisors:
            raise BackendUnavailable("no model is loaded yet; the daemon is starting", retry_after_s=1.0)
        found = self._aliases.get(name, name)
        if found not in self._supervisors:
            served = ", ".join(self._supervisors)
            raise ModelNotFound(f"model '{name[:256]}' not found; this daemon serves {served}", param="model")
        return found

    async def start(self) -> None:
        """Find the configured model and begin to load it; raise StoreError or NotFound where there is none.

        Returns when its files have been checked: files that must not be loaded have failed by then.
        """
        if self._supervisors:
            return
        files = await asyncio.to_thread(self._resolve, self._config.model)
        draft_path = files.draft_path if self._config.draft == "auto" else None
        if self._config.draft_model is not None:
            draft_path = (await asyncio.to_thread(self._resolve, self._config.draft_model)).path
        await self._add(files, draft_path).wait()

    async def stop(self) -> None:
        """End all workers and their requests."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, *self._writes, return_exceptions=True)
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))

    def models(self) -> list[ModelStatus]:
        """Return the status of each model."""
        return [supervisor.status() for supervisor in self._supervisors.values()]

    def status(self, model: str) -> ModelStatus:
        """Return the status of a model; raise ModelNotFound."""
        return self._supervisor(model).status()

    def num_live(self, model: str) -> int:
        """Return how many requests a model has that have not ended; raise ModelNotFound."""
        return self._supervisor(model).num_live

    def submit(self, request: GenerateRequest, sink: Sink, so_far: AnswerSoFar | None = None) -> None:
        """Give a request to its model's worker; raise ModelNotFound, or as Supervisor.submit does."""
        self._supervisor(request.model).submit(request, sink, so_far)

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Return a model's answer to a question about text; raise ModelNotFound, or as Supervisor.ask does."""
        return await self._supervisor(model).ask(query)

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any model; its sink gets a Finished."""
        for supervisor in self._supervisors.values():
            supervisor.cancel(request_id)

    def abandon(self, request_id: str) -> None:
        """Cancel a request and send its sink nothing more."""
        for supervisor in self._supervisors.values():
            supervisor.abandon(request_id)

    def reload(self, model: str) -> None:
        """Restart a model's worker; raise ModelNotFound."""
        self._supervisor(model).reload()

    def _add(self, found: FoundModel, draft_path: Path | None) -> asyncio.Event:
        """Begin to load a model; return an event that is set when its files have been checked."""
        checked = asyncio.Event()
        folder = GivenFolder()
        files = ModelFiles([path for path in (found.path, draft_path) if path is not None])

        async def prepare() -> Load:
            try:
                return await asyncio.to_thread(self._check, found, draft_path, files, folder)
            finally:
                checked.set()

        def keep(content: bytes) -> None:
            if content:
                write = asyncio.create_task(asyncio.to_thread(self._kept.write, found.path, content))
                self._writes.add(write)
                write.add_done_callback(self._writes.discard)

        supervisor = Supervisor(
            found.name, prepare, command=self._command, patience=self._patience, clock=self._clock, keep=keep
        )
        self._supervisors[found.name] = supervisor
        self._aliases = dict.fromkeys((*_DEFAULT_NAMES, self._config.model), found.name)
        supervisor.start()
        self._watches.append(asyncio.create_task(self._look_after(supervisor, files, folder)))
        return checked

    async def _look_after(self, supervisor: Supervisor, files: ModelFiles, folder: GivenFolder) -> None:
        """Load a model again if its files were replaced after a quarantine, or if its cache folder was made again."""
        while True:
            self.pressure = await asyncio.to_thread(read_pressure)
            await asyncio.sleep(self._patience.look_interval_s)
            status = supervisor.status()
            if status.state is WorkerState.QUARANTINED and await asyncio.to_thread(files.are_replaced):
                logger.warning("the files of %s were replaced; it is tried again", supervisor.name)
                supervisor.reload()
            elif _is_cut_off(status) and not supervisor.num_live and await asyncio.to_thread(folder.is_made_anew):
                # A sandbox is bound to the folder that existed when it was entered, so a new worker is needed.
                logger.warning(
                    "the cache folder of %s was deleted and created again; the model is loaded again to use it",
                    status.name,
                )
                supervisor.reload()

    def _check(self, found: FoundModel, draft_path: Path | None, files: ModelFiles, folder: GivenFolder) -> Load:
        """Check the files before each load: they may have changed since the last one."""
        files.give()
        headers = {path: header for path in files.paths if (header := self._validate(path)) is not None}
        model = headers.get(found.path)
        if model is not None and draft_path in headers:
            check_draft(model, found.path, headers[draft_path], draft_path)
        disk = self._disk_cache()
        folder.give(None if disk is None else Path(disk.folder))
        return Load(
            name=found.name,
            path=str(found.path.absolute()),
            draft_path=None if draft_path is None else str(draft_path.absolute()),
            engine_config=self._config.engine_with_drafts.model_dump_json().encode(),
            identity=identity(found.path),
            writable=() if disk is None else (disk.folder,),
            disk=disk,
            num_cells=0 if model is None else num_cells_wanted(model, self._config.engine),
            kv_bytes_per_token=kv_bytes_per_token(tuple(headers.values()), self._config.engine),
            num_trained=0 if model is None else model.context_length or 0,
            kept=self._kept.read(found.path),
        )

    def _supervisor(self, model: str) -> Supervisor:
        return self._supervisors[self.find_model(model)]


def _is_cut_off(status: ModelStatus) -> bool:
    """Whether a worker in a sandbox reports that it cannot write to its cache folder."""
    disk = status.worker.disk_cache if status.worker is not None else None
    is_enclosed = status.info is not None and READ_ONLY_FILES in status.info.sandbox
    return status.state is WorkerState.READY and is_enclosed and disk is not None and disk.trouble is not None
