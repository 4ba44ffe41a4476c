"""POST /v1/models/pull: a model brought to this machine, its progress as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.errors import error_body
from edgeagent.api.wire.fields import Body, ModelName, validate
from edgeagent.api.wire.first_step import begun
from edgeagent.api.wire.json_body import read_json_object
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.sse import DONE, EventStream, event, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.store.hub import PulledModel, Puller
from edgeagent.store.progress import OnProgress

router = APIRouter()


class PullBody(Body):
    """`model`: what to bring here. `stream`: progress as events, or one answer at the end. `draft`: its draft too."""

    model: ModelName
    stream: bool = True
    draft: bool = True


@router.post("/v1/models/pull")
async def pull(request: Request) -> Response:
    """Download a model and its draft, or find that they are here; cancelled if the client disconnects.

    The next pull continues it. One pull runs at a time.
    """
    asked = validate(PullBody, await read_json_object(request))
    steps = _steps(context_of(request), asked)
    if asked.stream:
        return EventStream(_events(await begun(steps)))
    return JSONResponse(await unless_disconnected(request.receive, _last(steps)))


async def _steps(context: Context, asked: PullBody) -> AsyncGenerator[Json, None]:
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
            yield {"object": "model.pull.progress", **asdict(progress)}
    for pulled, draft in done:
        yield {"object": "model.pull", **_described(pulled), "draft": None if draft is None else _described(draft)}


def _described(pulled: PulledModel) -> Json:
    sizes = {"size_bytes": pulled.size_bytes, "downloaded_bytes": pulled.downloaded_bytes}
    return {"id": pulled.name, **sizes, "is_current": pulled.is_current}


async def _events(steps: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        try:
            async for step in steps:
                yield event(step)
        except EdgeAgentError as error:
            yield event({"error": error_body(error)})
    yield DONE


async def _last(steps: AsyncGenerator[Json, None]) -> Json:
    last: Json = {}
    async with aclosing(steps):
        async for step in steps:
            last = step
    return last
