"""The answer cache: a Service in front of the router, which gives kept answers, and shares one among equal requests.

What it does not concern passes it unchanged. It is under `service.live_service`, so each request is limited, counted
and measured as if a model had answered it.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeagent import metrics
from edgeagent.answers.answer import ID_CHARS, answer_of
from edgeagent.answers.files import Clocks, content_of, identity_of
from edgeagent.answers.key import Question, computed_by, sharing_key
from edgeagent.answers.lookup import Found, Similar
from edgeagent.answers.recent import RecentAnswers
from edgeagent.answers.rules import (
    NO_USE,
    Use,
    is_model_among,
    is_repeatable,
    kept_at,
    kept_elsewhere,
    partition_of,
    use_of,
    why_not_kept,
)
from edgeagent.answers.seal import Seal
from edgeagent.answers.shared import SharedAnswer
from edgeagent.answers.store import BUDGET_S, PATIENCE_S, Breaker, EmbeddedStore, Listed, Store, TooSlow, within
from edgeagent.backends.limits import limit
from edgeagent.backends.prompts import prompt_bytes
from edgeagent.cache_folder import ensure_secret
from edgeagent.config import AnswersConfig, Config
from edgeagent.errors import BackendUnavailable, ConfigError, EdgeAgentError
from edgeagent.runtime_file import read_private
from edgeagent.service.service import Service, remaining, status_of
from edgeagent.state_files import ANSWERS_FILE, SIMILAR_FILE
from edgeagent.types import (
    AnswerOrigin,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    RemoteStatus,
    Sink,
    Started,
    Step,
    is_remote,
    replace,
    unrun,
)

if TYPE_CHECKING:
    from edgeagent.answers.redis_store import RedisStore

REMOTE = "remote"
"""The identity of a remote's model. Only an age limit notices that it changed."""
LOOK_S = 1.0
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 32, 4096
_MAX_LOOKED = 256
_PATIENCE_S = 10.0
_MAX_INLINE_BYTES = 1 << 20  # the key of a prompt of this size takes 3 ms; that of a larger one is made in a thread
T = TypeVar("T")
_CANCELLED = unrun(FinishReason.CANCELLED, "cancelled")


