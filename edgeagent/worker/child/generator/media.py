"""Reads the images and sounds of prompts, and decodes and encodes them on a thread of its own.

A medium's form (its tokens and the sizes of its chunks) is needed for each prompt that contains it. Its embeddings are
needed only if they are not in the prefix cache. If they are there, an image is not even decoded: its size is in its
header.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue
from weakref import ref

from edgeagent.engine.llama.media_formats import PREPROCESSING
from edgeagent.engine.llama.projector import Layout, MediaChunk, OpenMedium, Projector
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.media_tokens import media_tokens
from edgeagent.engine.runner import Rows
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InternalError, InvalidRequest, NotSupported
from edgeagent.media_files import with_notes
from edgeagent.text.partition_cache import PartitionCache
from edgeagent.types import ChatPrompt, GenerateRequest, Media, Message
from edgeagent.worker.child.generator.media_file import check_medium, upright_size
from edgeagent.worker.child_process import give_way

_MAX_LAYOUTS = 1024
NOTHING_READ = "", 0.0
# How long a decoded medium is kept for the engine to ask for its embeddings. Usually it asks in the request's next
# steps. A medium whose request ended before holds its memory for this time.
_KEEP_OPEN_S = 5.0
# About how much of them is kept: the other media of a prompt, and those of other requests.
_MAX_OPEN_BYTES = 128 << 20
# The pixels or the spectra for a token of a decoded medium have about so many bytes at most: 64 tokens stand for 512²
# pixels (SmolVLM), and 188 for 30 s of sound (Ultravox).
_TOKEN_BYTES = {"image": 48 << 10, "audio": 8 << 10}
_UNREADABLE = (InvalidRequest, NotSupported)


class ChunkEmbeddings:
    """The embeddings of one chunk of a medium; see engine.media.Embeddings. Only the engine's thread calls it."""

    def __init__(self, medium: Media, partition: str, index: int, ask: Callable[[ChunkEmbeddings], None]) -> None:
        """`partition`: the client, see CachePolicy. `index` counts the chunks of the medium. `ask` passes this object
        to the thread that calls `answer`.
        """
        self.medium = medium
        self.partition = partition
        self.index = index
        self._ask = ask
        self._answers: Queue[Rows | EdgeAgentError] = Queue()
        self._answer: Rows | EdgeAgentError | None = None
        self._is_asked = False

    def answer(self, answer: Rows | EdgeAgentError) -> None:
        """Give the embeddings, or why they cannot be computed. The encoder's thread calls it once."""
        self._answers.put(answer)

    def take(self) -> Rows | None:
        if not self._is_asked:
            self._is_asked = True
            self._ask(self)
        self.wait(0.0)
        if isinstance(self._answer, EdgeAgentError):
            raise InternalError(self._answer.message, param="input", served_by="local")
        return self._answer

    def wait(self, timeout_s: float) -> None:
        if self._answer is None:
            try:
                self._answer = self._answers.get(block=timeout_s > 0, timeout=timeout_s or None)
            except Empty:
                return


Form = Layout | EdgeAgentError
"""The form of a medium, or why it cannot be read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far the media of a waiting request are read: the first `num_read`. `layout` is that of the last of these."""

    num_read: int
    layout: Form


OnRead = Callable[[Reading], None]
BeginRead = Callable[[OnRead, Callable[[], bool]], None]
"""Begins to read a medium. The second argument tells whether it is still wanted; any thread may call it."""


_Key = tuple[str, bytes]  # of a client's medium: the partition and the digest


