"""One model that the daemon knows: its worker, when it was last used, and how long it stays loaded without use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from edgeagent.errors import BackendUnavailable, ModelLoadFailed, ModelNotFound
from edgeagent.types import UNUSABLE, ModelStatus, WorkerState
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes
from edgeagent.worker.parent.pool.loading import LoadPreparation
from edgeagent.worker.parent.pool.memory import ResidentModel
from edgeagent.worker.parent.supervision.load_time import LoadTime
from edgeagent.worker.parent.supervision.supervisor import Supervisor
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.protocol import Load, Power
from edgeagent.worker.sandbox.sandbox import READ_ONLY_FILES

# A model that is not pinned and has no worker is forgotten when it was not used for this time.
_FORGET_S = 600.0


@dataclass(frozen=True, slots=True)
class Workers:
    """What every model needs to start its worker.

    `make_room` frees memory for a model, or raises an error if the model cannot be loaded. `power` returns how much of
    the machine a worker may use now.
    """

    command: Sequence[str]
    limits: SupervisionLimits
    clock: Callable[[], float]
    make_room: Callable[[PoolModel], Awaitable[None]]
    power: Callable[[], Power]


class PoolModel:
    """A model, loaded or not. A request loads it if it is not loaded.

    `is_pinned`: it is unloaded neither to make room nor because it is unused. `keep_alive_s`: how many seconds it stays
    loaded after its last use.
    """

    def __init__(
        self,
        preparation: LoadPreparation,
        workers: Workers,
        load_time: LoadTime,
        prefixes: KnownPrefixes,
        *,
        is_pinned: bool,
    ) -> None:
        self.name = preparation.name
        self.prefixes = prefixes
        self.preparation = preparation
        self.is_pinned = is_pinned
        self.has_reservation = self.lacks_room = False
        """`has_reservation`: memory is reserved for the worker. `lacks_room`: the last load failed for lack of it."""
        self.room_bytes = 0
        """How much of the machine's memory its load may use, in bytes; 0 means all that is free."""
        self.checked = asyncio.Event()
        """Set when its files have been checked for the first time."""
        self._usual_keep_alive_s = self.keep_alive_s = math.inf if is_pinned else preparation.keep_alive_s
        self._workers = workers
        self._load_time = load_time
        self._used_at_s = workers.clock()
        self._was_busy = False
        self.supervisor = self._make_supervisor()

    def _make_supervisor(self) -> Supervisor:
        workers = self._workers
        return Supervisor(
            self.name,
            self._prepare,
            command=workers.command,
            limits=workers.limits,
            clock=workers.clock,
            load_time=self._load_time,
            omit_part=self.preparation.fatal.omit,
            disk_share=self.preparation.disk_share,
            power=workers.power,
        )

    async def _prepare(self) -> Load:
        self.has_reservation = self.lacks_room = False
        try:
            load = await asyncio.to_thread(self.preparation.load)
        except OSError as error:  # a file was removed or its disk has gone
            raise ModelLoadFailed(f"a file of {self.name} cannot be read: {error}") from None
        finally:
            self.checked.set()
        await self._workers.make_room(self)
        self.has_reservation = True
        return replace(load, room_bytes=self.room_bytes)

    @property
    def adapters(self) -> Mapping[str, Path]:
        return self.preparation.adapters

    def check_adapter(self, name: str) -> None:
        """Raise ModelNotFound if the model has no adapter with this name."""
        if name not in self.adapters:
            known = f"{self.name} has these adapters: {', '.join(self.adapters) or 'none'}"
            raise ModelNotFound(f"model '{self.name}+{name[:256]}' not found; {known}", param="model")

    def pin(self) -> None:
        """Stop the model from expiring and from being unloaded to make room. `Pool.unload` still ends its worker."""
        self.is_pinned = True
        self._usual_keep_alive_s = self.keep_alive_s = math.inf

    def renew(self) -> Supervisor:
        """Replace the supervisor by a new one without a worker, and reset `keep_alive_s`.

        Return the old supervisor, which the caller must stop.
        """
        old = self.supervisor
        self.supervisor, self.keep_alive_s = self._make_supervisor(), self._usual_keep_alive_s
        return old

    def note_use(self) -> None:
        """Update the time of the last use. Call this when a request arrives or ends, and from time to time."""
        is_busy = self.supervisor.is_busy
        if is_busy or self._was_busy:
            self._used_at_s = self._workers.clock()
        self._was_busy = is_busy

    @property
    def idle_s(self) -> float:
        """For how many seconds the model has been idle; 0 while it is in use."""
        return 0.0 if self.supervisor.is_busy else self._workers.clock() - self._used_at_s

    @property
    def state(self) -> WorkerState:
        return self.supervisor.status().state

    @property
    def is_expired(self) -> bool:
        return self.state is WorkerState.READY and not self.supervisor.is_busy and self.idle_s >= self.keep_alive_s

    @property
    def is_forgettable(self) -> bool:
        """Whether the pool may forget the model: it is not pinned, has no worker, and was not used for ten minutes."""
        return not self.is_pinned and self.state in (WorkerState.STOPPED, *UNUSABLE) and self.idle_s >= _FORGET_S

    @property
    def cache_bytes(self) -> tuple[Path, int] | None:
        """The folder of the model's cached blocks and their bytes; None if no worker writes there."""
        status, folder = self.supervisor.status(), self.preparation.cache_folder
        if folder is None or status.state in (WorkerState.STOPPED, *UNUSABLE):
            return None
        if status.worker is None:
            return folder, 0
        return None if status.worker.disk_cache is None else (folder, status.worker.disk_cache.num_bytes)

    @property
    def may_have_lost_cache(self) -> bool:
        """Whether the model's worker is sandboxed and reports trouble with its disk cache."""
        status = self.supervisor.status()
        disk = status.worker.disk_cache if status.worker is not None else None
        is_enclosed = status.info is not None and READ_ONLY_FILES in status.info.sandbox
        return status.state is WorkerState.READY and is_enclosed and disk is not None and disk.trouble is not None

    def status(self) -> ModelStatus:
        """Return the model's status, including when it will be unloaded."""
        status = self.supervisor.status()
        is_kept = status.state is not WorkerState.READY or math.isinf(self.keep_alive_s)
        unload_in_s = None if is_kept else max(0.0, self.keep_alive_s - self.idle_s)
        return replace(
            status,
            is_pinned=self.is_pinned,
            unload_in_s=unload_in_s,
            idle_s=self.idle_s,
            adapters=tuple(self.preparation.adapters),
            num_live=max(self.supervisor.num_live, int(self.supervisor.is_busy)),  # questions about text count as 1
            sha256=self.preparation.sha256 or None,
            files=self.preparation.model_files(),
        )

    def resident(self) -> ResidentModel | None:
        """Return the model's use of the machine's memory; None without a worker or without memory reserved for it."""
        status = self.supervisor.status()
        if status.state in (WorkerState.STOPPED, *UNUSABLE) or not self.has_reservation:
            return None
        return ResidentModel(
            self.name,
            status.pid,
            self.preparation.needed_bytes,
            self.preparation.weights_bytes,
            self.idle_s,
            is_loading=status.state is WorkerState.STARTING,
            why_staying=self._why_staying(status.state),
            may_leave_later=not self.is_pinned,
        )

    def _why_staying(self, state: WorkerState) -> str:
        if self.supervisor.is_busy:
            return "is serving" if state is WorkerState.READY else "is loading"
        if state is not WorkerState.READY:
            return "is loading"
        return "is pinned" if self.is_pinned else ""

    def refuse(self, why: str, retry_after_s: float) -> BackendUnavailable:
        """Record that there is no memory for the model; return the error for its load, whose message is `why`."""
        self.lacks_room = True
        return BackendUnavailable(why, retry_after_s=retry_after_s, served_by="local")
