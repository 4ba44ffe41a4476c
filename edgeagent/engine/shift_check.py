"""Measures how far answers behind moved cells are from exact ones (see `--cache-shift`).

While nothing else is to do, a prompt whose cells were moved is computed as a whole. The distance is the
Kullback-Leibler divergence, in nats, of the probabilities of the first output token: of the exact ones from those
behind moved cells. It says how much the moved cells change the next token, not whether the answer is right. The exact
prompt stays cached, and later prompts can use its cells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.runner import Logits
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.types import ShiftStatus, Tier

CHECK_ID = "the check of moved cells"
"""The id of the sequence that computes a prompt as a whole. No request has it."""
# The first prompts are measured, and then one of 20: so it costs at most a twentieth of the time that moved cells save.
_NUM_FIRST, _ONE_OF = 3, 20
_NUM_KEPT = 200  # distances
_NUM_TRIES = 5  # an error of llama.cpp must not repeat forever
_GREEDY = ResolvedSampling(temperature=0.0)


class ShiftCheck:
    """The measurements of one engine, and the prompt that is to be computed as a whole."""

    def __init__(self) -> None:
        self._num_prompts = self._num_tokens = self._num_same = self._num_measured = 0
        self._distances: tuple[float, ...] = ()
        self._pending: tuple[SequenceSpec, Logits] | None = None
        self._num_tries = 0  # of the pending prompt

    @property
    def is_due(self) -> bool:
        """Whether a prompt waits to be computed as a whole."""
        return self._pending is not None and self._num_tries < _NUM_TRIES

    def status(self) -> ShiftStatus:
        """Return what was moved, and how far the answers were from exact ones."""
        distances = sorted(self._distances)
        return ShiftStatus(
            num_prompts=self._num_prompts,
            num_tokens=self._num_tokens,
            num_measured=self._num_measured,
            num_same=self._num_same,
            median_distance=distances[len(distances) // 2] if distances else 0.0,
            most_distance=distances[-1] if distances else 0.0,
        )

    def spec(self) -> SequenceSpec:
        """Return the sequence that computes the pending prompt as a whole. Call it only if `is_due`.

        A request cancels the sequence, and its computed part stays cached. It is tried _NUM_TRIES times.
        """
        assert self._pending is not None
        spec, logits = self._pending
        self._num_tries += 1
        return replace(
            spec,
            id=CHECK_ID,
            sampler=Sampler(_GREEDY, len(logits)),
            max_tokens=1,
            tier=Tier.BATCH,
            is_exact=True,
            reports_progress=False,
            draft_tokens=0,
        )

    def note(self, sequence: Sequence, logits: Logits) -> None:
        """Note the logits of the first output token of a sequence."""
        if sequence.id == CHECK_ID:
            self._measure(logits)
        elif sequence.num_shifted:
            self._num_prompts += 1
            self._num_tokens += sequence.num_shifted
            if self._num_prompts <= _NUM_FIRST or self._num_prompts % _ONE_OF == 0:
                self._pending, self._num_tries = (sequence.spec, logits.copy()), 0

    def forget(self, partition: str | None) -> None:
        """Forget the pending prompt if it is of this partition (None: of any)."""
        if self._pending is not None and partition in (None, self._pending[0].partition):
            self._pending = None

    def _measure(self, exact: Logits) -> None:
        if self._pending is None:
            return
        (_, shifted), self._pending = self._pending, None
        logs = _log_probabilities(exact)
        is_possible = np.isfinite(logs)  # some models exclude tokens
        differences = (logs - _log_probabilities(shifted))[is_possible]
        distance = max(0.0, float(np.exp(logs[is_possible]) @ differences))
        self._distances = (*self._distances[1 - _NUM_KEPT :], distance)  # another thread may read the old ones
        self._num_measured += 1
        self._num_same += int(exact.argmax() == shifted.argmax())


def _log_probabilities(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
