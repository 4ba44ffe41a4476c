"""Checks whether the daemon can answer: it generates one token in the same way as for a client's request.

If the default model only embeds or ranks texts, it computes an embedding or scores instead.
"""

from __future__ import annotations

import asyncio
import secrets
from contextvars import copy_context

from edgeagent.credentials.grants import GRANT
from edgeagent.errors import EdgeAgentError, LocalUnavailable, NotSupported, RequestTimeout
from edgeagent.service.live_service import LiveService
from edgeagent.service.service import info_of
from edgeagent.types import (
    CachePolicy,
    Embed,
    GenerateRequest,
    Rerank,
    RouteMode,
    SamplingParams,
    TextPrompt,
    WorkerState,
)

READY_CACHE_S = 10.0
# A failure is valid for a shorter time, because its cause may have passed.
NOT_READY_CACHE_S = 1.0
PROBE_TIMEOUT_S = 10.0
_TEXT = "Hello"


class Probe:
    """Checks whether the default model works.

    All callers share one result, for READY_CACHE_S seconds, or for NOT_READY_CACHE_S if the model does not work.
    """

    def __init__(self, service: LiveService) -> None:
        self._service = service
        self._task: asyncio.Task[EdgeAgentError | None] | None = None
        self._valid_until_s = 0.0

    async def result(self) -> EdgeAgentError | None:
        """Return None if the model works, otherwise the error that the check met. Raise no EdgeAgentError.

        If the model cannot run on this machine, any model that is ready is enough, even a remote's.
        """
        clock = asyncio.get_running_loop().time
        if self._task is None or (self._task.done() and clock() >= self._valid_until_s):
            # The probe serves all clients, so it does not end with one client's token.
            context = copy_context()
            context.run(GRANT.set, None)
            self._task = asyncio.create_task(self._run(), context=context)
        # Shielded: if one client disconnects, the probe must not fail for the others.
        return await asyncio.shield(self._task)

    async def _run(self) -> EdgeAgentError | None:
        error: EdgeAgentError | None = None
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._use()
        except TimeoutError:
            error = RequestTimeout(f"no token came within {PROBE_TIMEOUT_S:g} s")
        except LocalUnavailable as failure:
            # The probe does not go to a remote, where it costs money. Any ready model is enough, also a remote one.
            statuses = self._service.models.statuses()
            error = None if any(status.state is WorkerState.READY for status in statuses) else failure
        except EdgeAgentError as failure:
            error = failure
        valid_s = READY_CACHE_S if error is None else NOT_READY_CACHE_S
        self._valid_until_s = asyncio.get_running_loop().time() + valid_s
        return error

    async def _use(self) -> None:
        models = self._service.models
        model = models.default()
        info = info_of(models, model)
        if info is None or info.can_generate:
            try:
                await self._generate(model)
                return
            except NotSupported:
                info = info_of(models, model)  # known by now, because the model is loaded
                if info is None or info.can_generate:
                    raise
        if info.can_rank:
            await self._service.rank(model, Rerank(_TEXT, (_TEXT,)))
        else:
            await self._service.embed(model, Embed((TextPrompt(_TEXT),)))

    async def _generate(self, model: str) -> None:
        request = GenerateRequest(
            id=f"probe-{secrets.token_hex(8)}",
            model=model,
            prompt=TextPrompt(_TEXT),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=1,
            cache=CachePolicy(read=False, write=False),
            route=RouteMode.LOCAL_ONLY,
        )
        await self._service.run_own(request)
