"""The state of one worker process: what it has reported since its start, and why it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edgeagent.types import ModelInfo
from edgeagent.worker.exit_cause import is_from_outside, read_notes
from edgeagent.worker.parent.supervision import refusals
from edgeagent.worker.parent.supervision.channel import Channel
from edgeagent.worker.parent.supervision.live_requests import EndKind
from edgeagent.worker.parent.supervision.restarts import WorkerEnd
from edgeagent.worker.parent.supervision.vitals import Vitals
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.protocol import Ready

logger = logging.getLogger(__name__)


class WorkerRun:
    """The state of one worker process, from before its start to its end."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self.requested_end: asyncio.Future[WorkerEnd] = asyncio.Future()
        """Done when the process must be ended; the result is the reason."""
        self.vitals = Vitals(limits)
        self.info: ModelInfo | None = None
        self.ready_at_s: float | None = None
        self.has_seen_prompts = False
        """Whether a request or a query was sent to the process. If so, the process's stderr may quote it."""

    async def watch(self, channel: Channel, tick: Callable[[float], None], clock: Callable[[], float]) -> None:
        """Wait until the process ends or must be ended. Regularly call `tick` with the seconds since its last call."""
        events: set[asyncio.Future[Any]] = {channel.ended, self.requested_end}
        last_s = clock()
        while True:
            done, _ = await asyncio.wait(
                events, timeout=self._limits.ping_interval_s, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return
            now_s = clock()
            tick(now_s - last_s)
            last_s = now_s

    def hung_end(self, why: str, omit_part: Callable[[str, str], bool]) -> WorkerEnd:
        """Return the WorkerEnd of a process that hangs, as described in `why`. See Supervisor for `omit_part`."""
        is_trial = self.ready_at_s is None and bool(self.vitals.tried_part)
        omitted_part = self.vitals.tried_part if is_trial and omit_part(self.vitals.tried_part, why) else ""
        return WorkerEnd(why, EndKind.HUNG, omitted_part=omitted_part)

    def unrequested_end(self, channel: Channel, omit_part: Callable[[str, str], bool]) -> WorkerEnd:
        """Return the WorkerEnd of a process that ended although it was not asked to. See Supervisor for `omit_part`."""
        assert channel.returncode is not None
        cause = channel.describe_end(has_seen_prompts=self.has_seen_prompts)
        end = WorkerEnd(cause, EndKind.KILLED if is_from_outside(channel.returncode) else EndKind.CRASHED)
        end = replace(end, is_short_of_memory=self.ready_at_s is None and channel.was_short_of_memory)
        is_damaged = end.kind is EndKind.CRASHED and not end.is_short_of_memory
        if self.ready_at_s is None and self.vitals.tried_part and is_damaged:
            error = refusals.failed_part(self.vitals.tried_part, cause)
            omitted_part = self.vitals.tried_part if omit_part(self.vitals.tried_part, cause) else ""
            end = replace(end, error=error, omitted_part=omitted_part)
        return end


def log_notes(name: str, ready: Ready) -> None:
    """Write the warnings and notes of a worker's Ready to the log. `name` is the model's name."""
    for level, lines in ((logging.WARNING, ready.warnings), (logging.INFO, ready.notes)):
        for line in read_notes(lines):
            logger.log(level, "%s: %s", name, line)
