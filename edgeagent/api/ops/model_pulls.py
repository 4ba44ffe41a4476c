"""POST /v1/models/pull: a model brought to this machine, its progress as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.errors import Refusal, error_body
from edgeagent.api.wire.fields import Body, ModelName, validate
from edgeagent.api.wire.first_step import begun, last_of
from edgeagent.api.wire.json_body import read_json_object
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.api.wire.sse import DONE, EventStream, event, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.store.hub.progress import OnProgress
from edgeagent.store.hub.pull import PulledModel, Puller

router = APIRouter()


class PullBody(Body):
    """`model`: what to bring here. `stream`: progress as events, or one answer at the end. `draft`: its draft too."""

    model: ModelName
    stream: bool = True
    draft: bool = True


class PullProgress(Shape):
    """How far a pull is, as an event of a stream."""

    object: Literal["model.pull.progress"]
    stage: str
    file: str
    done_bytes: int
    total_bytes: int
    resumed_bytes: int
    sha256: str


class PulledFile(Shape):
    """A model that is here. `is_current` is false where the hub could not be asked for a newer one."""

    id: str
    size_bytes: int
    downloaded_bytes: int
    is_current: bool


class ModelPull(PulledFile):
    """What a pull brought; in a stream `model.pull.progress` events come before it."""

    object: Literal["model.pull"]
    draft: PulledFile | None


PullSteps = AsyncGenerator[PullProgress | ModelPull, None]


@router.post("/v1/models/pull")
async def pull(request: Request) -> Response:
    """Download a model and its draft, or find that they are here; cancelled if the client disconnects.

    The next pull continues it. One pull runs at a time.
    """
    asked = validate(PullBody, await read_json_object(request))
    steps = _steps(context_of(request), asked)
    if asked.stream:
        return EventStream(_events(await begun(steps)))
    return JSONResponse(await unless_disconnected(request.receive, last_of(steps)))


async def _steps(context: Context, asked: PullBody) -> PullSteps:
    """Yield how far the pull is, and at the end what came of it."""
    puller = Puller(context.config.store, context.config.state_dir)
    done: list[tuple[PulledModel, PulledModel | None]] = []

    def run(on_progress: OnProgress) -> None:
        if asked.draft:
            done.append(puller.pull_with_draft(asked.model, on_progress))
        else:
            done.append((puller.pull(asked.model, on_progress), None))

    async with aclosing(context.pulls.run(run)) as steps:
        async for progress in steps:
            yield shaped(PullProgress, progress, object="model.pull.progress")
    for pulled, draft in done:
        brought = None if draft is None else shaped(PulledFile, draft, id=draft.name)
        yield shaped(ModelPull, pulled, id=pulled.name, object="model.pull", draft=brought)


async def _events(steps: PullSteps) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        try:
            async for step in steps:
                yield event(step)
        except EdgeAgentError as error:
            yield event(Refusal(error=error_body(error)))
    yield DONE
