"""The state of one worker process: what it has reported since its start, what it owes, and why it ended."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from edgeagent.errors import EdgeAgentError
from edgeagent.types import ModelInfo, WorkerStatus
from edgeagent.worker.exit_cause import is_from_outside, one_line, read_notes, read_unwritten
from edgeagent.worker.parent.supervision import refusals
from edgeagent.worker.parent.supervision.channel import Channel
from edgeagent.worker.parent.supervision.model_requests import EndKind
from edgeagent.worker.parent.supervision.renderer import RendererProcess
from edgeagent.worker.parent.supervision.watchdog import Hang, Owed, Signs, SupervisionLimits, Watchdog
from edgeagent.worker.protocol import (
    FULL_POWER,
    DiskShare,
    LoadProgress,
    Ping,
    Pong,
    Power,
    ProtocolError,
    Ready,
    StepResult,
)


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How and why a worker ended.

    - `ready_for_s`: how long the worker had been ready; None if it never was.
    - `error` is set if the model cannot be loaded.
    - `is_short_of_memory`: the load ran out of memory, and the next one may use less.
    - `omitted_part`: what the next load leaves out, because its trial ended the process or hung; "" for nothing. See
      `LoadProgress.part`.
    - `has_culprit`: one request caused the end, and it fails. The model is not at fault.
    """

    cause: str
    kind: EndKind = EndKind.CRASHED
    ready_for_s: float | None = None
    error: EdgeAgentError | None = None
    is_short_of_memory: bool = False
    omitted_part: str = ""
    has_culprit: bool = False


class RestartPolicy:
    """Counts the ends of a model's workers in a row, and decides what follows each.

    There are two counters. The first one has the ends that are the model's fault: crashes, hangs, and kills during a
    load, which may need more memory than the machine has. The second one has the ends that are not: kills of a ready
    worker from outside, and ends by a known request.

    1. A worker that was ready for a whole crash window makes up for earlier ends. But a worker that hung before it
       finished a step does not, because noticing a hang can take longer than the window.
    2. When a counter reaches its limit (`max_crashes`, `max_kills`), the model is quarantined. After a quarantine, one
       more such end is enough.
    3. The first end of a ready worker is followed by a restart at once, others by one after 0.5, 1, 2 … 30 s.
    """

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._num_crashes = self._num_kills = 0

    def on_end(self, end: WorkerEnd, *, has_worked: bool) -> float | None:
        """Return after how many seconds to start a new worker; None: the model is quarantined.

        `has_worked`: the worker had finished a step.
        """
        limits = self._limits
        was_ready = end.ready_for_s is not None
        hung_at_once = end.kind is EndKind.HUNG and not has_worked
        if (end.ready_for_s or 0.0) >= limits.crash_window_s and not hung_at_once:  # 1
            self._num_crashes = self._num_kills = 0
        is_excused = end.has_culprit or (end.kind is EndKind.KILLED and was_ready)
        self._num_kills += is_excused
        self._num_crashes += not is_excused
        num, most = (self._num_kills, limits.max_kills) if is_excused else (self._num_crashes, limits.max_crashes)
        if num >= most:  # 2
            return None
        num_delayed = num - 1 if was_ready else num  # 3
        if num_delayed == 0:
            return 0.0
        return min(limits.first_backoff_s * 2.0 ** (num_delayed - 1), limits.max_backoff_s)


# The least seconds from one log entry to the next: for the same problem, and for a different one.
_SAME_EVERY_S, _OTHER_EVERY_S = 3600.0, 60.0


class TroubleLog:
    """Logs a worker's problems with its disk cache, since the worker itself cannot write to the log."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._latest = ""
        self._told_at_s = float("-inf")

    def note(self, status: WorkerStatus, now_s: float) -> None:
        """Log the disk cache's problem, if any: the same one at most once an hour, a new one at most once a minute."""
        if status.disk_cache is None or status.disk_cache.trouble is None:
            return
        trouble = one_line(status.disk_cache.trouble)
        kind = re.sub(r"[\d.,]+", "", trouble)  # ignore the number of free bytes, which always changes
        if now_s - self._told_at_s >= (_SAME_EVERY_S if kind == self._latest else _OTHER_EVERY_S):
            self._latest, self._told_at_s = kind, now_s
            logger.warning("%s: disk cache: %s", self._model, trouble)

    def note_end(self, stderr: str) -> None:
        """Log how many bytes a stopped worker did not write, if it reported them."""
        if num_bytes := read_unwritten(stderr):
            logger.warning(
                "%s: %.1f MiB of prompts were not written to disk before the worker had to stop; a longer "
                "server.drain_s gives it more time",
                self._model,
                num_bytes / 2**20,
            )


