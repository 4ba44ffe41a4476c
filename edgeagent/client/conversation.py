"""A conversation over one connection: the message that is being written or spoken, and the answers to its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edgeagent.client.answer import Answer
from edgeagent.client.reply import Reply
from edgeagent.client.tools import ToolLike, made_tools

if TYPE_CHECKING:
    from edgeagent.client.connection import Client, Input


class Conversation:
    """A conversation. Each message continues the answer before it, unless that failed or had not begun.

    While the user speaks or types, `append` and `replace_tail` tell the daemon the words so far, and it computes their
    prompt. `commit` sends the message. `fields` and `tools` hold for every message; see `Client.respond`.
    """

    def __init__(
        self,
        client: Client,
        previous_response_id: str | None = None,
        tools: Iterable[ToolLike] = (),
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._fields = {**(fields or {}), "tools": made_tools(tools) or None}
        self._continued_id = previous_response_id
        self._reply: Reply | None = None
        self._words = ""
        self._tail = ""

    @property
    def words(self) -> str:
        return self._words + self._tail

    @property
    def response_id(self) -> str | None:
        """The id of the last answer, with which the conversation can be continued later; None before the first one."""
        answer = None if self._reply is None else self._reply.answer
        if answer is None or answer.response_id is None or answer.status in ("in_progress", "failed"):
            return self._continued_id
        return answer.response_id

    async def append(self, words: str) -> None:
        """Add words that will not change to the message, in place of its tail. Then `prefill`."""
        self._words, self._tail = self._words + words, ""
        await self.prefill()

    async def replace_tail(self, words: str) -> None:
        """Replace the tail: words behind those of `append` that speech recognition may still revise. Then `prefill`."""
        self._tail = words
        await self.prefill()

    async def prefill(self) -> None:
        """Let the daemon compute the prompt up to here, and return at once. While an answer runs, do nothing.

        Without words, the prompt is that of the instructions and tools. Raise the errors of `Client.open`.
        """
        await self._client.prefill(self.words, **self._request())

    async def ahead(self) -> None:
        """Do what `prefill` does, and also begin the answer, in case the message is complete.

        If no word changes, `commit` returns this answer."""
        await self._client.prefill(self.words, ahead=bool(self.words), **self._request())

    async def commit(self, message: Input | None = None, **fields: Any) -> Reply:
        """Return the reply to a message; None: to the words so far. A reply that still runs is cancelled.

        `fields` are added to those of the conversation. If there are any, an answer that was begun `ahead` is not used.
        """
        await self.cancel()
        request = {**self._request(), **fields}
        text = self.words if message is None else message
        self._continued_id, self._words, self._tail = self.response_id, "", ""
        self._reply = self._client.respond(text, **request)
        return self._reply

    async def cancel(self) -> Answer | None:
        """Stop the reply that runs, as when the user interrupts it. Return its answer so far; None if there is none."""
        return None if self._reply is None else await self._reply.cancel()

    def _request(self) -> dict[str, Any]:
        return {**self._fields, "previous_response_id": self.response_id}
