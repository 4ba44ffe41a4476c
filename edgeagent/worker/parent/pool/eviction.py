"""Makes room for a model: unloads the least recently used models, and refuses the model if that is not enough.

It never unloads a model with live requests. The caller passes the function that ends a worker.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from edgeagent.fit.placement import gpus_of
from edgeagent.worker.parent.pool.memory import (
    Devices,
    Memory,
    ResidentModel,
    describe_limit,
    describe_refusal,
    first_to_leave,
    free_bytes,
    read_memory,
)
from edgeagent.worker.parent.pool.pool_model import PoolModel

logger = logging.getLogger(__name__)


# How long a load waits for models with live requests. The requests for the new model wait too.
_MAX_WAIT_S = 20.0
_LOOK_S = 0.1
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class _Lack:
    """Why there is no room for a model. `text` is the message for clients.

    `free_bytes` is the memory that is free for the model; -1 if too many models are loaded. `is_coming`: whether
    there is room once the workers that are ending have ended.
    """

    text: str
    free_bytes: int = -1
    is_coming: bool = False


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A model whose worker is being ended, and how many bytes of memory it was predicted to use; 0 if unknown."""

    name: str
    num_bytes: int


class Eviction:
    """Decides which models share the machine's memory.

    `models` returns all models of the pool. `unload` begins to end a model's worker, and returns a task that is done
    when the worker has ended.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[PoolModel]],
        unload: Callable[[PoolModel], asyncio.Task[None]],
        clock: Callable[[], float],
        *,
        max_models: int = 0,
        read: Callable[[Collection[int]], Memory] = read_memory,
        max_wait_s: float = _MAX_WAIT_S,
    ) -> None:
        """`max_models`: the limit of loaded models; 0 means as many as fit."""
        self._models = models
        self._unload = unload
        self._clock = clock
        self._max_models = max_models
        self._read = read
        self._wake_after_s = max_wait_s
        self._ending: dict[asyncio.Task[None], _Leaving] = {}
        # The memory of all GPUs in bytes; None until a worker has reported its devices.
        self._gpu_bytes: int | None = 0 if sys.platform == "darwin" else None

    def unload(self, model: PoolModel) -> asyncio.Task[None]:
        """Begin to end a model's worker; return a task that is done when the worker has ended."""
        resident = model.resident()
        ending = self._unload(model)
        self._ending[ending] = _Leaving(model.name, 0 if resident is None else resident.needed_bytes)
        ending.add_done_callback(self._ending.pop)
        return ending

    async def wait_ended(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def make_room(self, model: PoolModel) -> None:
        """Unload idle models until there is room for this one; raise BackendUnavailable if there is none.

        If unloading is not enough, the model may be loaded with a shorter context that fits. If none fits, a pinned
        model (see PoolModel) may be loaded nevertheless. Any other model waits until busy models are idle, at most
        `max_wait_s` seconds (see the constructor).
        """
        await self._wait_for_itself(model)
        until_s = self._clock() + self._wake_after_s
        while (why := await self._why_no_room(model)) is not None:
            leaving = first_to_leave(self._others(model))
            if self._ending and (why.is_coming or leaving is None):
                await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
            elif leaving is not None:
                logger.info("%s is unloaded to make room for %s", leaving.name, model.name)
                self.unload(next(each for each in self._models() if each.name == leaving.name))
            elif self._clock() < until_s and self._cancel_unasked(model):
                await asyncio.sleep(_LOOK_S)
            elif why.free_bytes >= model.preparation.least_bytes:
                logger.info("%s is loaded with a shorter context: %s", model.name, why.text)
                model.has_reservation = True
                return
            elif model.is_pinned:
                logger.warning("%s is loaded although it does not fit: %s", model.name, why.text)
                return
            elif self._clock() < until_s and any(each.may_leave_later for each in self._others(model)):
                await asyncio.sleep(_LOOK_S)  # a model with live requests may become idle
            else:
                raise model.refuse(why.text, _RETRY_AFTER_S)

    def _cancel_unasked(self, model: PoolModel) -> bool:
        """Cancel the other models' answers that no client has asked for yet. Return whether one still runs."""
        still_run = [each for each in self._models() if each is not model and each.supervisor.cancel_unasked()]
        return bool(still_run)

    async def relieve(self) -> None:
        """Unload the least recently used idle model, because the machine is short of memory.

        Do nothing if there is no such model, or while a worker is being ended.
        """
        residents = self._others(None)
        leaving = first_to_leave(residents)
        if leaving is not None and not self._ending:
            logger.warning("%s is unloaded: the machine is short of memory", leaving.name)
            self.unload(next(each for each in self._models() if each.name == leaving.name))

    async def _wait_for_itself(self, model: PoolModel) -> None:
        """Wait until an earlier worker of the same model has ended, because that worker may still write its cache."""
        own = [task for task, leaving in self._ending.items() if leaving.name == model.name]
        if own:
            await asyncio.wait(own)

    async def _why_no_room(self, model: PoolModel) -> _Lack | None:
        """Return why a model does not fit now. If it fits, reserve its memory and return None.

        If the memory of the GPUs is not known yet, assume that the model fits into memory.
        """
        pids = [resident.pid for resident in self._others(model) if resident.pid is not None]
        memory = await asyncio.to_thread(self._read, pids)
        others = self._others(model)
        if self._max_models and len(others) + len(self._ending) >= self._max_models:
            is_coming = len(others) < self._max_models
            return _Lack(describe_limit(model.name, self._max_models, others), is_coming=is_coming)
        devices = self._devices(model)
        free = free_bytes(memory, others, devices or Devices())
        needed = model.preparation.needed_bytes
        model.room_bytes = free_bytes(memory, others)
        if devices is not None and needed > free:
            is_coming = needed <= free + sum(leaving.num_bytes for leaving in self._ending.values())
            return _Lack(describe_refusal(model.name, needed, free, others), free, is_coming)
        model.has_reservation = True
        return None

    def _others(self, model: PoolModel | None) -> list[ResidentModel]:
        residents = (each.resident() for each in self._models() if each is not model)
        return [resident for resident in residents if resident is not None]

    def _devices(self, model: PoolModel) -> Devices | None:
        """Return the memory of the GPUs that the model may use; None if it is not known yet."""
        used = 0
        for each in self._models():
            info = each.status().info
            if info is None:
                continue
            # An integrated GPU has no memory of its own.
            self._gpu_bytes = sum(gpu.total_bytes for gpu in gpus_of(info.devices) if not gpu.shares_memory)
            used += info.num_gpu_bytes
        if model.preparation.engine.gpu_layers == 0:
            return Devices()
        return None if self._gpu_bytes is None else Devices(self._gpu_bytes, used)
