"""The client without `await`: the same names as in `edgeagent.client`, for programs without an event loop.

with edgeagent.client.sync.connect() as client:
    for text in client.respond("Turn the light on").texts():
        ...

The connection lives in a thread of its own, so it stays open between calls. A reply may be read in one thread, and
cancelled in another one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from edgeagent.client import connection, conversation, reply
from edgeagent.client.answer import Answer
from edgeagent.client.choice import Choice
from edgeagent.client.connection import Input
from edgeagent.errors import BackendUnavailable

Result = TypeVar("Result")


class _Loop:
    """An event loop in a thread. `run` waits for a coroutine that runs there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="edgeagent.client", daemon=True)
        self._thread.start()
        self._waiting: set[Future[Any]] = set()
        self._is_stopped = False

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`.

        Raises:
            BackendUnavailable: `stop` was called, before or meanwhile.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise _closed() from None
        self._waiting.add(future)
        try:
            if self._loop.is_closed():
                future.cancel()  # it may have come too late for `stop`
            return future.result()
        except BaseException as error:
            if self._is_stopped and isinstance(error, CancelledError):
                work.close()
                raise _closed() from None
            # After Ctrl-C, no caller takes its result. If it continued, it would consume the next event of a reply.
            future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def each(self, items: AsyncIterator[Result]) -> Iterator[Result]:
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        while (item := self.run(following())) is not end:
            yield item

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `last`, cancel what other threads wait for, and end the thread. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            # What the loop has not begun would never end.
            for future in tuple(self._waiting):
                future.cancel()

    def _serve(self) -> None:
        self._loop.run_forever()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()


def _closed() -> BackendUnavailable:
    return BackendUnavailable("the client was closed")


class Client:
    """As `edgeagent.client.Client`. Use it as a context manager, or call `close`, after which it cannot be used."""

    def __init__(self, client: connection.Client) -> None:
        self._client = client
        self._loop = _Loop()

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        self._loop.run(self._client.open())

    def close(self) -> None:
        """Disconnect, and end the thread. If a response is still running, the daemon cancels it."""
        self._loop.stop(self._client.close)

    def respond(self, message: Input, **fields: Any) -> Reply:
        return Reply(self._client.respond(message, **fields), self._loop)

    def ask(self, message: Input, **fields: Any) -> Answer:
        return self._loop.run(self._client.ask(message, **fields))

    def prefill(self, message: Input = (), *, ahead: bool = False, **fields: Any) -> None:
        self._loop.run(self._client.prefill(message, ahead=ahead, **fields))

    def classify(self, message: Input, choices: Sequence[str | Mapping[str, str]], **fields: Any) -> Choice:
        return self._loop.run(self._client.classify(message, choices, **fields))

    def conversation(self, previous_response_id: str | None = None, **fields: Any) -> Conversation:
        return Conversation(self._client.conversation(previous_response_id, **fields), self._loop)


class Reply:
    """As `edgeagent.client.Reply`: an iterator over the events. Several threads may use it."""

    def __init__(self, reply: reply.Reply, loop: _Loop) -> None:
        self._reply = reply
        self._loop = loop

    @property
    def answer(self) -> Answer:
        return self._reply.answer

    @property
    def rounds(self) -> list[Answer]:
        return self._reply.rounds

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._loop.each(self._reply)

    def texts(self) -> Iterator[str]:
        return self._loop.each(self._reply.texts())

    def sentences(self) -> Iterator[str]:
        return self._loop.each(self._reply.sentences())

    def finish(self) -> Answer:
        return self._loop.run(self._reply.finish())

    def cancel(self) -> Answer:
        return self._loop.run(self._reply.cancel())


class Conversation:
    """As `edgeagent.client.Conversation`."""

    def __init__(self, conversation: conversation.Conversation, loop: _Loop) -> None:
        self._conversation = conversation
        self._loop = loop

    @property
    def words(self) -> str:
        return self._conversation.words

    @property
    def response_id(self) -> str | None:
        return self._conversation.response_id

    def append(self, words: str) -> None:
        self._loop.run(self._conversation.append(words))

    def replace_tail(self, words: str) -> None:
        self._loop.run(self._conversation.replace_tail(words))

    def prefill(self) -> None:
        self._loop.run(self._conversation.prefill())

    def ahead(self) -> None:
        self._loop.run(self._conversation.ahead())

    def commit(self, message: Input | None = None, **fields: Any) -> Reply:
        return Reply(self._loop.run(self._conversation.commit(message, **fields)), self._loop)

    def cancel(self) -> Answer | None:
        return self._loop.run(self._conversation.cancel())


def connect(
    url: str | None = None, token: str | None = None, state_dir: Path | None = None, *, start: bool = False
) -> Client:
    return Client(connection.connect(url, token, state_dir, start=start))
