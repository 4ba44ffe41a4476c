"""POST /api/pull: the download of a model to this machine, with its progress as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import Context, context_of
from edgeagent.api.ollama.body import OllamaPullBody
from edgeagent.api.ollama.wire import LineStream, guarded, known_name, line
from edgeagent.api.wire.json_body import read_valid
from edgeagent.api.wire.shape import Shape
from edgeagent.api.wire.sse import last_of, unless_disconnected
from edgeagent.store.hub.progress import Progress

router = APIRouter()


class OllamaPull(Shape):
    """The progress of a download, or `status: success` at the end. Bytes are sums over all files of the model."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


@router.post("/api/pull")
async def pull(request: Request) -> Response:
    """Download a model and its draft if they are not on this machine. A client that disconnects cancels the download.

    The next pull continues an unfinished download.
    """
    context = context_of(request)
    asked = await read_valid(request, OllamaPullBody)
    lines = _lines(context, asked.model)
    if asked.stream is not False:
        return LineStream(guarded(_encoded(lines), "pull"))
    await unless_disconnected(request.receive, last_of(lines))
    return JSONResponse(OllamaPull(status="success"))


async def _encoded(lines: AsyncGenerator[OllamaPull, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(lines):
        async for each in lines:
            yield line(each)


async def _lines(context: Context, name: str) -> AsyncGenerator[OllamaPull, None]:
    yield {"status": "pulling manifest"}
    if not _is_here(context, name):
        async with aclosing(context.pulls.run(name)) as steps:
            async for step in steps:
                if isinstance(step, Progress):
                    yield _line(step)
    yield {"status": "success"}


def _is_here(context: Context, name: str) -> bool:
    known = known_name(context.service, name)
    return any(status.name == known and not status.is_remote for status in context.service.models.statuses())


def _line(progress: Progress) -> OllamaPull:
    match progress.stage:
        case "waiting":
            return {"status": "waiting for another download of the same file"}
        case "verifying":
            return {"status": "verifying sha256 digest"}
    return {
        "status": f"pulling {progress.sha256[:12]}",
        "digest": f"sha256:{progress.sha256}",
        "total": progress.total_bytes,
        "completed": progress.done_bytes,
    }