class Generation(SharedAnswer):
    """An answer that is being generated, for one client or several. `id`: that of the request at the router.

    `keep` is called with the terminal delta, before a client that got it can ask again.
    """

    def __init__(self, request_id: str, keep: Callable[[Generation], None]) -> None:
        super().__init__(time.monotonic)
        self.id = request_id
        self._keep = keep
        self.task: asyncio.Task[None] | None = None
        self._has_changed = asyncio.Event()

    def put(self, step: Step) -> None:
        was_finished = self.finished is not None
        super().put(step)
        if self.finished is not None and not was_finished:
            self._keep(self)

    def note_change(self) -> None:
        """Look again for a follower that has room. Call it when one has joined or left."""
        self._has_changed.set()

    async def room(self) -> None:
        """Wait until one follower has read enough, so that a slow one delays no other."""
        while sinks := self.sinks:
            if len(sinks) == 1 and not self.is_open:
                return await sinks[0].room()
            self._has_changed.clear()
            rooms = [asyncio.ensure_future(sink.room()) for sink in sinks]
            change = asyncio.ensure_future(self._has_changed.wait())
            try:
                done, _ = await asyncio.wait({change, *rooms}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in (change, *rooms):
                    wait.cancel()
                await asyncio.gather(change, *rooms, return_exceptions=True)
            # A sink whose client is gone raises. Its own task ends it soon.
            if any(each.exception() is None for each in done if each is not change):
                return None
            if change not in done:
                await asyncio.sleep(0)
        return None


class _Asked:
    """A request between its acceptance and its end. `waits_for`: the task that a cancel ends."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self.waits_for: asyncio.Task[Any] | None = None
        self.generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the files of a model say, up to a time of time.monotonic(). For the rest see Question and Clocks.day."""

    until_s: float
    identity: str
    day: str | None
    content: str


class Answers:
    """The answer cache in front of `service`, which is asked for all that it does not have."""

    def __init__(
        self,
        service: Service,
        store: Store,
        seal: Seal,
        options: AnswersConfig,
        budget_s: float = BUDGET_S,
        look_s: float = LOOK_S,
        computed: str = "",
    ) -> None:
        """`budget_s`: how long an answer waits for the disk that has the models. `look_s`: how often it is asked.

        `computed`: how models are computed; see key.computed_by.
        """
        self._computed = computed
        self._budget_s = budget_s
        self._look_s = look_s
        self._looked: dict[tuple[str, str], _Looked] = {}
        self._service = service
        self.store = RecentAnswers(store, options.max_age_s) if isinstance(store, EmbeddedStore) else store
        self.similar: Similar | None = None
        self.options = options
        self._seal = seal
        self._files = ThreadPoolExecutor(1, thread_name_prefix="answers-files")
        self._clocks = Clocks()
        self._breaker = Breaker()
        self._asked: dict[str, _Asked] = {}
        self._running: dict[bytes, Generation] = {}
        self._looking: dict[bytes, asyncio.Event] = {}  # look-ups by similarity, by what shares their answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_forgotten = 0  # how often answers were forgotten; what had begun before is not kept
        self.counts: Counter[str] = Counter()
        """How often each outcome came since the start; see metrics.answer_cache_total."""
        self.models = service.models
        self.remote_access = service.remote_access

    @classmethod
    def of(cls, config: Config, service: Service) -> Answers:
        """Return the cache for a configuration, with its store in the state folder or at a server.

        Raise ConfigError if a secret cannot be read or created, or if the server cannot be used.
        """
        seal = Seal(_secret(config))
        folder = None if config.forget else config.state_dir
        log: RedisStore | None = None
        if config.answers.store == "sqlite":
            store: Store = EmbeddedStore(folder and folder / ANSWERS_FILE, seal, config.answers)
        else:
            store = log = _server_store(config, seal)
        answers = cls(service, store, seal, config.answers, computed=computed_by(config.engine))
        if config.answers.similar:
            # Only for it, since it loads numpy.
            from edgeagent.answers.similar.similar_answers import SimilarAnswers

            path = folder and folder / SIMILAR_FILE
            answers.similar = SimilarAnswers(service, answers.store, seal, config.answers, path, REMOTE, log=log)
        return answers

    async def start(self) -> None:
        """Open the store."""
        await self.store.start()
        if self.similar is not None:
            await self.similar.start()

    async def close(self) -> None:
        """End what is still being generated, and release the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.similar is not None:
            await self.similar.close()
        await self.store.close()
        self._files.shutdown(wait=False)

    def remotes(self) -> list[RemoteStatus]:
        return self._service.remotes()

    def cancel(self, request_id: str) -> None:
        asked = self._asked.get(request_id)
        if asked is None:
            self._service.cancel(request_id)
            return
        asked.is_cancelled = True
        if asked.waits_for is not None:
            asked.waits_for.cancel()
        generation = asked.generation
        if generation is not None and not generation.cancel(request_id):
            self._service.cancel(generation.id)

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        """Answer with what is kept, with the answer of an equal request that runs, or with a new one.

        The contract is that of backends.base.Backend."""
        use = use_of(request, self.options)
        if use == NO_USE:
            await self._service.generate(request, sink)
            return
        asked = self._asked[request.id] = _Asked()
        try:
            is_done = await self._answer(request, use, asked, sink)
        finally:
            self._asked.pop(request.id, None)
        if not is_done:
            await self._service.generate(request, sink)

    def _keys(self, question: Question) -> tuple[bytes, bytes]:
        return question.key(self._seal.key_secret), sharing_key(question.request, question.model)

    async def _answer(self, request: GenerateRequest, use: Use, asked: _Asked, sink: Sink) -> bool:
        """Answer a request; return False if the cache must leave it to the router."""
        began_s = time.monotonic()
        try:
            question = await self._question(request)
            if question is None:
                return self._has_cancelled(asked, sink)
            is_remotes = question.identity == REMOTE
            if not is_remotes:
                access = self.remote_access
                use = kept_elsewhere(use, request, None if access is None else access.mode)
            store = self.store
            use = kept_at(
                use, request, is_remotes=is_remotes, is_shared=store.is_shared, is_elsewhere=store.is_elsewhere
            )
            is_long = prompt_bytes(request) > _MAX_INLINE_BYTES
            key, shared = await asyncio.to_thread(self._keys, question) if is_long else self._keys(question)
            kept = await self.store.get(key) if use.reads else None
            # Of equal requests at the same time, one is looked up by similarity. Then the others share its answer.
            while kept is None and use.shares and shared in self._looking and not asked.is_cancelled:
                await _unless_cancelled(asked, self._looking[shared].wait())
                kept = await self.store.get(key) if use.reads else None
        except TooSlow:
            self._count("slow")
            return self._has_cancelled(asked, sink)
        if self._has_cancelled(asked, sink):
            return True
        if kept is not None:
            self._give(Found(key, kept, 1.0), "exact", sink)
            return True
        generation = self._joinable(use, shared)
        looked_up = asyncio.Event()
        if generation is None and use.leads:
            self._looking[shared] = looked_up
        try:
            if generation is None and use.reads and await self._give_similar(question, asked, sink):
                return True
            if self._has_cancelled(asked, sink):
                return True
            request = remaining(replace(request, waited_s=time.monotonic() - began_s))
            self._count("miss" if generation is None else "joined")
            if generation is None:
                generation = self._begin(request, question, use, key, shared, asked)
        finally:
            looked_up.set()
            if self._looking.get(shared) is looked_up:
                del self._looking[shared]
        await self._follow(request, generation, sink, asked)
        return True

    def _joinable(self, use: Use, shared: bytes) -> Generation | None:
        """Return the running generation whose answer a request may share; None if there is none."""
        generation = self._running.get(shared) if use.shares else None
        return generation if generation is not None and generation.is_open else None

    async def _give_similar(self, question: Question, asked: _Asked, sink: Sink) -> bool:
        """Give the answer to a similar question. Return False if there is none, so that the model must answer.

        The model does not begin meanwhile. If it did, it would take the cores from the look-up, and lose them to it.
        """
        if self.similar is None:
            return False
        found = await _unless_cancelled(asked, self.similar.find(question))
        if asked.is_cancelled or found is None or not self.similar.give(question, found):
            return False
        self._give(found, "similar", sink)
        return True

    def _has_cancelled(self, asked: _Asked, sink: Sink) -> bool:
        """End a request that was cancelled while it was looked up. Return whether it was."""
        if asked.is_cancelled:
            sink.put(Step((_CANCELLED,), at_s=time.monotonic()))
        return asked.is_cancelled

    def _count(self, outcome: str) -> None:
        self.counts[outcome] += 1
        metrics.answer_cache_total.labels(outcome).inc()

    # What is asked.

    async def _question(self, request: GenerateRequest) -> Question | None:
        """Return what is asked; None if the cache is not for its model, or cannot know whether the model changes.

        Raise TooSlow if the disk does not say that in time.
        """
        try:
            model = await self.models.locate(request.model)
        except EdgeAgentError:
            return None  # the router raises it, or finds a backend that has the model
        status = status_of(self.models, model)
        if status is None or not is_model_among(model, self.options):
            return None
        partition = partition_of(request.cache.partition, self.options)
        if status.is_remote:
            return Question(request, model, REMOTE, partition)
        paths = _paths(status, model)
        if paths is None:
            return None

        looked = await self._look(model, _loaded(status, model), paths)
        if not looked.identity or looked.day is None or (self.store.is_shared and not looked.content):
            return None
        return Question(request, model, looked.identity, partition, looked.day, looked.content, self._computed)

    async def _look(self, model: str, loaded: str, paths: tuple[Path, Path | None]) -> _Looked:
        """Return what the files of a model say.

        The disk is asked at most once in `look_s` seconds for a model that was not loaded again.
        """
        known = self._looked.get((model, loaded))
        if known is not None and time.monotonic() < known.until_s:
            return known

        def look() -> _Looked:
            found = identity_of(*paths)
            content = content_of(*paths) if found and self.store.is_shared else ""
            if content and identity_of(*paths) != found:
                content = ""  # the file was replaced while it was read
            day = self._clocks.day(paths[0], found, datetime.now())
            return _Looked(time.monotonic() + self._look_s, found, day, content)

        loop = asyncio.get_running_loop()
        found = await within(self._budget_s, self._breaker, lambda: loop.run_in_executor(self._files, look))
        if len(self._looked) >= _MAX_LOOKED:
            self._looked.clear()
        self._looked[model, loaded] = found
        return found

    # How it is answered.

    def _give(self, found: Found, kind: str, sink: Sink) -> None:
        similarity = found.similarity if kind == "similar" else None
        age_s = max(0.0, time.time() - found.answer.created_s)
        origin = AnswerOrigin(kind, age_s, found.key.hex()[:ID_CHARS], similarity)
        self._count(kind)
        for step in found.answer.again(time.monotonic(), origin):
            sink.put(step)

    def _begin(
        self, request: GenerateRequest, question: Question, use: Use, key: bytes, shared: bytes, asked: _Asked
    ) -> Generation:
        """Start a generation without followers. The caller must join it at once."""
        num_forgotten = self._num_forgotten

        def keep(ended: Generation) -> None:
            if (use.writes or use.reads) and num_forgotten == self._num_forgotten:
                self._keep(question, key, ended, use)

        generation = Generation(request.id, keep)
        if use.leads:
            self._running[shared] = generation

        async def run() -> None:
            try:
                if asked.is_cancelled and not generation.is_open:  # before the router had it
                    generation.put(Step((_CANCELLED,), at_s=time.monotonic()))
                else:
                    await self._service.generate(request, generation)
            except Exception as error:
                generation.end(error)
            else:
                generation.end(None)
            finally:
                generation.end(BackendUnavailable("the daemon is stopping"))  # only if it was cancelled
                if self._running.get(shared) is generation:
                    del self._running[shared]

        task = generation.task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return generation

    async def _follow(self, request: GenerateRequest, generation: Generation, sink: Sink, asked: _Asked) -> None:
        """Get a generation's answer to its end. Raise the error that ends it, or what the request's limits say."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked.generation = generation
        is_own = generation.id == request.id
        end = _ender(ended)
        generation.join(request.id, sink, end)
        generation.note_change()
        if asked.is_cancelled:
            self.cancel(request.id)

        def end_late(error: EdgeAgentError) -> None:
            error.num_delivered_tokens = generation.usage.num_output_tokens
            end(error)

        # The router knows the limits of the request that it has.
        timers = [] if is_own else limit(request, end_late, lambda: generation.has_content)
        try:
            await ended
        finally:
            for timer in timers:
                timer.cancel()
            generation.leave(request.id)
            generation.note_change()
            if not generation.num_followers and generation.finished is None and generation.task is not None:
                generation.task.cancel()

    # What is kept.

    def _keep(self, question: Question, key: bytes, generation: Generation, use: Use) -> None:
        """Keep an answer that has ended, unless it is not whole, or its model is not known to be the asked one.

        One that may not be kept still shows whether a kept answer to a similar question is right.
        """
        steps, end = generation.steps, generation.finished
        if end is None:
            return
        started = next((delta for step in steps for delta in step.deltas if isinstance(delta, Started)), None)
        is_elsewhere = is_remote(end.timings.route) != (question.identity == REMOTE)
        if why_not_kept(question.request, started, end) or is_elsewhere:
            return
        status = status_of(self.models, question.model)
        if status is None or (question.identity != REMOTE and _loaded(status, question.model) != question.identity):
            return
        answer = answer_of(question, steps, time.time())
        if answer is None:
            return
        if use.writes:
            self.store.put(key, answer)
        if self.similar is not None:
            self.similar.learn(question, key if use.writes else None, answer)

    async def forget(self, partition: str | None) -> int:
        """Forget all answers, or those of a partition, and keep none that is being generated. Return how many.

        Raise StoreError if they cannot be deleted.
        """
        self._num_forgotten += 1
        if self.similar is not None:
            listed = [] if partition is None else await self.store.listed(partition, 1 << 20)
            self.similar.forget(None if partition is None else [each.id for each in listed])
        return await self.store.forget(partition)

    async def forget_one(self, answer_id: str, partition: str | None) -> bool:
        """Forget one answer, if it is in the partition (None: in any). Raise StoreError if it cannot be deleted."""
        is_forgotten = await self.store.forget_one(answer_id, partition)
        if is_forgotten and self.similar is not None:
            self.similar.forget([answer_id])
        return is_forgotten

    async def listed(self, partition: str | None, limit: int, offset: int = 0) -> list[Listed]:
        """Return the kept answers of a partition, or of all if it is None, the last used first."""
        return await self.store.listed(partition, limit, offset)

    def why_not(self, request: GenerateRequest) -> str:
        """Return which option keeps the cache from giving the answer to a request; "" if none does."""
        if use_of(request, self.options).reads:
            return ""
        if not is_repeatable(request) and not self.options.sampled:
            return "it is drawn at random; set answers.sampled, or send temperature 0 or a seed"
        return f"answers.clients has no {request.cache.partition or 'owner'!r}"

    @staticmethod
    @contextmanager
    def patience() -> Iterator[None]:
        """Within this context, wait longer for the disk or the store than a question does, since no client waits."""
        before = PATIENCE_S.set(_PATIENCE_S)
        try:
            yield
        finally:
            PATIENCE_S.reset(before)

    async def has(self, request: GenerateRequest) -> bool:
        """Whether an answer to a request is kept."""
        with suppress(TooSlow):
            question = await self._question(request)
            return question is not None and await self.store.get(question.key(self._seal.key_secret)) is not None
        return False

    def partition_of(self, client: str) -> str:
        """Return whose answers a client may get; see rules.partition_of."""
        return partition_of(client, self.options)

    def status(self) -> dict[str, Any]:
        """Return what the owner is to know of the cache."""
        return {
            "store": self.store.kind,
            "trouble": self.store.trouble,
            "num_answers": self.store.num_answers,
            "num_bytes": self.store.num_bytes,
            "max_bytes": self.options.max_bytes,
            "outcomes": dict(self.counts),
            "similar": None if self.similar is None else self.similar.status(),
        }


def _secret(config: Config) -> bytes:
    """Return the secret of the answers: this installation's own, or the one that machines share."""
    file = config.answers.store_secret_file
    if file is None:
        return ensure_secret(config.state_dir)
    content = (read_private(file) or b"").strip()
    if not MIN_SECRET_BYTES <= len(content) <= MAX_SECRET_BYTES:
        raise ConfigError(
            f"answers.store_secret_file: {file} must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not "
            f"{len(content)}; make it with: openssl rand -hex 32 > {file}"
        )
    return hashlib.blake2b(content, digest_size=32).digest()


def _server_store(config: Config, seal: Seal) -> RedisStore:
    if config.forget:
        raise ConfigError("forget = true keeps nothing on a disk, but answers.store names a server; remove one of them")
    if importlib.util.find_spec("redis") is None:
        raise ConfigError("answers.store needs a client for Redis; install it with: pip install 'edgeagent[redis]'")
    from edgeagent.answers.redis_store import RedisStore

    store = RedisStore(config.answers, seal, config.state_dir)
    if store.is_elsewhere and config.route == "local_only":
        raise ConfigError(
            "route = local_only keeps all on this machine, but answers.store is on another one; remove one of them"
        )
    return store


async def _unless_cancelled(asked: _Asked, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` returns; None if the request is cancelled meanwhile, which ends it."""
    asked.waits_for = task = asyncio.create_task(work)
    try:
        return await task
    except asyncio.CancelledError:
        if not asked.is_cancelled:
            raise
        return None
    finally:
        asked.waits_for = None


def _ender(ended: asyncio.Future[None]) -> Callable[[Exception | None], None]:
    def end(error: Exception | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            # Each follower raises an error of its own, since those who handle it add to it.
            ended.set_exception(copy.copy(error))

    return end


def _adapter(status: ModelStatus, model: str) -> str:
    return model.removeprefix(status.name).removeprefix("+")


def _paths(status: ModelStatus, model: str) -> tuple[Path, Path | None] | None:
    """Return the files of a model and its adapter; None if they are not known."""
    adapter = _adapter(status, model)
    if "" not in status.files or (adapter and adapter not in status.files):
        return None
    return Path(status.files[""].path), Path(status.files[adapter].path) if adapter else None


def _loaded(status: ModelStatus, model: str) -> str:
    """Return the identity of a model and its adapter as they were loaded; "" if it is not known."""
    with suppress(KeyError):
        loaded = [status.files[name].loaded for name in ("", *filter(None, [_adapter(status, model)]))]
        return " ".join(loaded) if all(loaded) else ""
    return ""
