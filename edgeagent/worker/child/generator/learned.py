"""Keeps what an engine learned, for the worker of the next load: step times and how often drafts were accepted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.engine import Engine
from edgeagent.types.choices import LearnedCosts, SavedTuning, StepTime
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.protocol import SaveTuning

_EVERY_S = 60.0


class WarmStart:
    """Initialises a new engine with step times and draft acceptance rates from earlier processes.

    A draft model's step times, and the acceptance rates, are used only if the draft model's file is still the same.
    """

    def __init__(self, conditions: dict[str, str], saved_tuning: bytes) -> None:
        """`conditions` are those of this load; what was learned under others is not used."""
        self._conditions = conditions
        former = _read(saved_tuning)
        self._earlier = former.learned if former is not None and former.conditions == conditions else LearnedCosts()
        self._draft = ""

    def init_costs(self, costs: CostModel) -> None:
        """Initialise the main model's cost model with earlier step times."""
        costs.learn(_steps(self._earlier.times))

    def init_draft_costs(self, costs: CostModel, path: Path) -> None:
        """Initialise a draft model's cost model with earlier step times, if they were measured with the same file."""
        status = path.stat()
        self._draft = f"{path} {status.st_size} {status.st_mtime_ns}"
        if self._earlier.draft == self._draft:
            costs.learn(_steps(self._earlier.draft_times))

    def forget_draft(self) -> None:
        """Forget which draft file was loaded. Call this if the draft model cannot be used."""
        self._draft = ""

    def init_acceptance(self, engine: Engine) -> None:
        """Initialise an engine's acceptance rates with earlier ones, unless the draft model has changed."""
        if self._earlier.draft == self._draft:
            engine.proposals.experience.learn(self._earlier.records)

    def saved_tuning(self, engine: Engine) -> bytes:
        """Return what the engine has learned until now, encoded for `Load.saved_tuning`."""
        model = engine.proposals.draft_model
        learned = LearnedCosts(
            times=_times(engine.cost_model),
            draft=self._draft,
            draft_times=() if model is None else _times(model.costs),
            records=engine.proposals.experience.records(),
        )
        return msgspec.json.encode(SavedTuning(self._conditions, learned))


class TuningSender:
    """Sends the daemon what an engine has learned: at most once a minute, and at the end.

    Nothing is sent while a request is live.
    """

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[], bytes],
        frames: Frames,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`encode` returns the `Load.saved_tuning` of the next load."""
        self._engine, self._encode, self._frames, self._clock = engine, encode, frames, clock
        self._looked_at_s, self._num_steps = clock(), 0

    def send_if_due(self, *, is_last: bool = False) -> None:
        """Send what was learned if no request is live and the engine has made steps since it was last sent.

        Without `is_last`, do nothing if the previous check was less than a minute ago.
        """
        if self._engine.num_live or (self._clock() - self._looked_at_s < _EVERY_S and not is_last):
            return
        self._looked_at_s, num_steps = self._clock(), self._engine.status().num_steps
        if num_steps > self._num_steps:
            self._num_steps = num_steps
            self._frames.put(SaveTuning(self._encode()))


def _read(content: bytes) -> SavedTuning | None:
    """Return the tuning in `content`; None if it is empty or not valid.

    The daemon stores it, since the sandbox does not let the worker write files. Another process may have changed it.
    """
    try:
        return msgspec.json.decode(content, type=SavedTuning) if content else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _times(costs: CostModel) -> tuple[StepTime, ...]:
    return tuple(StepTime(*shape, seconds) for shape, seconds in costs.learned())


def _steps(times: tuple[StepTime, ...]) -> list[tuple[StepShape, float]]:
    return [(StepShape(round(each.num_tokens), round(each.num_cells), each.num_pairs), each.seconds) for each in times]