class MediaEncoder(threading.Thread):
    """Decodes and encodes media beside the engine's steps, one after the other.

    The steps of streams leave it time (see engine.side_prefill). Within a step it has a smaller share of the cores;
    least priority would let an image wait until no other program computes. A chunk whose sequence has ended is not
    encoded, or not to its end. The engine keeps the embeddings; see engine.cache.media_cache.
    """

    def __init__(self, projector: Projector) -> None:
        super().__init__(name="encoder", daemon=True)
        self._projector = projector
        self._asked: Queue[tuple[ref[ChunkEmbeddings], _Key] | partial[None] | None] = Queue()
        self._is_stopped = False
        # The media that were used last, each until its last chunk is encoded, and their bytes. To decode a medium again
        # takes time.
        self._open: dict[_Key, tuple[OpenMedium, int]] = {}
        self.reading = NOTHING_READ
        """The id of the request whose medium is decoded now, and since when."""
        self.num_steps = 0
        """How often a computation has made progress. Any thread may read it, and the next two."""
        self.num_encoded = 0
        """How many chunks were encoded."""
        self.num_interrupted = 0
        """How many chunks were begun and not encoded to their end."""

    def ask(self, wanted: ChunkEmbeddings) -> None:
        """Queue a chunk. Any thread may call it."""
        self._asked.put((ref(wanted), (wanted.partition, wanted.medium.digest)))

    def read(
        self,
        medium: Media,
        partition: str,
        request_id: str,
        on_read: Callable[[Form], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """Have a medium decoded, and pass its form to `on_read`, on this thread. Any thread may call it.

        If `is_wanted` returns False, the medium is not decoded, and `on_read` gets an empty form.
        """
        self._asked.put(partial(self._read, medium, partition, request_id, on_read, is_wanted))

    def stop(self) -> None:
        """End the thread. Any thread may call it."""
        self._is_stopped = True
        self._asked.put(None)

    def run(self) -> None:
        """Decode and encode until `stop`."""
        give_way()
        while (asked := self._next()) is not None and not self._is_stopped:
            if isinstance(asked, partial):
                asked()
            else:
                self._answer_on_a_thread(*asked)
            self.num_steps += 1
        self._close_all()

    def _next(self) -> tuple[ref[ChunkEmbeddings], _Key] | partial[None] | None:
        if self._open:
            with contextlib.suppress(Empty):
                return self._asked.get(timeout=_KEEP_OPEN_S)
            self._close_all()
        return self._asked.get()

    def _read(
        self,
        medium: Media,
        partition: str,
        request_id: str,
        on_read: Callable[[Form], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        if not is_wanted():
            on_read(())
            return
        self.reading = request_id, time.monotonic()
        try:
            check_medium(medium)
            on_read(self._opened(medium, (partition, medium.digest)).layout)
        except EdgeAgentError as error:
            on_read(error)
        except Exception as error:  # one bad medium must not end the thread
            on_read(InternalError(f"a medium could not be decoded: {error}"))
        finally:
            self.reading = NOTHING_READ

    def _answer_on_a_thread(self, asked: ref[ChunkEmbeddings], key: _Key) -> None:
        """Encode a chunk on a new thread, and wait for its end.

        The graph of the chunk starts threads of OpenMP, which end when the thread ends that started them. If they did
        not end, OpenMP would have more threads than cores, and those of each later step would sleep at their barriers.
        """

        def answer() -> None:
            if sys.platform == "win32":  # there, a thread does not begin with the priority of the one that starts it
                give_way()
            self._answer(asked, key)

        encoding = threading.Thread(target=answer, name="encoding", daemon=True)
        try:
            encoding.start()
        except RuntimeError:  # the system allows no more threads
            self._answer(asked, key)
        else:
            encoding.join()

    def _answer(self, asked: ref[ChunkEmbeddings], key: _Key) -> None:
        """Encode a chunk while it is wanted. Hold it only by the reference, which tells whether it is."""
        wanted = asked()
        if wanted is None:
            self._close(key)
            return
        medium, index = wanted.medium, wanted.index
        del wanted
        answer: Rows | EdgeAgentError | None
        try:
            answer = self._encode(medium, key, index, partial(self._is_wanted, asked))
        except EdgeAgentError as error:
            answer = error
        except Exception as error:  # one bad medium must not end the thread
            answer = InternalError(f"a medium could not be encoded: {error}")
        if answer is None:
            self.num_interrupted += 1
            self._close(key)
        elif (wanted := asked()) is not None:
            wanted.answer(answer)

    def _is_wanted(self, asked: ref[ChunkEmbeddings]) -> bool:
        self.num_steps += 1
        return asked() is not None and not self._is_stopped

    def _encode(self, medium: Media, key: _Key, index: int, is_wanted: Callable[[], bool]) -> Rows | None:
        opened = self._opened(medium, key)
        rows = opened.encode(index, is_wanted)
        self.num_encoded += rows is not None
        if index + 1 == opened.num_chunks:
            self._close(key)
        return rows

    def _opened(self, medium: Media, key: _Key) -> OpenMedium:
        if (kept := self._open.pop(key, None)) is None:
            opened = self._projector.open(medium.data)
            num_tokens = sum(part.num_tokens for part in opened.layout if isinstance(part, MediaChunk))
            kept = opened, num_tokens * _TOKEN_BYTES[medium.kind]
        self._open[key] = kept
        while len(self._open) > 1 and sum(num_bytes for _, num_bytes in self._open.values()) > _MAX_OPEN_BYTES:
            self._close(next(iter(self._open)))
        return kept[0]

    def _close(self, key: _Key) -> None:
        if (kept := self._open.pop(key, None)) is not None:
            kept[0].close()

    def _close_all(self) -> None:
        for key in list(self._open):
            self._close(key)


@dataclass(frozen=True, slots=True)
class ReadMedium:
    """A medium in a prompt: its `tokens`, and the chunks of embeddings among them (`spans`, from position 0 on)."""

    tokens: array[int]
    spans: tuple[MediaSpan, ...]

    def at(self, position: int) -> tuple[MediaSpan, ...]:
        """Return the spans for a medium whose tokens begin at a position of the prompt."""
        return tuple(span.moved(position) for span in self.spans)


class MediaReader:
    """Finds the tokens of images and sounds. Only the preparer's thread calls it, except for `num_tokens`."""

    def __init__(
        self, name: str, projector: Projector, max_whole: int, is_kept: Callable[[str, array[int]], bool]
    ) -> None:
        """`name`: the model's, for messages. `max_whole`: see LlamaRunner. Start the thread that encodes.

        `is_kept`: whether the embeddings with these tokens are in the cache of a partition.
        """
        self.projector = projector
        self.encoder = MediaEncoder(projector)
        self._name = name
        self._max_whole = max_whole
        self._is_kept = is_kept
        self._layouts: PartitionCache[bytes, Layout] = PartitionCache(_MAX_LAYOUTS)  # by digest
        self.encoder.start()

    def read(self, medium: Media, partition: str) -> ReadMedium:
        """Return the tokens of a medium, and where its embeddings stand among them. `partition`: see CachePolicy.

        Raise InvalidRequest if the medium cannot be decoded, NotSupported if the model does not take this kind, or
        ContextLengthExceeded if a chunk is too large for one step.
        """
        self._check_kind(medium)
        return self._with_spans(medium, partition, self._layout(medium, partition))

    def _with_spans(self, medium: Media, partition: str, layout: Layout) -> ReadMedium:
        tokens, spans, num_chunks = array("i"), list[MediaSpan](), 0
        for part in layout:
            if not isinstance(part, MediaChunk):
                tokens.extend(part)
                continue
            if not part.is_causal and part.num_tokens > self._max_whole:
                raise ContextLengthExceeded(
                    f"an image takes {part.num_tokens} tokens of one step, which has room for {self._max_whole}; load "
                    "the model with a larger --batch",
                    param="input",
                    served_by="local",
                )
            is_one = part.positions is not None
            made_by = self.projector.id.encode(), PREPROCESSING
            key = b"".join((medium.digest, *made_by, num_chunks.to_bytes(4, "little")))
            start = len(tokens)
            tokens.extend(media_tokens(key, part.num_tokens, is_whole=part.is_whole, is_one=is_one))
            embeddings = ChunkEmbeddings(medium, partition, num_chunks, self.encoder.ask)
            span = MediaSpan(start, len(tokens), embeddings, part.is_causal, part.positions, part.num_positions)
            spans.append(span)
            num_chunks += 1
        return ReadMedium(tokens, tuple(spans))

    def next_to_read(self, request: GenerateRequest, reading: Reading | None) -> BeginRead | None:
        """Return what has the next medium of a request decoded whose form is not known. None: all are known.

        Its `on_read` gets the `reading` for the next call. Other prompts are prepared meanwhile. Raise the errors of
        `read`.
        """
        prompt, partition = request.prompt, request.cache.partition
        assert isinstance(prompt, ChatPrompt)
        places = [(message, place.index) for message in prompt.messages for place in message.media]
        num_read = 0
        if reading is not None:
            num_read = reading.num_read
            message, index = places[num_read - 1]
            if not isinstance(reading.layout, EdgeAgentError):
                self._layouts.put(partition, prompt.media[index].digest, reading.layout)
            elif message.role != "tool" or not isinstance(reading.layout, _UNREADABLE):
                raise reading.layout
        for num, (message, index) in enumerate(places[num_read:], num_read + 1):
            medium = prompt.media[index]
            if medium.kind not in self.projector.kinds and message.role == "tool":
                continue
            self._check_kind(medium)
            if self._known(medium, partition) is None:
                return partial(self._begin_read, medium, partition, request.id, num)
        return None

    def _begin_read(
        self,
        medium: Media,
        partition: str,
        request_id: str,
        num_read: int,
        on_read: OnRead,
        is_wanted: Callable[[], bool],
    ) -> None:
        self.encoder.read(medium, partition, request_id, partial(_note_read, on_read, num_read), is_wanted)

    def with_notes(self, prompt: ChatPrompt, partition: str) -> ChatPrompt:
        """Return a conversation with notes for the media in the results of tools that cannot be read.

        A tool returns what it has, and an error would end the agent that called it.
        """
        return with_notes(prompt, partial(self._note_for, partition))

    def _note_for(self, partition: str, message: Message, medium: Media) -> str:
        if message.role == "tool":
            try:
                self.read(medium, partition)
            except _UNREADABLE:
                return f"[{medium.kind} left out: the file cannot be read]"
        return ""

    def num_tokens(self, medium: Media) -> int:
        """Return how many tokens a medium has in a prompt. Any thread may call it.

        Raise the errors of `read`, except for ContextLengthExceeded.
        """
        self._check_kind(medium)
        check_medium(medium)
        layout = self.projector.layout(medium.data)
        return sum(part.num_tokens if isinstance(part, MediaChunk) else len(part) for part in layout)

    def _check_kind(self, medium: Media) -> None:
        if medium.kind not in self.projector.kinds:
            kinds = " and ".join({"image": "images", "audio": "sounds"}[kind] for kind in self.projector.kinds)
            raise NotSupported(f"{self._name} takes {kinds}, and no other media", param="input", served_by="local")

    def _layout(self, medium: Media, partition: str) -> Layout:
        layout = self._known(medium, partition)
        if layout is None:
            check_medium(medium)
            layout = self.projector.layout(medium.data)
            self._layouts.put(partition, medium.digest, layout)
        return layout

    def _known(self, medium: Media, partition: str) -> Layout | None:
        """Return the form of a medium if it need not be decoded for that; else None."""
        layout = self._layouts.get(partition, medium.digest)
        if layout is None and medium.kind == "image":
            with contextlib.suppress(EdgeAgentError):
                by_size = self.projector.layout_of_size(*upright_size(medium.data))
                found = self._with_spans(medium, partition, by_size)
                chunks = [found.tokens[span.start : span.end] for span in found.spans]
                # The client's image was decoded and encoded before, so it is no damaged file.
                if chunks and all(self._is_kept(partition, chunk) for chunk in chunks):
                    layout = by_size
                    self._layouts.put(partition, medium.digest, layout)
        return layout


def _note_read(on_read: OnRead, num_read: int, layout: Form) -> None:
    on_read(Reading(num_read, layout))
