"""The lookup by similarity in the daemon: it embeds questions, judges answers, checks some in idle time, and stores.

What it decides is in `memory.Memory`. It asks models once nothing else runs, and in time that no other request uses.
What it learns are events. They are applied at once; or, if machines share a log, when they are read from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from edgeagent import metrics
from edgeagent.answers.answer import ID_CHARS, Answer, answer_of
from edgeagent.answers.key import FORM, Question
from edgeagent.answers.lookup import Found
from edgeagent.answers.rules import KIOSK
from edgeagent.answers.seal import Seal
from edgeagent.answers.shared import SharedAnswer
from edgeagent.answers.similar.boundary import Observation
from edgeagent.answers.similar.events import (
    FIRST,
    Added,
    Compared,
    Event,
    Forgotten,
    Log,
    opened_event,
    sealed_event,
)
from edgeagent.answers.similar.guards import refusal
from edgeagent.answers.similar.index import Vector, as_bytes, vector_of
from edgeagent.answers.similar.judge import is_same_by_model, is_same_text
from edgeagent.answers.similar.memory import Lookup, Memory
from edgeagent.answers.similar.place import asked_text, place_of
from edgeagent.answers.similar.records import Kept, Learned, Records
from edgeagent.answers.store import Breaker, Store, TooSlow, within
from edgeagent.config import AnswersConfig
from edgeagent.errors import EdgeAgentError
from edgeagent.service.service import Service, status_of
from edgeagent.types import (
    AnswerPolicy,
    CachePolicy,
    Embed,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    RouteMode,
    Step,
    TextPrompt,
    Tier,
    WorkerState,
    replace,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Queue = asyncio.Queue[Callable[[], Awaitable[None]]]
_MAX_PENDING = 256  # lookups whose model's answer has not ended yet
_MAX_WAITING = 64  # comparisons, or checks, that wait; a further one is not made
_MAX_BUSY_S = 60.0  # how long a model is not asked since requests run; after that, in the time that they leave
_LOOK_S = 0.25
_WRITE_S = 0.02
_TIMEOUT_S = 120.0
_WAIT_S = 0.5
"""How long an answer waits for a look-up: usually some 10 ms, but the embedding model's worker may be busy or hang."""
_FRESH_S = 1.0
"""How old what is known of a shared log may be when an answer is given."""
_PAGE = 500
_SAVED_EVERY = 32
"""After this many events what all questions taught is written: up to 0.3 MB. A crash loses what the last ones did."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that was looked up: its place, text and vector, and the nearest one that no guard refuses."""

    place: bytes
    text: str
    vector: Vector
    lookup: Lookup | None


