"""Keeps what an engine learned, for the worker of the next load: step times and how often drafts were accepted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import structs

from edgeagent.engine.attention import PROMPT_TOKENS, TURN_TOKENS
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import FLASH_TILE, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.types.choices import LearnedCosts, SavedTuning, StepTime
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.protocol import SaveTuning

_EVERY_S = 60.0


class WarmStart:
    """Initialises a new engine with step times and draft acceptance rates from earlier processes.

    A draft model's step times, and the acceptance rates, are used only if the draft model's file is still the same.
    """

    def __init__(self, tuning: SavedTuning, earlier: LearnedCosts, num_layers: int) -> None:
        """`tuning` is the one chosen for this load. `earlier` is what earlier processes learned; it may be empty."""
        self._tuning = tuning
        self._num_layers = num_layers
        self._earlier = earlier
        self._draft = ""

    def init_costs(self, costs: CostModel) -> None:
        """Initialise the main model's cost model with earlier step times. If there are none, use the measurements."""
        costs.learn(_steps(self._earlier.times) or _measured(self._tuning, self._num_layers))

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
        """Return the measurements and what the engine has learned until now, encoded for `Load.saved_tuning`."""
        model = engine.proposals.draft_model
        learned = LearnedCosts(
            times=_times(engine.cost_model),
            draft=self._draft,
            draft_times=() if model is None else _times(model.costs),
            records=engine.proposals.experience.records(),
        )
        return msgspec.json.encode(structs.replace(self._tuning, learned=learned))


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


def _times(costs: CostModel) -> tuple[StepTime, ...]:
    return tuple(StepTime(*shape, seconds) for shape, seconds in costs.learned())


def _steps(times: tuple[StepTime, ...]) -> list[tuple[StepShape, float]]:
    return [(StepShape(round(each.num_tokens), round(each.num_cells), each.num_pairs), each.seconds) for each in times]


def _measured(tuning: SavedTuning, num_layers: int) -> list[tuple[StepShape, float]]:
    """Return the measured shapes and times of the chosen form of attention, scaled to `num_layers`; [] if unmeasured.

    The prompt's chunk and the turn tell what earlier tokens cost. Plain attention multiplies each token with all used
    cells, so cells of other sequences cost as much. Real requests would show this late or never: if only one sequence
    runs, all used cells are its own. A token's time is left out, since the output matrix is a large part of it.
    """
    found = tuning.measurements
    times = None if found is None else next((each for each in found.forms if each.is_flash == tuning.is_flash), None)
    if found is None or times is None:
        return []
    scale = num_layers / found.num_layers
    steps = [
        (StepShape.alone(TURN_TOKENS, found.depth), scale * times.turn_s),
        (StepShape.alone(PROMPT_TOKENS, found.depth), scale * times.prompt_s),
    ]
    if times.tile_s is not None:
        steps.append((StepShape.alone(FLASH_TILE, found.depth), scale * times.tile_s))
    if not times.is_flash:
        steps.append((StepShape(PROMPT_TOKENS, found.depth, 0.0), scale * times.prompt_s))
    return steps
