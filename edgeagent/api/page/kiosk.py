"""The kiosk: a page for visitors, its settings, and a WebSocket on which only the conversation is the visitor's.

Each frame of a visitor has the whole conversation, so the daemon keeps nothing between two of them but cached prompts.
These are in memory only, and are deleted when the page's connection ends: when a visitor is gone, or the page crashes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Annotated, Literal

from fastapi import Request, WebSocket
from fastapi.responses import JSONResponse
from pydantic import Field

from edgeagent.api.context import Context, context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.responses.body import read_create
from edgeagent.api.responses.socket.connection import Connection
from edgeagent.api.responses.socket.frames import CreateFrame, Frame, OtherFrame, RefusedFrame
from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.responses.socket.outbox import UNSUPPORTED_DATA, Close
from edgeagent.api.responses.socket.session import Action, Session
from edgeagent.api.wire.body import OwnerBody, Settings, parse_object, run_inline_or_in_thread, validate
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape, shaped
from edgeagent.config import KioskConfig
from edgeagent.credentials.keys import Scope
from edgeagent.errors import ConfigError, ContextLengthExceeded, EdgeAgentError
from edgeagent.kiosk_prompt import read_facts, system_prompt
from edgeagent.service.service import purge_memory

routes = Routes()

logger = logging.getLogger(__name__)

MAX_MESSAGES = 64
MAX_CHARS = 32_768


class KioskSettings(Shape):
    """What the page shows. `num_pages`: how many pages this client has open; `edgeagent kiosk` watches it."""

    title: str
    attract: str
    questions: list[str]
    keyboard: list[str]
    idle_reset_s: float
    num_pages: int


class KioskMessage(Settings, OwnerBody):
    """A message of the conversation. No visitor writes the system prompt."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CHARS)]


class KioskFrame(Settings, OwnerBody):
    """A frame of the page. Everything else about an answer is the owner's: model, instructions, tools and length.

    `input`: the whole conversation. `generate`: false computes its prompt only. `response_id`: what to cancel.
    """

    type: Literal["response.create", "response.cancel"]
    input: Annotated[list[KioskMessage], Field(max_length=MAX_MESSAGES)] = []
    generate: bool = True
    response_id: Annotated[str | None, Field(max_length=128)] = None


@routes.add("GET /edgeagent/kiosk", Scope.KIOSK, "page", answer=KioskSettings)
async def get_settings(request: Request) -> JSONResponse:
    """Return what the kiosk's page shows, and how many pages this client has open."""
    context = context_of(request)
    kiosk = context.config.kiosk
    return JSONResponse(shaped(KioskSettings, kiosk, num_pages=context.kiosk_pages[client_of(request)]))


@routes.add_socket("/edgeagent/kiosk", Scope.KIOSK)
async def serve_kiosk(websocket: WebSocket) -> None:
    """Serve one page until it disconnects, and then forget what its visitor said."""
    context, client = context_of(websocket), client_of(websocket)
    context.kiosk_pages[client] += 1
    try:
        facts = await asyncio.to_thread(_facts_of, context.config.kiosk)
        await KioskConnection(websocket, context, facts).run()
    finally:
        context.kiosk_pages[client] -= 1
        context.responses.carry_on(purge_memory(context.service, partition_of(client)))


def partition_of(client: str) -> str:
    """Return the partition of what a kiosk's visitors say. A client's name has no colon, so it is no client's own."""
    return f"kiosk:{client}"


class KioskConnection(Connection):
    """One page's socket. A create is made of what the visitor said and of what the owner has pinned."""

    def __init__(self, websocket: WebSocket, context: Context, facts: str) -> None:
        self._facts = facts
        super().__init__(websocket, context)

    def _new_session(self) -> Session:
        self._partition = partition_of(self._partition)
        self._pinned = pinned_fields(self._api.config.kiosk, self._service.models.default(), self._facts)
        return Session(self._service, self._store.new_history(), partition=self._partition)

    async def _receive(self, text: str) -> list[Action]:
        frame = await run_inline_or_in_thread(len(text), partial(read_kiosk_frame, text, self._pinned))
        return await self._acted_on(frame)

    async def _take_file(self, data: bytes) -> list[Action]:
        del data
        return [Close(UNSUPPORTED_DATA, "text frames only")]

    def _failed(self, live: LaneTurn, error: EdgeAgentError) -> None:
        # The page has the prompt computed when it opens, so the owner reads this before a visitor asks.
        if isinstance(error, ContextLengthExceeded):
            logger.warning(
                "the kiosk's visitors get no answers: its instructions and kiosk.facts_file do not fit the context: %s",
                error.message,
            )
        super()._failed(live, error)


def _facts_of(kiosk: KioskConfig) -> str:
    """Return what the owner's file says now. If it became unusable after the start, visitors are answered without."""
    try:
        return read_facts(kiosk.facts_file)
    except ConfigError as error:
        logger.warning("the kiosk answers without its facts: %s", error.message)
        return ""


def pinned_fields(kiosk: KioskConfig, default_model: str, facts: str = "") -> Json:
    """Return the fields of a create that the owner has set for every visitor."""
    return {
        "model": kiosk.model or default_model,
        "instructions": system_prompt(kiosk, facts),
        "max_output_tokens": kiosk.max_output_tokens,
        "store": False,
        "edgeagent": {"answers": "read"},  # what a visitor says is not kept; answers that the owner has warmed are
        "truncation": "auto",
    }


def read_kiosk_frame(text: str, pinned: Json) -> Frame:
    """Return the content of a visitor's frame; a RefusedFrame if it has anything that is not a visitor's."""
    try:
        asked = validate(KioskFrame, parse_object(text, "a frame must be a JSON object with a type"))
        if asked.type == "response.cancel":
            return OtherFrame({"type": asked.type, "response_id": asked.response_id})
        said = [message.model_dump() for message in asked.input]
        create = read_create({"input": said or None, "generate": asked.generate, **pinned})
    except EdgeAgentError as error:
        return RefusedFrame(error)
    return CreateFrame(create, None, is_named=False, num_bytes=len(text.encode()))
