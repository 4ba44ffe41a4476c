"""The Realtime API over a WebSocket: a connection of the Responses API that speaks other events."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from fastapi import WebSocket

from edgeagent.api.context import context_of
from edgeagent.api.realtime.body import (
    ClientEvent,
    ItemCreate,
    RealtimeResponseCancel,
    RealtimeResponseCreate,
    Received,
    ResponseParams,
    read_event,
)
from edgeagent.api.realtime.session import RealtimeSession
from edgeagent.api.responses.items import to_items
from edgeagent.api.responses.socket.connection import Connection
from edgeagent.api.responses.socket.session import Action, Session
from edgeagent.api.wire.body import read_with_images, run_inline_or_in_thread, warnings_for
from edgeagent.api.wire.route import Routes
from edgeagent.conversation.items import MessageItem, media_of, to_messages
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, InvalidRequest
from edgeagent.media_files import with_notes
from edgeagent.types import ChatPrompt, RenderPrompt, WorkerState

# A model that is busy for longer is not waited for. Then a damaged image fails the answers.
CHECK_S = 2.0

routes = Routes()


@routes.add_socket("/v1/realtime", Scope.INFER)
async def serve_realtime(websocket: WebSocket) -> None:
    """Serve one client of the Realtime API until it disconnects."""
    await RealtimeConnection(websocket, context_of(websocket)).run()


class RealtimeConnection(Connection):
    """One client's socket. What it has read goes to a RealtimeSession, and all else to the session in that."""

    def _new_session(self) -> Session:
        self._realtime = RealtimeSession(super()._new_session())
        return self._realtime.session

    async def _serve(self) -> None:
        self._perform(self._realtime.open())
        try:
            await super()._serve()
        finally:
            self._realtime.forget()

    @property
    def _num_kept_bytes(self) -> int:
        return super()._num_kept_bytes + self._realtime.num_kept_bytes

    def _forget(self) -> None:
        """Close the connection, whose conversation is kept nowhere else."""
        self._end("clients keep too much on their connections; begin another session")

    async def _receive(self, text: str) -> list[Action]:
        """Return the actions that answer a frame. No image is fetched for an event that is refused."""
        read = partial(read_event, text, is_local=self._realtime.is_local)
        files = self._files.by_name
        received = await read_with_images(self._websocket, len(text), read, files, self._why_kept_event)
        received = await self._refused_if_damaged(received)
        if not isinstance(received.event, RealtimeResponseCancel):
            await self._outbox.wait_for_room()  # what is sent may come back
        if received.warning is not None:
            warnings_for(self._websocket).log.write(received.warning)
        num_bytes = self._realtime.num_bytes_to_prepare(received, len(text))
        prepared = await run_inline_or_in_thread(num_bytes, partial(self._realtime.prepare, received))
        return self._realtime.receive(prepared)

    def _cancelled(self, text: str) -> list[Action] | None:
        received = read_event(text)
        event = received.event
        is_cancel = isinstance(event, RealtimeResponseCancel) and self._realtime.can_cancel(event.response_id)
        return self._realtime.receive(received) if is_cancel else None

    async def _refused_if_damaged(self, received: Received) -> Received:
        """Return an event, or its refusal if it adds an image or a sound that the session's model finds damaged.

        Such an item would fail all later answers. Any other reason why it cannot be shown concerns the answers. A model
        that is not loaded is not asked, and none for longer than CHECK_S: the session then names the item in the error.
        """
        items = to_items([received.event.item]) if isinstance(received.event, ItemCreate) else ()
        if not any(isinstance(item, MessageItem) and item.media for item in items):
            return received
        shown = ChatPrompt(to_messages(None, items), media=media_of(items))
        if not self._is_loaded:
            return replace(received, is_unchecked=True)
        try:
            async with asyncio.timeout(CHECK_S):
                refusal = await self._why_refused(shown)
                # The template may refuse a message alone.
                if refusal is None or await self._why_refused(with_notes(shown, lambda *_: "[file]")) is not None:
                    return received
        except TimeoutError:
            return replace(received, is_unchecked=True)
        message = f"item: {refusal.message}; send another file"
        return replace(received, event=InvalidRequest(message, param="item"))

    @property
    def _is_loaded(self) -> bool:
        models = self._service.models
        try:
            name = models.find(self._realtime.model)
        except EdgeAgentError:
            return False
        names = (name, name.rpartition("+")[0])  # that of an adapter's model
        return any(each.name in names and each.state is WorkerState.READY for each in models.statuses())

    async def _why_refused(self, prompt: ChatPrompt) -> InvalidRequest | None:
        """Return why a prompt is wrong for the session's model, whatever that supports; None if that is unknown."""
        try:
            await self._service.models.ask(self._realtime.model, RenderPrompt(prompt))
        except EdgeAgentError as error:
            return error if type(error) is InvalidRequest else None
        return None

    async def _why_kept_event(self, received: Received) -> str | Received:
        try:
            match received.event:
                case RealtimeResponseCreate(response=ResponseParams(input=list(sent))):
                    return await self._why_kept(None, self._realtime.references(sent))
                case ClientEvent():
                    return ""
        except EdgeAgentError as error:
            return replace(received, event=error)
        return received
