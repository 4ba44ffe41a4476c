"""The Realtime API over a WebSocket: a connection of the Responses API that speaks other events."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import WebSocket

from edgeagent.api.context import context_of
from edgeagent.api.realtime.body import (
    ClientEvent,
    RealtimeResponseCancel,
    RealtimeResponseCreate,
    Received,
    ResponseParams,
    read_event,
)
from edgeagent.api.realtime.session import RealtimeSession
from edgeagent.api.responses.socket.connection import Connection
from edgeagent.api.responses.socket.session import Action, Session
from edgeagent.api.wire.body import read_with_images, run_inline_or_in_thread, warnings_for
from edgeagent.api.wire.route import Routes
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError

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
        received = await read_with_images(self._websocket, len(text), read, why_kept=self._why_kept_event)
        if not isinstance(received.event, RealtimeResponseCancel):
            await self._outbox.wait_for_room()  # what is sent may come back
        if received.warning is not None:
            warnings_for(self._websocket).log.write(received.warning)
        num_bytes = self._realtime.num_bytes_to_prepare(received, len(text))
        prepared = await run_inline_or_in_thread(num_bytes, partial(self._realtime.prepare, received))
        return self._realtime.receive(prepared)

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