class SimilarAnswers:
    """A lookup.Similar. Call `start` before any other method."""

    def __init__(
        self,
        service: Service,
        store: Store,
        seal: Seal,
        options: AnswersConfig,
        path: Path | None,
        remote: str,
        rng: random.Random | None = None,
        log: Log | None = None,
    ) -> None:
        """`path`: the file that keeps what is learned; None: nothing does. `remote`: the identity of a remote's model.

        `log`: through which machines share what they learn. If it is given, `path` is not used.
        """
        self._service, self._store, self._seal, self._options = service, store, seal, options
        self._remote = remote
        self._random = rng or random.SystemRandom()
        self.memory = Memory(options.max_error)
        self._embedder = ""  # the file of the embedding model that made the vectors
        self._records = Records(path, seal)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers-similar")
        # Look-ups of questions that the model answers; None: it begins when the model has answered.
        self._pending: OrderedDict[str, asyncio.Task[_Asked | None] | None] = OrderedDict()
        self._comparisons, self._checks = _Queue(_MAX_WAITING), _Queue(_MAX_WAITING)
        self._workers: list[asyncio.Task[None]] = []
        self._writes: set[asyncio.Future[None]] = set()
        self._num_unsaved = 0  # events since what all questions taught was written
        self._generation = 0  # how often all was forgotten; what had begun before is not learned
        self._to_add: dict[str, bytes] = {}  # requests whose questions are to be kept, and under which keys
        self._log = log
        self._position = FIRST  # up to which the log is applied
        self._fresh_until_s = 0.0
        self._following: asyncio.Task[bool] | None = None
        self._breaker = Breaker()
        self.trouble: str | None = None

    async def start(self) -> None:
        """Read what was learned before. A shared log is read when the first question is looked up."""
        if self._log is None:
            learned, kept = await self._in_thread(self._records.load)
            if learned is not None and learned.judge == self._options.judge:
                self._embedder = learned.model
                self._restore(learned, kept)
            elif learned is not None:
                self._remove(None)
        self._show()
        try:
            await self._service.models.locate(self._options.embedding_model)
        except EdgeAgentError as error:
            self._note_trouble(error)
        self._workers = [asyncio.create_task(self._run_work(each)) for each in (self._comparisons, self._checks)]

    async def close(self) -> None:
        tasks = [*filter(None, [*self._pending.values(), self._following]), *self._workers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._num_unsaved:
            self._save((), is_whole=True)
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._in_thread(self._records.close)
        self._thread.shutdown(wait=False)

    def status(self) -> dict[str, Any]:
        trouble = self.trouble or self._records.trouble
        about = {"embedding_model": self._options.embedding_model, "is_shared": self._log is not None}
        return {**self.memory.status(), **about, "trouble": trouble}

    async def find(self, question: Question) -> Found | None:
        try:
            return await self._find(question)
        except Exception as error:  # the model answers, whatever is wrong here
            if self.trouble is None:
                logger.exception("no answer is found by similarity")
            self.trouble = str(error) or type(error).__name__
            return None

    async def _find(self, question: Question) -> Found | None:
        text = asked_text(question, self._remote)
        if text is None or not self._is_for(question) or self.memory.refusal(text):
            return None
        # What a shared log has is known only once the look-up has read it.
        place = place_of(question, self._seal.key_secret)
        may_find = self._log is not None or self.memory.may_find(place)
        looking = asyncio.create_task(self._look_up(place, text)) if may_find else None
        self._pending[question.request.id] = looking
        while len(self._pending) > _MAX_PENDING:
            oldest = self._pending.popitem(last=False)[1]
            if oldest is not None:
                oldest.cancel()
        if looking is None or not self._is_embedder_loaded():
            return None
        await asyncio.sleep(0)
        refusal(text, text)  # it is read while its embedding is computed, and not again behind it
        try:
            # A look-up that takes longer still teaches the boundary.
            asked = await within(_WAIT_S, self._breaker, lambda: asyncio.shield(looking))
        except TooSlow:
            return None
        except asyncio.CancelledError:
            if looking.cancelled():
                return None
            raise
        if asked is None or asked.lookup is None or not asked.lookup.is_sure:
            return None
        near = asked.lookup.near
        answer = await self._kept(near.key)
        return None if answer is None else Found(near.key, answer, near.similarity)

    def give(self, question: Question, found: Found) -> bool:
        looking = self._pending.get(question.request.id)
        asked = None if looking is None else looking.result()
        if asked is None or asked.lookup is None or not self.memory.give(asked.lookup):
            return False
        self._show()
        del self._pending[question.request.id]  # no answer of the model follows
        if self._random.random() < asked.lookup.check_probability:
            generation = self._generation
            self._later(self._checks, lambda: self._check(question, asked, found.answer, generation))
        return True

    def learn(self, question: Question, key: bytes | None, answer: Answer) -> None:
        if question.request.id in self._pending:
            looking, generation = self._pending.pop(question.request.id), self._generation
            is_waiting = self._later(self._comparisons, lambda: self._learn(looking, question, answer, generation))
            if is_waiting and key is not None:
                self._to_add[question.request.id] = key

    def forget(self, keys: Collection[str] | None) -> None:
        # Checks and comparisons go on. If those of forgotten answers were left out, wrong ones would be measured less.
        if keys is not None:
            ids = set(keys)
            self._to_add = {name: key for name, key in self._to_add.items() if key.hex()[:ID_CHARS] not in ids}
        forgotten = Forgotten(None if keys is None else tuple(self.memory.starting_with(keys)))
        self._apply(forgotten)
        if self._log is not None and forgotten.keys != ():
            self._soon(self._share(forgotten))

    # What is asked.

    def _is_for(self, question: Question) -> bool:
        clients = self._options.similar_clients
        return not clients or question.request.cache.partition.removeprefix(KIOSK) in clients

    async def _look_up(self, place: bytes, text: str) -> _Asked | None:
        with metrics.answer_lookup_seconds.labels("embedding").time():
            vector = await self._embed(text)
        with metrics.answer_lookup_seconds.labels("search").time():
            if vector is None or not await self._is_up_to_date():
                return None
            return _Asked(place, text, vector, self.memory.look_up(place, text, vector))

    async def _embed(self, text: str) -> Vector | None:
        """Return a text's vector; None if the embedding model has none. Another model's vectors are forgotten first."""
        models, name = self._service.models, self._options.embedding_model
        try:
            answer = await models.ask(name, Embed((TextPrompt(text),), truncate=True))
            status = status_of(models, name)
            file = name if status is None else self._file_of(status)
        except EdgeAgentError as error:
            self._note_trouble(error)
            return None
        self.trouble = None
        if file != self._embedder:
            if self._embedder:
                self._apply(Forgotten(None))
            self._embedder, self._position, self._fresh_until_s = file, FIRST, 0.0
        return vector_of(answer.embeddings[0].vector)

    def _note_trouble(self, error: EdgeAgentError) -> None:
        if self.trouble is None:
            logger.warning("no answer is found by similarity: %s", error)
        self.trouble = str(error)

    def _is_embedder_loaded(self) -> bool:
        """Whether no answer would wait for the load of the embedding model, which takes seconds."""
        status = status_of(self._service.models, self._options.embedding_model)
        return status is not None and status.state is WorkerState.READY

    def _file_of(self, status: ModelStatus) -> str:
        """Return what changes with the file of the embedding model. The hash of a large file may not be known.

        Then its name stands for it at a shared log, since the identity of a file is another one on each machine.
        """
        loaded = status.files[""].loaded if self._log is None and "" in status.files else ""
        return status.sha256 or f"{status.name} {loaded}".strip()

    async def _kept(self, key: bytes, *, is_use: bool = True) -> Answer | None:
        """Return the answer to a kept question. A question is forgotten if its answer was."""
        with suppress(TooSlow):
            answer = await self._store.get(key, is_use=is_use)
            if answer is not None:
                return None if answer.has_calls else answer
            if self._store.trouble is None:
                self._note(Forgotten((key,)))
        return None

    # What is learned, in idle time.

    def _later(self, queue: _Queue, act: Callable[[], Awaitable[None]]) -> bool:
        """Do it when there is time; return False if too much waits already."""
        with suppress(asyncio.QueueFull):
            queue.put_nowait(act)
            return True
        return False

    async def _run_work(self, queue: _Queue) -> None:
        while True:
            act = await queue.get()
            try:
                await act()
            except Exception:
                logger.exception("a comparison of similar answers failed")
            finally:
                queue.task_done()

    async def settled(self) -> None:
        """Wait until all comparisons and checks that were begun have ended."""
        await self._comparisons.join()
        await self._checks.join()

    async def _learn(
        self, looking: asyncio.Task[_Asked | None] | None, question: Question, answer: Answer, generation: int
    ) -> None:
        request_id = question.request.id
        try:
            place = place_of(question, self._seal.key_secret)
            asked = await (looking or self._look_up(place, asked_text(question, self._remote) or ""))
            if asked is None or not _is_comparable(answer):
                return
            lookup = asked.lookup
            near = None if lookup is None else self.memory.known(lookup.near.key)
            if near is not None and near.text == asked.text:  # kept since: an answer teaches nothing about itself
                lookup = None
            is_right = None if lookup is None else await self._is_right(asked, lookup, question, answer)
            if generation != self._generation:
                return
            first = None
            if lookup is not None and is_right is not None:
                first = Compared(*lookup.near, is_right)
                self._note(first)
            if answer.end.reason is FinishReason.STOP and request_id in self._to_add:
                self._note(Added(self._to_add[request_id], asked.place, asked.text, as_bytes(asked.vector), first))
        finally:
            self._to_add.pop(request_id, None)

    async def _is_right(self, asked: _Asked, lookup: Lookup, question: Question, own: Answer) -> bool | None:
        """Whether the answer to the nearest question would have been right, by the model's own; None if unknown."""
        kept = await self._kept(lookup.near.key, is_use=False)
        return None if kept is None else await self._is_same(question, asked.text, kept, own)

    async def _check(self, question: Question, asked: _Asked, given: Answer, generation: int) -> None:
        """Have the model answer a question that was answered from similarity, and compare.

        `generation`: of when it was answered.
        """
        lookup = asked.lookup
        assert lookup is not None
        own = answer_of(question, await self._run(_own(question.request)) or (), 0.0)  # it is not kept
        if own is None or not _is_comparable(own):
            return
        is_right = await self._is_same(question, asked.text, given, own)
        if is_right is None or generation != self._generation:
            return
        metrics.answer_cache_total.labels("checked" if is_right else "wrong").inc()
        if not is_right:
            self.memory.found_wrong()
        self._note(Compared(*lookup.near, is_right, lookup.check_probability))

    async def _is_same(self, question: Question, text: str, kept: Answer, own: Answer) -> bool | None:
        if kept.end.reason is not own.end.reason:  # one was cut
            return False
        if self._options.judge == "exact":
            return bool(own.text) and kept.text == own.text
        if is_same_text(kept.text, own.text):
            return True
        if self._options.judge == "text":
            return False
        return await is_same_by_model(self._run, _own(question.request), text, (kept.text, own.text))

    async def _run(self, request: GenerateRequest) -> list[Step] | None:
        """Ask the model, and return the steps of its answer; None if it failed."""
        await self._idle()
        answer = SharedAnswer(time.monotonic)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._service.generate(request, answer)
        except (EdgeAgentError, TimeoutError):
            return None
        return answer.steps

    async def _idle(self) -> None:
        """Wait until no request runs on this machine. Before, the answer that is to be checked is written."""
        await asyncio.sleep(_WRITE_S)
        give_up_s = time.monotonic() + _MAX_BUSY_S
        while time.monotonic() < give_up_s:
            if not any(each.num_live and not each.is_remote for each in self._service.models.statuses()):
                return
            await asyncio.sleep(_LOOK_S)

    # What is kept.

    def _restore(self, learned: Learned, kept: dict[bytes, Kept]) -> None:
        for key, each in kept.items():
            self.memory.add(each.place, key, each.text, vector_of(each.vector), root=each.root)
        observed = {key: [Observation(*each) for each in one.observations] for key, one in kept.items()}
        self.memory.restore(learned.boundaries, observed)
        if learned.max_error == self._options.max_error:
            self.memory.test.restore(learned.test)

    def _note(self, event: Event) -> None:
        """Learn an event: at once, or from the shared log, so that all machines learn in the same order."""
        if self._log is None:
            self._apply(event)
        else:
            self._soon(self._share(event))

    def _apply(self, event: Event) -> None:
        match event:
            case Added(key, place, text, vector, first):
                forgotten = self.memory.add(place, key, text, vector_of(vector), first)
                self._save([key])
                self._remove(forgotten)
            case Compared(key):
                was_off = self.memory.is_off
                self.memory.learn(event)
                self._save([key], is_whole=event.check_probability is not None)
                if event.check_probability is not None:
                    self._show()
                if self.memory.is_off and not was_off:
                    self._turn_off()
            case Forgotten(keys):
                self.memory.forget(keys)
                if keys is None:
                    self._generation += 1
                self._remove(keys)
                self._show()

    def _show(self) -> None:
        """Show the errors in the metrics. Call it when one may have changed."""
        memory = self.memory
        errors = {"bound": memory.max_error, "expected": memory.expected_error, "measured": memory.test.measured}
        for kind, error in errors.items():
            metrics.answer_similar_error.labels(kind).set(math.nan if error is None else error)
        metrics.answer_similar_off.set(memory.is_off)

    def _turn_off(self) -> None:
        logger.warning(
            "answers from similarity are off: of %d checked ones %d were wrong, and at most %g %% may be; "
            "`edgeagent cache answers forget --all` turns them on again",
            *(self.memory.test.num_checked, self.memory.test.num_wrong, 100 * self._options.max_error),
        )
        if self._log is not None:
            self._soon(self._log.turn_off(self._log_name))

    # What is shared.

    @property
    def _log_name(self) -> str:
        """The name of the log. Only machines with the same embedding model, bound and judge learn together."""
        settings = repr((FORM, self._embedder, self._options.max_error, self._options.judge))
        return hashlib.blake2b(settings.encode(), key=self._seal.key_secret, digest_size=8).hexdigest()

    async def _share(self, event: Event) -> None:
        """Write an event to the shared log. If that fails, no machine learns it."""
        assert self._log is not None
        act = self._log.clear if event == Forgotten(None) else self._log.append
        await act(self._log_name, sealed_event(event, self._seal))
        self._fresh_until_s = 0.0

    async def _is_up_to_date(self) -> bool:
        """Apply what the machines have learned. Return False if that cannot be known: then no answer may be given."""
        if self._log is None:
            return True
        if self._following is None or self._following.done():
            if time.monotonic() < self._fresh_until_s:
                return True
            self._following = asyncio.create_task(self._follow(self._log))
        return await asyncio.shield(self._following)

    async def _follow(self, log: Log) -> bool:
        name, began_s = self._log_name, time.monotonic()
        self._fresh_until_s = began_s + _FRESH_S  # an event that is written meanwhile sets it back
        while name == self._log_name:
            page = await log.page(name, self._position, _PAGE)
            if page is None or name != self._log_name:
                break
            for position, content in page.events:
                event = opened_event(content, self._seal)
                if event is not None:
                    self._apply(event)
                self._position = position
                await asyncio.sleep(0)  # a long log holds up no answer
                if name != self._log_name:
                    break
            if len(page.events) < _PAGE and name == self._log_name:
                if page.is_off and not self.memory.is_off:
                    self.memory.turn_off()
                    self._show()
                return True
        self._fresh_until_s = 0.0
        return False

    def _remove(self, keys: Collection[bytes] | None) -> None:
        if keys is None:
            self._num_unsaved = 0
        if self._log is None and (keys is None or keys):
            self._write(lambda: self._records.remove(keys))

    def _save(self, keys: Collection[bytes], *, is_whole: bool = False) -> None:
        """Write what is known of some questions, and from time to time what all taught; always if `is_whole`."""
        if self._log is not None:
            return
        memory, learned, kept = self.memory, None, {}
        if is_whole or self._num_unsaved % _SAVED_EVERY == 0:
            boundaries = {group: each.state() for group, each in memory.boundaries.items()}
            learned = Learned(self._embedder, self._options.judge, memory.max_error, boundaries, memory.test.state())
            self._num_unsaved = 0
        self._num_unsaved += 1
        for key in keys:
            known, vector = memory.known(key), memory.vector(key)
            if known is not None and vector is not None:
                observed = memory.boundary(known.place).observations(key)
                observations = tuple((each.similarity, each.is_right) for each in observed)
                kept[key] = Kept(known.place, known.text, as_bytes(vector), observations, known.root)
        self._write(lambda: self._records.put(learned, kept))

    def _write(self, act: Callable[[], None]) -> None:
        self._soon(self._in_thread(act))

    def _soon(self, act: Awaitable[None]) -> None:
        write = asyncio.ensure_future(act)
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    def _in_thread(self, act: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, act)


def _own(request: GenerateRequest) -> GenerateRequest:
    """Return a copy of a client's request that the daemon itself runs in idle time, on this machine."""
    partition = request.cache.partition
    return replace(
        request,
        id=f"similar-{secrets.token_hex(8)}",
        tier=Tier.BATCH,
        is_ahead=True,
        timeout_s=None,
        need=type(request.need)(),
        target=None,
        reports_progress=False,
        is_whole=True,
        route=RouteMode.LOCAL_ONLY,
        cache=CachePolicy(write=False, partition=partition, persist=False, answers=AnswerPolicy.NONE),
    )


def _is_comparable(answer: Answer) -> bool:
    """Whether it counts. One that was cut does: if it did not, whether a check counts would depend on its outcome."""
    return not answer.has_calls and answer.end.reason in {FinishReason.STOP, FinishReason.LENGTH}
