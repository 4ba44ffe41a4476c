"""The models on this machine by name. Each gets its own worker when it is requested.

The pool finds a model's files, and starts, keeps and ends workers. Other modules know the files' content, how a worker
runs, and how memory is freed for a model.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from edgeagent.config import Config
from edgeagent.errors import BackendUnavailable, EdgeAgentError, InvalidRequest, ModelNotFound, NotSupported
from edgeagent.store.library import DEFAULT_NAMES, Found
from edgeagent.types import (
    AnswerSoFar,
    Embed,
    GenerateRequest,
    ModelStatus,
    PurgeCache,
    QueryAnswer,
    Rerank,
    TextQuery,
    WorkerState,
)
from edgeagent.units import seconds_of
from edgeagent.worker.parent.pool.cache_shares import CacheShares
from edgeagent.worker.parent.pool.eviction import Eviction
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes
from edgeagent.worker.parent.pool.loading import LoadPreparation, ModelSource
from edgeagent.worker.parent.pool.memory import HOLD_S, UNPLUGGED, Memory, power_under, read_memory, read_pressure
from edgeagent.worker.parent.pool.pool_model import PoolModel, Workers
from edgeagent.worker.parent.supervision.load_time import LoadTime, guessed_s
from edgeagent.worker.parent.supervision.model_requests import Receiver
from edgeagent.worker.parent.supervision.supervisor import WORKER_COMMAND
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.protocol import FULL_POWER

logger = logging.getLogger(__name__)

_MAX_NAMES = 4096
_PRESSED_S = 1.0  # between two looks while memory is short, since each unloads one model at most
_LAST_SAVE_S = 2.0  # of known prefixes, at the end; only a disk that hangs takes longer


class KnownNames:
    """Maps names to models that were found. Any other name maps to itself.

    `stamp` returns a value that changes whenever the machine's owner adds or removes a name. After a change, the names
    that `add` mapped are forgotten. `stamp` is called for each request, so it must be fast.
    """

    def __init__(self, stamp: Callable[[], object]) -> None:
        self._stamp = stamp
        self._seen = stamp()
        self._fixed: dict[str, str] = {}
        self._found: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the model that a name maps to; the name itself if no model was found for it."""
        return self._fixed.get(name) or self._found.get(name, name)

    def fix(self, names: Iterable[str], model: str) -> None:
        """Map names to a model for as long as the daemon runs."""
        self._fixed |= dict.fromkeys(names, model)

    def add(self, name: str, model: str) -> None:
        if len(self._found) >= _MAX_NAMES:  # clients may spell a name in many ways
            self._found.clear()
        self._found[name] = model

    def forget(self, model: str) -> None:
        """Forget all names that `add` mapped to a model."""
        self._found = {name: found for name, found in self._found.items() if found != model}

    def refresh(self) -> None:
        """Forget all names that `add` mapped, if the stamp has changed."""
        if (now := self._stamp()) != self._seen:
            self._seen = now
            self._found.clear()


def own_keep_alive_s(config: Config, name: str) -> float:
    own = config.models.get(name)
    return config.load.keep_alive_s if own is None or own.keep_alive is None else seconds_of(own.keep_alive)


def own_draft(config: Config, name: str, *, is_default: bool) -> str:
    """Return the option --draft for a model.

    If the general --draft names a draft model, only the default model gets it (`is_default`). Others get "auto".
    """
    own = config.models.get(name)
    if own is not None and own.draft != "auto":
        return own.draft
    return config.draft if is_default or config.draft_model is None else "auto"


def own_mmproj(config: Config, name: str, *, is_default: bool) -> str:
    """Return the option --mmproj for a model: that of its own table, else the general one for the default model."""
    own = config.models.get(name)
    if own is not None and own.mmproj != "auto":
        return own.mmproj
    return config.mmproj if is_default else "auto"


def preloaded(config: Config) -> tuple[str, ...]:
    """Return the names of the additional models that are loaded at the start and stay loaded."""
    return (*config.load.preload, *(name for name, own in config.models.items() if own.preload))


# How many models are searched for at a time. A search reads the disk, and may verify a file of gigabytes.
_MAX_SEARCHES = 2


