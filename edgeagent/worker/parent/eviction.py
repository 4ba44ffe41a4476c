"""Makes room for a model: unloads those that were unused for longest, and refuses where that is not enough.

It ends workers through a function of its owner, and never one that serves.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterable

from edgeagent.worker.parent.loaded_model import LoadedModel
from edgeagent.worker.parent.memory import Memory, read_memory
from edgeagent.worker.parent.room import Devices, Tenant, describe_limit, describe_refusal, first_to_leave, free_bytes

# How long a load waits for models that serve; its requests wait with it.
_MAX_WAIT_S = 20.0
_LOOK_S = 0.1
_RETRY_AFTER_S = 5.0

logger = logging.getLogger(__name__)


class Eviction:
    """Decides which models share the machine's memory. `models` lists them; `unload` ends one's worker."""

    def __init__(
        self,
        models: Callable[[], Iterable[LoadedModel]],
        unload: Callable[[LoadedModel], asyncio.Task[None]],
        clock: Callable[[], float],
        *,
        max_models: int = 0,
        read: Callable[[Collection[int]], Memory] = read_memory,
        max_wait_s: float = _MAX_WAIT_S,
    ) -> None:
        """With `max_models` of 0 as many are loaded as fit."""
        self._models = models
        self._unload = unload
        self._clock = clock
        self._max_models = max_models
        self._read = read
        self._max_wait_s = max_wait_s
        self._ending: dict[asyncio.Task[None], str] = {}
        # Of all GPUs; None until a worker has told which there are.
        self._gpu_bytes: int | None = 0 if sys.platform == "darwin" else None

    def unload(self, model: LoadedModel) -> asyncio.Task[None]:
        """Begin to end a model's worker; return the task that ends with it."""
        ending = self._unload(model)
        self._ending[ending] = model.name
        ending.add_done_callback(self._ending.pop)
        return ending

    async def wait_ended(self) -> None:
        """Wait for all workers that are being ended."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def make_room(self, model: LoadedModel) -> None:
        """Return once there is room for a model, after others were unloaded; raise BackendUnavailable where there is
        none. A pinned model is loaded in any case.
        """
        await self._wait_for_itself(model)
        until_s = self._clock() + self._max_wait_s
        while (why := await self._why_no_room(model)) is not None:
            leaving = first_to_leave(self._others(model))
            if leaving is not None:
                logger.info("%s is unloaded to make room for %s", leaving.name, model.name)
                self.unload(next(each for each in self._models() if each.name == leaving.name))
            elif self._ending:
                await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
            elif model.is_pinned:
                logger.warning("%s is loaded all the same: %s", model.name, why)
                return
            elif self._clock() < until_s and any(each.may_leave_later for each in self._others(model)):
                await asyncio.sleep(_LOOK_S)  # one that serves may become idle
            else:
                raise model.refuse(why, _RETRY_AFTER_S)

    async def relieve(self) -> None:
        """Unload the model that was unused for longest, if there is one: the machine is short of memory."""
        tenants = self._others(None)
        leaving = first_to_leave(tenants)
        if leaving is not None and not self._ending:
            logger.warning("%s is unloaded: the machine is short of memory", leaving.name)
            self.unload(next(each for each in self._models() if each.name == leaving.name))

    async def _wait_for_itself(self, model: LoadedModel) -> None:
        """Wait for an earlier worker of the same model, which may still write its cache."""
        own = [task for task, name in self._ending.items() if name == model.name]
        if own:
            await asyncio.wait(own)

    async def _why_no_room(self, model: LoadedModel) -> str | None:
        """Return why a model does not fit now, None where it does; it then has the room."""
        pids = [tenant.pid for tenant in self._others(model) if tenant.pid is not None]
        memory = await asyncio.to_thread(self._read, pids)
        others = self._others(model)
        if self._max_models and len(others) + len(self._ending) >= self._max_models:
            return describe_limit(model.name, self._max_models, others)
        devices = self._devices(model)
        free = free_bytes(memory, others, devices or Devices())
        needed = model.preparation.needed_bytes
        if devices is not None and needed > free:
            return describe_refusal(model.name, needed, free, others)
        model.has_room = True
        return None

    def _others(self, model: LoadedModel | None) -> list[Tenant]:
        tenants = (each.tenant() for each in self._models() if each is not model)
        return [tenant for tenant in tenants if tenant is not None]

    def _devices(self, model: LoadedModel) -> Devices | None:
        """Return what is known of the GPUs; None where a model may use some of which nothing is known yet."""
        used = 0
        for each in self._models():
            info = each.status().info
            if info is None:
                continue
            if sys.platform != "darwin":  # there a GPU has no memory of its own
                self._gpu_bytes = sum(device.memory_total_bytes for device in info.devices if device.kind == "gpu")
            if info.num_layers:
                used += round(each.preparation.needed_bytes * min(1.0, info.num_gpu_layers / info.num_layers))
        if model.preparation.engine.gpu_layers == 0:
            return Devices()
        return None if self._gpu_bytes is None else Devices(self._gpu_bytes, used)
