"""Runs a worker's renderer: the process for the model's chat template and for clients' grammars.

It carries out one job at a time, and is ended if a job takes too much CPU time or memory. The next job starts another
process. This module does not read the jobs and the answers.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edgeagent.worker.exit_cause import is_from_outside
from edgeagent.worker.parent.supervision.channel import Channel
from edgeagent.worker.parent.supervision.watchdog import Owed, Signs, Watchdog
from edgeagent.worker.protocol import (
    ENCLOSED,
    MAX_FRAME_TO_WORKER_BYTES,
    MAX_RENDERER_BYTES,
    ProtocolError,
    RenderAnswer,
    RenderJob,
    framed,
)

RENDERER_COMMAND = (sys.executable, "-P", "-m", "edgeagent.worker.render.process")
# A worker has two threads with a job each. A hostile one may send any number.
_MAX_JOBS = 8
_MAX_CPU_S = 10.0
_LOOK_S = 0.1
# A kill from outside is usually not caused by a job.
_MAX_TRIES = 2
_START_S = 60.0
_END_S = 1.0

logger = logging.getLogger(__name__)


class RendererProcess:
    """The renderer of one worker. All methods must be called on the event loop's thread."""

    def __init__(self, name: str, answer: Callable[[RenderAnswer], None], *, is_enclosed: bool) -> None:
        """`name` is the model's. `answer` sends an answer to the worker. `is_enclosed`: it runs in the sandbox."""
        self._name = name
        self._answer = answer
        self._command = (*RENDERER_COMMAND, ENCLOSED) if is_enclosed else RENDERER_COMMAND
        self._parts: dict[int, bytearray] = {}
        self._jobs: asyncio.Queue[RenderJob] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._channel: Channel | None = None
        self._reply: asyncio.Future[bytes | None] | None = None

    def submit(self, job: RenderJob) -> None:
        """Take a part of a job; raise ProtocolError if there are too many jobs, or if one is too large."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"renderer {self._name}")
        if job.number == 0:  # it only starts the process
            return
        body = self._parts.setdefault(job.number, bytearray())
        body += job.part
        if len(self._parts) + self._jobs.qsize() > _MAX_JOBS or len(body) > MAX_FRAME_TO_WORKER_BYTES:
            raise ProtocolError(f"too many jobs for the chat template's process, or one of {len(body)} bytes")
        if job.is_last:
            del self._parts[job.number]
            self._jobs.put_nowait(RenderJob(job.number, job.cpu_s, bytes(body)))

    async def stop(self) -> None:
        """End the process. Unfinished jobs get no answer."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._end()

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # the next job reports it
                await self._started()
            job = await self._jobs.get()
            try:
                self._answer(await self._carry_out(job))
            except Exception as error:  # a job without an answer would count as the worker's hang
                if not isinstance(error, OSError):
                    logger.exception("%s: a job of the chat template failed", self._name)
                self._answer(RenderAnswer(job.number, trouble=f"a process that cannot be started: {error}"))
            del job  # a job and its reply may be large, and the next ones late
            self._reply = None

    async def _started(self) -> Channel:
        if self._channel is None or self._channel.ended.done():
            reply = self._reply = asyncio.get_running_loop().create_future()
            self._channel = await Channel.spawn(
                self._command, self._on_reply, self._on_violation, None, bytes, MAX_FRAME_TO_WORKER_BYTES
            )
            # The interpreter's start is no part of a job.
            done, _ = await asyncio.wait(
                {reply, self._channel.ended}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:  # its first frame would be taken for the reply to a job, and each reply for the next one's
                await self._end()
                raise TimeoutError(f"it did not start within {_START_S:g} s")
        return self._channel

    async def _carry_out(self, job: RenderJob, num_tries: int = 1) -> RenderAnswer:
        channel = await self._started()
        reply = self._reply = asyncio.get_running_loop().create_future()
        first = channel.signs()  # before the job, which may take its memory at once
        channel.send_frame(framed(job.part))
        trouble = await self._wait(job, channel, reply, first)
        if not trouble:
            return RenderAnswer(job.number, reply.result() or b"")
        is_killed = channel.returncode is not None and is_from_outside(channel.returncode)
        await self._end()
        if is_killed and num_tries < _MAX_TRIES:
            return await self._carry_out(job, num_tries + 1)
        logger.warning("%s: the process of the chat template was ended: a job took %s", self._name, trouble)
        return RenderAnswer(job.number, trouble=trouble)

    async def _wait(
        self, job: RenderJob, channel: Channel, reply: asyncio.Future[bytes | None], first: Signs | None
    ) -> str:
        """Wait for the reply to a job and return ""; if none will come or a limit is reached, what the job took.

        `first`: the resource use before the job.
        """
        loop = asyncio.get_running_loop()
        cpu_s = min(job.cpu_s, _MAX_CPU_S) if job.cpu_s > 0 else 0.0  # NaN compares false
        owed = Owed("more than", job.number, round(cpu_s, 2))
        watchdog, last_s = Watchdog(_LOOK_S), loop.time()
        watchdog.tick(0.0, first, ())
        events: set[asyncio.Future[Any]] = {reply, channel.ended}
        while True:
            await asyncio.wait(events, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if reply.done() and reply.result() is not None:
                return ""
            if reply.done() or channel.ended.done():
                return "too much memory, or its process was ended"
            signs, now_s = channel.signs(), loop.time()
            if hang := watchdog.tick(now_s - last_s, signs, [owed]):
                return hang.why if hang.is_idle else f"{hang.why} of CPU time"
            if first and signs and signs.rss_bytes > first.rss_bytes + MAX_RENDERER_BYTES:
                return f"more than {MAX_RENDERER_BYTES >> 20} MiB of memory"
            last_s = now_s

    async def _end(self) -> None:
        if self._channel is not None:
            await self._channel.end(_END_S)
            self._channel = None

    def _on_reply(self, body: bytes) -> None:
        if self._reply is None or self._reply.done():
            raise ProtocolError("an answer without a job")
        self._reply.set_result(body)

    def _on_violation(self, _what: str) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)
