"""One response in the making, whatever carries it: checked create, request, events, and place in a chain."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edgeagent.api.events import NewId, ResponseEvents, new_id, new_response
from edgeagent.api.history import ConnectionHistory, StoredResponse
from edgeagent.api.items import Item
from edgeagent.api.schemas_responses import ResponseCreate, read_create
from edgeagent.api.service import Service
from edgeagent.errors import InternalError
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Timings,
    Usage,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """`context` is the conversation that the request answers, `num_inherited` items of it from an earlier response."""

    create: ResponseCreate
    request: GenerateRequest
    events: ResponseEvents
    context: tuple[Item, ...]
    num_inherited: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: a prefill without messages, which no template could render."""
        prompt = self.request.prompt
        return isinstance(prompt, ChatPrompt) and not prompt.messages

    def stored(self) -> StoredResponse:
        """Return what a continuation needs. Cut-off and cancelled answers too: what was heard of them was said."""
        partition = self.request.cache.partition
        return StoredResponse(self.request.id, self.context, self.events.items, self.num_inherited, partition)


def begin_turn(
    fields: dict[str, Any],
    service: Service,
    history: ConnectionHistory,
    *,
    default_model: str | None = None,
    stream_id: str | None = None,
    partition: str = "",
    make_id: NewId = new_id,
    clock: Callable[[], float] = time.time,
) -> Turn:
    """Return the turn that a create's fields ask for; raise InvalidRequest, NotSupported or ResponseNotFound."""
    create = read_create(fields)
    previous_id = create.body.previous_response_id
    previous = history.get(previous_id) if previous_id is not None else None
    context = history.continue_from(previous, create.items)
    model = create.body.model or default_model or service.default_model()
    request = create.request(make_id("resp"), model, context, partition)
    response = new_response(request.id, model, create.echo(_defaults(service, model)), int(clock()))
    events = ResponseEvents(response, stream_id=stream_id, make_id=make_id, clock=clock)
    return Turn(create, request, events, context, len(previous.items) if previous else 0)


def unrun(reason: FinishReason, why: str) -> Finished:
    """Return the end of a request that no backend saw."""
    return Finished(reason, Usage(), Timings(route="edgeagent", reason=why))


def unexpected(request_id: str, error: Exception) -> InternalError:
    """Log an exception that nobody translated, and return the error that stands for it on the wire."""
    # Not the exception's own text, which may quote a prompt: its type and place are enough to find the bug.
    places = {"places": "".join(traceback.format_tb(error.__traceback__))}
    logger.error("%s failed: %s", request_id, type(error).__name__, extra=places)
    return InternalError(type(error).__name__)


def _defaults(service: Service, model: str) -> SamplingParams:
    infos = (status.info for status in service.models() if status.name == model)
    info = next(infos, None)
    return info.sampling if info else SamplingParams()