# A step may take this many times as long as the worker expects.
_HANG_FACTOR = 20.0
# The limit of the expected step time that a worker reports. A hostile worker may report any value.
_MAX_EXPECTED_S = 60.0
# An idle worker is pinged less often, once its latest status has come: a ping a second takes 0.06 % of a core.
_NUM_IDLE, _IDLE_INTERVALS = 3, 4
# Memory growth that counts as progress when loading from a slow disk, in bytes.
_LOADED_BYTES = 16 << 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What a ready worker must still do.

    - `is_busy`: it must compute steps or embeddings.
    - `cancelled_at_s`: when the oldest unanswered cancel was sent; None if there is none.
    - `asked_at_s`: when the open quick query was sent, that is, not an Embed or a Rerank; None if there is none.

    The times only identify the cancel and the query. They are not compared with the clock.
    """

    is_busy: bool = False
    cancelled_at_s: float | None = None
    asked_at_s: float | None = None


class WorkerRun:
    """The state of one worker process, from before its start to its end."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._watchdog = Watchdog(limits.ping_interval_s)
        self.requested_end: asyncio.Future[WorkerEnd] = asyncio.Future()
        """Done when the process must be ended; the result is the reason."""
        self.renderer: RendererProcess | None = None
        self.info: ModelInfo | None = None
        self.ready_at_s: float | None = None
        self.progress = 0.0
        """The loaded fraction of the model, 0 to 1."""
        self.tried_part = ""
        """A description of the part of the model that is being tried."""
        self.status: WorkerStatus | None = None
        """The status in the latest pong; None before the first one."""
        self.has_worked = False
        """Whether a step has ended."""
        self.has_seen_prompts = False
        """Whether a request or a query was sent to the process. If so, the process's stderr may quote it."""
        self._nonce = 0
        self._is_pong_due = False
        self._num_pongs = self._num_signs = 0
        self._rss_bytes = 0

    async def watch(self, channel: Channel, tick: Callable[[float], bool], clock: Callable[[], float]) -> None:
        """Wait until the process ends or must be ended. Regularly call `tick` with the seconds since its last call.

        `tick` returns whether the worker owes work. After _NUM_IDLE calls without, the calls are less frequent.
        """
        events: set[asyncio.Future[Any]] = {channel.ended, self.requested_end}
        last_s, num_idle = clock(), 0
        while True:
            interval_s = self._limits.ping_interval_s * (_IDLE_INTERVALS if num_idle >= _NUM_IDLE else 1)
            done, _ = await asyncio.wait(events, timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            now_s = clock()
            num_idle = 0 if tick(now_s - last_s) else num_idle + 1
            last_s = now_s

    def on_load_progress(self, progress: LoadProgress) -> None:
        """Record how much is loaded, and which part is tried next."""
        # NaN, from a hostile worker, compares false.
        if progress.fraction > self.progress:
            self.progress = min(progress.fraction, 1.0)
        self.tried_part = progress.part

    def on_progress(self) -> None:
        """Record a sign of progress: an answer to a request, in part or whole, or a request for an idle worker."""
        self._num_pongs += 1
        self._num_signs += 1

    def on_steps(self, steps: StepResult) -> None:
        """Record a StepResult as progress. If it has tokens, a step has ended."""
        self._num_pongs += 1
        self._num_signs += 1
        self.has_worked = self.has_worked or any(item.tokens for item in steps.items)

    def on_pong(self, pong: Pong) -> None:
        """Record the answer to a ping; raise ProtocolError for an unexpected one."""
        if not self._is_pong_due or pong.nonce != self._nonce:
            raise ProtocolError(f"an unexpected pong {pong.nonce}")
        self._is_pong_due = False
        self._num_pongs += 1
        self._num_signs += pong.status.num_steps > (self.status or WorkerStatus()).num_steps
        if self.ready_at_s is not None:
            self.status = pong.status
        self.has_worked = self.has_worked or pong.status.num_steps > 0

    def ping(self, share: DiskShare | None = None, power: Power = FULL_POWER) -> Ping | None:
        """Make the next ping for the caller to send; return None while the previous ping is unanswered."""
        if self._is_pong_due:
            return None
        self._nonce += 1
        self._is_pong_due = True
        return Ping(self._nonce, share, power)

    def tick(self, elapsed_s: float, signs: Signs | None, pending: PendingWork | None) -> Hang | None:
        """Count the time since the last tick; return the hang if the worker counts as hung.

        `signs` come from the operating system. `pending` is the worker's open work; None while it is loading.
        """
        if pending is not None:
            return self._watchdog.tick(elapsed_s, signs, self._owed(pending))
        # Either the loaded fraction or the memory must grow. A slow disk fills the memory after the last fraction.
        if signs is not None and signs.rss_bytes >= self._rss_bytes + _LOADED_BYTES:
            self._rss_bytes = signs.rss_bytes
        key = (self.progress, self._rss_bytes)
        load = Owed("hung while loading: no progress for", key, self._limits.load_timeout_s)
        hang = self._watchdog.tick(elapsed_s, signs, [load])
        return hang and Hang(f"{hang.why} at {self.progress:.0%}")

    def _owed(self, pending: PendingWork) -> Iterator[Owed]:
        status, limit_s = self.status or WorkerStatus(), self._limits.hang_timeout_s
        yield Owed("hung: no sign of life for", self._num_pongs, self._limits.pong_timeout_s)
        is_preparing = status.preparing_since_s > 0
        if is_preparing:
            # The start time, by the worker's clock, identifies the prompt.
            words = "hung: preparing one prompt took longer than"
            yield Owed(words, status.preparing_since_s, limit_s, status.preparing_id)
        step_limit_s = self._step_limit_s(status)
        # Without other streams, no step runs while a prompt is prepared.
        if pending.is_busy and not (is_preparing and status.step_started_at_s == 0):
            yield Owed("hung: one step took longer than", self._num_signs, step_limit_s)
        if pending.cancelled_at_s is not None:
            yield Owed("hung: a cancelled request did not end within", pending.cancelled_at_s, step_limit_s)
        if pending.asked_at_s is not None:
            yield Owed("hung: a question about text took longer than", pending.asked_at_s, limit_s)

    def _step_limit_s(self, status: WorkerStatus) -> float:
        """Return how many seconds a step may take: the configured limit, or 20 times what the worker expects."""
        told_s = status.step_expected_s
        expected_s = min(told_s, _MAX_EXPECTED_S) if told_s > 0 else 0.0  # NaN compares false
        return max(self._limits.hang_timeout_s, _HANG_FACTOR * expected_s)

    def hung_end(self, hang: Hang, omit_part: Callable[[str, str], bool]) -> WorkerEnd:
        """Return the WorkerEnd of a process that hangs. See Supervisor for `omit_part`."""
        is_trial = self.ready_at_s is None and bool(self.tried_part)
        omitted_part = self.tried_part if is_trial and omit_part(self.tried_part, hang.why) else ""
        return WorkerEnd(hang.why, EndKind.HUNG, omitted_part=omitted_part)

    def unrequested_end(self, channel: Channel, omit_part: Callable[[str, str], bool]) -> WorkerEnd:
        """Return the WorkerEnd of a process that ended although it was not asked to. See Supervisor for `omit_part`."""
        assert channel.returncode is not None
        cause = channel.describe_end(has_seen_prompts=self.has_seen_prompts)
        end = WorkerEnd(cause, EndKind.KILLED if is_from_outside(channel.returncode) else EndKind.CRASHED)
        end = replace(end, is_short_of_memory=self.ready_at_s is None and channel.was_short_of_memory)
        is_damaged = end.kind is EndKind.CRASHED and not end.is_short_of_memory
        if self.ready_at_s is None and self.tried_part and is_damaged:
            error = refusals.failed_part(self.tried_part, cause)
            omitted_part = self.tried_part if omit_part(self.tried_part, cause) else ""
            end = replace(end, error=error, omitted_part=omitted_part)
        return end


def log_notes(name: str, ready: Ready) -> None:
    """Write the warnings and notes of a worker's Ready to the log. `name` is the model's name."""
    for level, lines in ((logging.WARNING, ready.warnings), (logging.INFO, ready.notes)):
        for line in read_notes(lines):
            logger.log(level, "%s: %s", name, line)
