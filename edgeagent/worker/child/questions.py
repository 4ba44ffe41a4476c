"""The worker's thread for queries about text. It runs independently of prompt preparation and decoding.

Several threads may read llama.cpp's vocabulary. A chat template counts the time of one
request only, so this thread has its own.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.types import Embed, QueryAnswer, Rerank, TextQuery
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.protocol import AnswerPart, Ask, failed_message

# Limits of one frame of an answer.
_MAX_TOKENS = 4096
_MAX_PIECE_BYTES = 256 << 10
_MAX_CHARS = 64 << 10


class Questions(threading.Thread):
    """Answers queries one after the other, with the function `answer`.

    For an Embed or a Rerank, this thread calls `compute`, which tokenizes and passes the tokens to the main thread. The
    main thread sends the answer.
    """

    def __init__(
        self,
        answer: Callable[[TextQuery], QueryAnswer],
        frames: Frames,
        compute: Callable[[str, Embed | Rerank], None],
    ) -> None:
        super().__init__(name="questions", daemon=True)
        self._answer_query = answer
        self._compute = compute
        self._frames = frames
        self._asks: SimpleQueue[Ask] = SimpleQueue()
        self._live: set[str] = set()  # several threads use it; each operation on it is atomic

    def ask(self, ask: Ask) -> None:
        """Queue a query for this thread; any thread may call this method."""
        self._live.add(ask.id)
        self._asks.put(ask)

    def drop(self, ask_id: str) -> None:
        """Drop a query; any thread may call this method.

        A running computation is finished, but no further part of its answer is sent. An error is still sent.
        """
        self._live.discard(ask_id)

    def run(self) -> None:
        """Answer until the process ends."""
        while True:
            self._answer(self._asks.get())

    def _answer(self, ask: Ask) -> None:
        if ask.id not in self._live:
            return
        try:
            if isinstance(ask.query, Embed | Rerank):
                self._compute(ask.id, ask.query)
                return
            *parts, last = _split(self._answer_query(ask.query))
            for part in parts:
                if ask.id in self._live:
                    self._frames.put(AnswerPart(ask.id, part, is_last=False))
            if ask.id in self._live:
                self._frames.put(AnswerPart(ask.id, last, is_last=True))
        except EdgeAgentError as error:
            self._frames.put(failed_message(ask.id, error))
        except BaseException:  # one bad question must not end the thread
            traceback.print_exc()
            unknown = InternalError("The question could not be answered; the daemon's log has the details.")
            self._frames.put(failed_message(ask.id, unknown))
        finally:
            self._live.discard(ask.id)


def _split(answer: QueryAnswer) -> Iterator[QueryAnswer]:
    """Yield parts of an answer, each small enough for a frame; the last may be empty."""
    for start in range(0, len(answer.text), _MAX_CHARS):
        yield QueryAnswer(answer.text[start : start + _MAX_CHARS])
    start = num_bytes = 0
    for index in range(len(answer.tokens)):
        num_bytes += len(answer.pieces[index]) if answer.pieces else 0
        if index - start >= _MAX_TOKENS or num_bytes > _MAX_PIECE_BYTES:
            yield QueryAnswer(tokens=answer.tokens[start:index], pieces=answer.pieces[start:index])
            start, num_bytes = index, len(answer.pieces[index]) if answer.pieces else 0
    yield QueryAnswer(tokens=answer.tokens[start:], pieces=answer.pieces[start:])
