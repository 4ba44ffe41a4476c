"""POST /v1/models/pull: the download of a model to this machine, with its progress as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.wire.errors import Refusal, error_body
from edgeagent.api.wire.fields import ModelName, Settings
from edgeagent.api.wire.json_body import read_valid
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.api.wire.sse import DONE, EventStream, event, last_of, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.store.hub.background import Pulled
from edgeagent.store.hub.progress import Progress

router = APIRouter()


class PullBody(Settings):
    """`model`: the model to download. `draft`: download its draft too.

    `stream`: send the progress as events; if false, send one answer at the end.
    """

    model: ModelName
    stream: bool = True
    draft: bool = True


class PullProgress(Shape):
    """The progress of a pull, as an event of a stream. Bytes are sums over all files of the model.

    `stage`: waiting (another process pulls the same file), downloading or verifying. `resumed_bytes`: bytes of partial
    files that were on disk before. `sha256`: the hash that `file` must have.
    """

    object: Literal["model.pull.progress"]
    stage: str
    file: str
    done_bytes: int
    total_bytes: int
    resumed_bytes: int
    sha256: str


class PulledFile(Shape):
    """A model that is now on this machine. `is_current` is false if the hub did not say whether a newer version exists.

    `downloaded_bytes`: the bytes that this pull has downloaded.
    """

    id: str
    size_bytes: int
    downloaded_bytes: int
    is_current: bool


class ModelPull(PulledFile):
    """The pulled model. A stream sends `model.pull.progress` events first.

    `draft`: the draft model. It is null if it was not requested, does not exist, or could not be downloaded.
    """

    object: Literal["model.pull"]
    draft: PulledFile | None


@router.post("/v1/models/pull")
async def pull(request: Request) -> Response:
    """Download a model and its draft if they are not on this machine. A client that disconnects cancels the download.

    The next pull continues an unfinished download. While a pull runs, another one is refused with BackendUnavailable.
    """
    asked = await read_valid(request, PullBody)
    steps = context_of(request).pulls.run(asked.model, with_draft=asked.draft)
    if asked.stream:
        # A refusal comes instead of the first step, and gets its status.
        return EventStream(_events(await anext(steps), steps))
    return JSONResponse(_shown(await unless_disconnected(request.receive, last_of(steps))))


def _shown(step: Progress | Pulled) -> PullProgress | ModelPull:
    if isinstance(step, Progress):
        return shaped(PullProgress, step, object="model.pull.progress")
    pulled, draft = step
    brought = None if draft is None else shaped(PulledFile, draft, id=draft.name)
    return shaped(ModelPull, pulled, id=pulled.name, object="model.pull", draft=brought)


async def _events(
    first: Progress | Pulled, steps: AsyncGenerator[Progress | Pulled, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(steps):
        yield event(_shown(first))
        try:
            async for step in steps:
                yield event(_shown(step))
        except EdgeAgentError as error:
            yield event(Refusal(error=error_body(error)))
    yield DONE