class Pool:
    """The models on this machine, by the protocol backends.base.Models.

    `read` gets process ids of workers, and returns the machine's memory and theirs.
    """

    def __init__(
        self,
        config: Config,
        source: ModelSource,
        *,
        command: Sequence[str] = WORKER_COMMAND,
        limits: SupervisionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[Collection[int]], Memory] = read_memory,
    ) -> None:
        self._config = config
        self._source = source
        save_s = config.server.drain_s if config.max_cache_bytes else 0.0
        self._limits = limits or replace(SupervisionLimits.from_config(config.engine), save_s=save_s)
        self._clock = clock
        self._models: dict[str, PoolModel] = {}
        self._names = KnownNames(source.names_stamp)
        self._load_times: dict[str, LoadTime] = {}
        self._prefixes: dict[Path, KnownPrefixes] = {}  # by the model's file
        self._searches: dict[str, asyncio.Task[str]] = {}
        self._num_searches = asyncio.Semaphore(_MAX_SEARCHES)
        self._eviction = Eviction(
            lambda: list(self._models.values()), self._end, clock, max_models=config.load.max_models, read=read
        )
        self._workers = Workers(
            command,
            self._limits,
            clock,
            self._eviction.make_room,
            lambda: self._power,
        )
        self._default: str | None = None
        self.pressure = ""
        """The result of `read_pressure` at the last check; "" if it was UNPLUGGED, which does not change routes."""
        self._power, self._held_until_s = FULL_POWER, 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def default(self) -> str:
        return self._default or self._config.model

    def find(self, name: str) -> str:
        """Return a model's canonical name, if it was located before (see `locate`)."""
        if self._default is None:
            raise BackendUnavailable("no model is loaded yet; the daemon is starting", retry_after_s=1.0)
        self._names.refresh()
        found = self._known(name)
        if found is None:
            served = ", ".join(self._models)
            raise ModelNotFound(f"model '{name[:256]}' not found; this daemon serves {served}", param="model")
        return found

    def _known(self, name: str) -> str | None:
        """Return a located model's canonical name, with the adapter if `name` is MODEL+ADAPTER; None if unknown."""
        found = self._names[name]
        if found in self._models:
            return found
        base, _, adapter = found.rpartition("+")
        base = self._names[base]
        base = base if base in self._models else base.rpartition("+")[0]  # the default may have an adapter
        return f"{base}+{adapter}" if base in self._models and adapter in self._models[base].adapters else None

    async def locate(self, name: str) -> str:
        """Return a model's canonical name; find it on disk if necessary. Raise the errors of `find` and `offer`.

        Nothing is loaded. Concurrent calls for the same name read the disk once.
        """
        try:
            return self.find(name)
        except ModelNotFound:
            if self._source.offer is None and name not in preloaded(self._config):
                raise
        base, plus, adapter = name.rpartition("+")
        if not plus:
            return await self._searched(name)
        try:
            return await self._searched(name)
        except ModelNotFound:
            model = self._models[await self.locate(base)]
        model.check_adapter(adapter)
        return f"{model.name}+{adapter}"

    async def _searched(self, name: str) -> str:
        search = self._searches.get(name)
        if search is None:
            search = self._searches[name] = asyncio.create_task(self._search(name))
            search.add_done_callback(lambda _: self._searches.pop(name))
        return await asyncio.shield(search)

    async def start(self) -> None:
        """Find the configured model and start loading it. Return once its files have been checked.

        If the check refuses the files, the load has failed by then. Raise the errors of `resolve`, ModelNotFound if the
        configured adapter is unknown, or ModelLoadFailed if the owner named a projector that cannot be used. A second
        call does nothing.
        """
        if self._default is not None:
            return
        name, adapter, files = await asyncio.to_thread(self._find_default)
        preparation = await asyncio.to_thread(self._prepare, files, name)
        model = self._add(name, preparation, is_pinned=True)
        self._default = model.name
        if adapter:
            model.check_adapter(adapter)
            self._default = f"{model.name}+{adapter}"
        self._names.fix((name,), model.name)
        self._names.fix((*DEFAULT_NAMES, self._config.model), self._default)
        model.supervisor.start()
        self._tasks.add(asyncio.create_task(self._look_after()))
        self._tasks |= {asyncio.create_task(self._preload(name)) for name in preloaded(self._config)}
        await model.checked.wait()

    def _find_default(self) -> tuple[str, str, Found]:
        """Return the configured model's name without its adapter, the adapter's name ("" if none), and the files."""
        name = self._config.model
        base, _, adapter = name.rpartition("+")
        try:
            return name, "", self._source.resolve(name)
        except (ModelNotFound, InvalidRequest):
            if not base or base not in self._config.models:
                raise
        return base, adapter, self._source.resolve(base)

    async def stop(self) -> None:
        """End all workers and their requests."""
        tasks = [*self._tasks, *self._searches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(model.supervisor.stop() for model in self._models.values()))
        await self._eviction.wait_ended()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SAVE_S):
                await asyncio.gather(*(prefixes.save() for prefixes in self._prefixes.values()))

    def statuses(self) -> list[ModelStatus]:
        return [model.status() for model in self._models.values()]

    def model(self, name: str) -> PoolModel:
        """Return the model of this name, without its adapter; raise the errors of `find`."""
        found = self.find(name)
        return self._models.get(found) or self._models[found.rpartition("+")[0]]

    def submit(self, request: GenerateRequest, receiver: Receiver, so_far: AnswerSoFar | None = None) -> None:
        """Send a request to its model's worker; raise the errors of `find` and of Supervisor.submit."""
        model = self.model(request.model)
        adapter = self.find(request.model).removeprefix(model.name).removeprefix("+")
        model.supervisor.submit(structs.replace(request, adapter=adapter) if adapter else request, receiver, so_far)
        if request.keep_alive_s is not None and not model.is_pinned:
            model.keep_alive_s = request.keep_alive_s
        model.note_use()

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Return the answer to a query; raise NotSupported, or the errors of `find` and of Supervisor.ask.

        A PurgeCache concerns what is known of all models' caches, and loads no model.
        """
        asked = self.model(name)
        if isinstance(query, PurgeCache):
            await asyncio.gather(*(prefixes.purge(query.partition) for prefixes in self._prefixes.values()))
            if asked.state is not WorkerState.READY:
                return QueryAnswer()
        if isinstance(query, Embed | Rerank) and self.find(name) != asked.name:
            raise NotSupported(f"adapters of {asked.name} change its text, not its embeddings", param="model")
        question = asyncio.ensure_future(asked.supervisor.ask(query))
        await asyncio.sleep(0)
        asked.note_use()
        try:
            return await question
        finally:
            question.cancel()
            asked.note_use()
            self.unload_expired()

    def cancel(self, request_id: str) -> None:
        """Cancel a request of any model; its receiver gets a Finished."""
        for model in self._models.values():
            model.supervisor.cancel(request_id)

    def reload(self, name: str) -> None:
        self.model(name).supervisor.reload()

    async def unload(self, name: str) -> int:
        """End a model's worker; see Models.

        Open queries count as one request. A pinned model is unloaded too, until the next request for it.
        """
        found = self.model(name)
        if found.supervisor.is_busy:
            found.keep_alive_s = 0.0
            return max(1, found.supervisor.num_live)
        if found.state is not WorkerState.STOPPED:
            await asyncio.shield(self._eviction.unload(found))
        return 0

    async def _search(self, name: str) -> str:
        """Find a model by name and add it to the pool; return its canonical name."""
        is_configured = name in preloaded(self._config)
        find = self._source.resolve if is_configured else self._source.offer
        assert find is not None
        async with self._num_searches:
            preparation = await asyncio.to_thread(self._found, name, find)
        return self._add(name, preparation, is_pinned=is_configured).name

    async def _preload(self, name: str) -> None:
        try:
            model = self.model(await self.locate(name))
        except Exception as error:  # the daemon can still serve its other models
            logger.error("%s cannot be preloaded: %s", name, error)
            return
        model.supervisor.start()

    def _found(self, name: str, find: Callable[[str], Found]) -> LoadPreparation:
        try:
            found = find(name)
        except (ModelNotFound, InvalidRequest) as error:  # InvalidRequest: no model can have this name
            raise ModelNotFound.for_client(name, error) from None
        return self._prepare(found, name)

    def _prepare(self, found: Found, asked: str) -> LoadPreparation:
        """Make a found model's LoadPreparation, with the owner's options. Call this in a thread: it reads the disk.

        Raise ModelLoadFailed if the owner named a projector that cannot be used.
        """
        table = self._table_of(found, asked)
        is_default = asked == self._config.model
        draft = own_draft(self._config, table, is_default=is_default)
        mmproj = own_mmproj(self._config, table, is_default=is_default)
        adapters = self._config.models[table].adapters if table else {}
        engine = self._config.engine_of(table)
        preparation = LoadPreparation(found, draft, engine, self._source, adapters, mmproj)
        preparation.check_projector()
        preparation.keep_alive_s = own_keep_alive_s(self._config, table)
        preparation.weigh()
        if self._source.cache is not None:
            preparation.prefixes = self._source.cache.prefixes_of(found.path)
        return preparation

    def _table_of(self, found: Found, asked: str) -> str:
        """Return the name of the model's [models] table, "" if none. The table may use any of the model's names."""
        for name in (asked, found.name):
            if name in self._config.models:
                return name
        for name in self._config.models:
            with suppress(EdgeAgentError):  # the table names a model that is not on this machine yet
                if self._source.resolve(name).path == found.path:
                    return name
        return ""

    def _add(self, asked: str, preparation: LoadPreparation, *, is_pinned: bool) -> PoolModel:
        """Return the pool's model with this file or name, or add a new one. Map the name `asked` to it."""
        name = preparation.name
        known = next((each for each in self._models.values() if each.preparation.path == preparation.path), None)
        known = known or self._models.get(name)
        if known is None:
            load_time = self._load_times.setdefault(name, LoadTime(self._clock))
            load_time.guess_s = guessed_s(preparation.weights_bytes)
            prefixes = self._prefixes.setdefault(preparation.path, preparation.prefixes)
            known = PoolModel(preparation, self._workers, load_time, prefixes, is_pinned=is_pinned)
            self._models[name] = known
        elif is_pinned:
            known.pin()  # a client requested it before, by another name
        self._names.add(asked, known.name)
        return known

    def _end(self, model: PoolModel) -> asyncio.Task[None]:
        """Begin to end a model's worker; return a task that is done when the worker has ended.

        A pinned model stays in the pool. Any other model leaves the pool and must be located again.
        """
        supervisor = model.renew()
        if not model.is_pinned:
            del self._models[model.name]
            self._names.forget(model.name)
        return asyncio.create_task(supervisor.stop())

    def unload_expired(self) -> None:
        """Unload the models whose keep-alive time is over. Call this at the end of each request."""
        for model in list(self._models.values()):
            model.note_use()
            if model.is_expired:
                logger.info("%s is unloaded: it was not used for %.0f s", model.name, model.idle_s)
            if model.is_expired or model.is_forgettable:
                self._eviction.unload(model)

    async def _look_after(self) -> None:
        """Again and again, check the machine's memory and the models' files and folders, and unload unused models."""
        trouble = ""
        while True:
            try:
                await self._look()
                trouble = ""
            except OSError as error:  # a moment without a free descriptor must not end this task
                if str(error) != trouble:
                    logger.warning("the machine and the models' files could not be looked at: %s", error)
                trouble = str(error)
            interval_s = self._limits.look_interval_s
            await asyncio.sleep(min(interval_s, _PRESSED_S) if self.pressure == "memory" else interval_s)

    async def _look(self) -> None:
        cache = self._source.cache
        self.unload_expired()
        if cache is not None:
            cache.note_loaded(dict(filter(None, (model.cache_bytes for model in self._models.values()))))
        for prefixes in list(self._prefixes.values()):
            await prefixes.save_if_due()
        self._note_pressure(await asyncio.to_thread(_look_at_machine, cache))
        if self.pressure == "memory":
            await self._eviction.relieve()
        for model in list(self._models.values()):
            await _look_at(model)

    def _note_pressure(self, pressure: str) -> None:
        self.pressure = "" if pressure == UNPLUGGED else pressure
        before, power = self._power, power_under(pressure, self._config.load.on_battery)
        if power.why:
            self._held_until_s = self._clock() + HOLD_S
        elif self._clock() < self._held_until_s:
            return
        self._power = power
        if power.why and power != before:
            logger.warning("%s: models compute with %.0f %% of their threads", power.why, 100 * power.thread_share)
        elif power != before:
            logger.info("models compute with all of their threads again")


def _look_at_machine(cache: CacheShares | None) -> str:
    """Evict cached blocks if that is due, and return the machine's pressure."""
    if cache is not None:
        cache.evict_if_due()
    return read_pressure()


async def _look_at(model: PoolModel) -> None:
    """Reload a quarantined model whose files were replaced, or an idle model whose cache folder was created again."""
    supervisor, preparation = model.supervisor, model.preparation
    if model.state is WorkerState.QUARANTINED and await asyncio.to_thread(preparation.files.are_replaced):
        logger.warning("the files of %s were replaced; it is loaded again", model.name)
        supervisor.reload()
    elif (
        model.may_have_lost_cache
        and await asyncio.to_thread(preparation.is_cache_folder_replaced)
        and not supervisor.is_busy
    ):
        # A sandbox is bound to the folder that existed when it was entered, so a new worker is needed. The model is not
        # loaded again while it is busy, because that would fail open questions.
        logger.warning(
            "the cache folder of %s was deleted and created again; the model is loaded again to use it", model.name
        )
        supervisor.reload()
