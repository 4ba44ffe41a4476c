"""Reads the images and sounds of prompts, and encodes them on a thread of its own.

A medium's form (its tokens and the sizes of its chunks) is needed for each prompt that contains it. Its embeddings are
needed only if they are not in the prefix cache.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from weakref import ref

from edgeagent.engine.llama.projector import Chunk, Layout, OpenMedium, Projector
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.media_tokens import media_tokens
from edgeagent.engine.runner import Rows
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InternalError, InvalidRequest, NotSupported
from edgeagent.media_files import spliced
from edgeagent.text.partition_cache import PartitionCache
from edgeagent.types import ChatPrompt, Media, MediaPlace, Message, replace
from edgeagent.worker.child.generator.media_file import check_medium
from edgeagent.worker.child_process import give_way

_MAX_LAYOUTS = 1024
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
        self._answers: SimpleQueue[Rows | EdgeAgentError] = SimpleQueue()
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
            raise InternalError(self._answer.message, param="messages", served_by="local")
        return self._answer

    def wait(self, timeout_s: float) -> None:
        if self._answer is None:
            try:
                self._answer = self._answers.get(block=timeout_s > 0, timeout=timeout_s or None)
            except Empty:
                return


class Encoder(threading.Thread):
    """Encodes media beside the engine's steps, one chunk after the other, with a smaller share of the cores.

    Least priority would let an image wait until no stream runs. A chunk whose sequence has ended is not encoded, or not
    to its end. The engine keeps the embeddings; see engine.cache.media_cache.
    """

    def __init__(self, projector: Projector) -> None:
        super().__init__(name="encoder", daemon=True)
        self._projector = projector
        self._asked: SimpleQueue[ref[ChunkEmbeddings] | None] = SimpleQueue()
        self._is_stopped = False
        # The medium of the latest chunk, until its last chunk: to decode it again takes time.
        self._open: tuple[str, bytes, OpenMedium] | None = None
        self.num_encoded = 0
        """How many chunks were encoded. Any thread may read it."""
        self.num_interrupted = 0
        """How many chunks were begun and not encoded to their end. Any thread may read it."""

    def ask(self, wanted: ChunkEmbeddings) -> None:
        """Queue a chunk. Any thread may call it."""
        self._asked.put(ref(wanted))

    def stop(self) -> None:
        """End the thread. Any thread may call it."""
        self._is_stopped = True
        self._asked.put(None)

    def run(self) -> None:
        """Encode until `stop`."""
        give_way()
        while (asked := self._asked.get()) is not None and not self._is_stopped:
            self._answer(asked)
        self._close()

    def _answer(self, asked: ref[ChunkEmbeddings]) -> None:
        """Encode a chunk while it is wanted. Hold it only by the reference, which tells whether it is."""
        wanted = asked()
        if wanted is None:
            self._close()
            return
        medium, partition, index = wanted.medium, wanted.partition, wanted.index
        del wanted
        answer: Rows | EdgeAgentError | None
        try:
            answer = self._encode(medium, partition, index, lambda: asked() is not None and not self._is_stopped)
        except EdgeAgentError as error:
            answer = error
        except Exception as error:  # one bad medium must not end the thread
            answer = InternalError(f"a medium could not be encoded: {error}")
        if answer is None:
            self.num_interrupted += 1
            self._close()
        elif (wanted := asked()) is not None:
            wanted.answer(answer)

    def _encode(self, medium: Media, partition: str, index: int, is_wanted: Callable[[], bool]) -> Rows | None:
        if self._open is None or self._open[:2] != (partition, medium.digest):
            self._close()
            self._open = partition, medium.digest, self._projector.open(medium.data)
        opened = self._open[2]
        rows = opened.encode(index, is_wanted)
        self.num_encoded += rows is not None
        if index + 1 == opened.num_chunks:
            self._close()
        return rows

    def _close(self) -> None:
        if self._open is not None:
            self._open[2].close()
            self._open = None


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

    def __init__(self, name: str, projector: Projector, max_whole: int) -> None:
        """`name`: the model's, for messages. `max_whole`: see LlamaRunner. Start the thread that encodes."""
        self.projector = projector
        self.encoder = Encoder(projector)
        self._name = name
        self._max_whole = max_whole
        self._layouts: PartitionCache[bytes, Layout] = PartitionCache(_MAX_LAYOUTS)  # by digest
        self.encoder.start()

    def read(self, medium: Media, partition: str) -> ReadMedium:
        """Return the tokens of a medium, and where its embeddings stand among them. `partition`: see CachePolicy.

        Raise InvalidRequest if the medium cannot be decoded, NotSupported if the model does not take this kind, or
        ContextLengthExceeded if a chunk is too large for one step.
        """
        self._check_kind(medium)
        tokens, spans, num_chunks = array("i"), list[MediaSpan](), 0
        for part in self._layout(medium, partition):
            if not isinstance(part, Chunk):
                tokens.extend(part)
                continue
            if not part.is_causal and part.num_tokens > self._max_whole:
                raise ContextLengthExceeded(
                    f"an image takes {part.num_tokens} tokens of one step, which has room for {self._max_whole}; load "
                    "the model with a larger --batch",
                    param="messages",
                    served_by="local",
                )
            is_one = part.positions is not None
            key = b"".join((medium.digest, self.projector.id.encode(), num_chunks.to_bytes(4, "little")))
            start = len(tokens)
            tokens.extend(media_tokens(key, part.num_tokens, is_whole=part.is_whole, is_one=is_one))
            embeddings = ChunkEmbeddings(medium, partition, num_chunks, self.encoder.ask)
            span = MediaSpan(start, len(tokens), embeddings, part.is_causal, part.positions, part.num_positions)
            spans.append(span)
            num_chunks += 1
        return ReadMedium(tokens, tuple(spans))

    def read_next(self, prompt: ChatPrompt, partition: str, num_read: int) -> int | None:
        """Read the next medium of a conversation whose form is not known, behind the first `num_read`.

        Return how many are read then; None if there is no other one. So a long conversation can be read in turns with
        other prompts. Raise the errors of `read`.
        """
        places = [(message, place) for message in prompt.messages for place in message.media]
        for index in range(num_read, len(places) - 1):
            message, place = places[index]
            medium = prompt.media[place.index]
            if self._layouts.get(partition, medium.digest) is None:
                with contextlib.suppress(*(_UNREADABLE if message.role == "tool" else ())):
                    self.read(medium, partition)
                return index + 1
        return None

    def with_notes(self, prompt: ChatPrompt, partition: str) -> ChatPrompt:
        """Return a conversation with notes for the media in the results of tools that cannot be read.

        A tool returns what it has, and an error would end the agent that called it.
        """
        messages = [self._with_notes(message, prompt, partition) for message in prompt.messages]
        return replace(prompt, messages=tuple(messages)) if messages != list(prompt.messages) else prompt

    def _with_notes(self, message: Message, prompt: ChatPrompt, partition: str) -> Message:
        if message.role != "tool" or not message.media:
            return message
        text, *pieces = spliced(message.content, [place.offset for place in message.media])
        places: list[MediaPlace] = []
        for place, piece in zip(message.media, pieces, strict=True):
            medium = prompt.media[place.index]
            try:
                self.read(medium, partition)
                places.append(MediaPlace(len(text), place.index))
            except _UNREADABLE:
                text += f"[{medium.kind} left out: the file cannot be read]"
            text += piece
        return replace(message, content=text, media=tuple(places))

    def num_tokens(self, medium: Media) -> int:
        """Return how many tokens a medium has in a prompt. Any thread may call it.

        Raise the errors of `read`, except for ContextLengthExceeded.
        """
        self._check_kind(medium)
        check_medium(medium)
        layout = self.projector.layout(medium.data)
        return sum(part.num_tokens if isinstance(part, Chunk) else len(part) for part in layout)

    def _check_kind(self, medium: Media) -> None:
        if medium.kind not in self.projector.kinds:
            kinds = " and ".join({"image": "images", "audio": "sounds"}[kind] for kind in self.projector.kinds)
            raise NotSupported(f"{self._name} takes {kinds}, and no other media", param="messages", served_by="local")

    def _layout(self, medium: Media, partition: str) -> Layout:
        layout = self._layouts.get(partition, medium.digest)
        if layout is None:
            check_medium(medium)
            layout = self.projector.layout(medium.data)
            self._layouts.put(partition, medium.digest, layout)
        return layout
