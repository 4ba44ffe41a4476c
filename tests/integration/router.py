"""The router of a mixture of experts, watched in a plain loop: where experts tie, and what the other expert gives.

A tie is decided by the last bit, and both decisions are correct. So the loop can compute a prompt again and decide a
tie the other way. It knows a tie by the router's own logits: two correct runs differ by more than the winner's lead.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import _ggml, lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model

Place = tuple[int, int]
"""A token's position, and a layer."""
_LOGITS = b"ffn_moe_logits-"


class Tie(NamedTuple):
    """Two experts that are equally good for a token, of which a run chose one."""

    position: int
    layer: int
    chosen: int
    other: int


Swaps = frozenset[Tie]
"""Ties that a run decides the other way."""


class Experts:
    """The experts' logits for each token in each layer of a run; empty if the model has no experts."""

    def __init__(self, num_used: int) -> None:
        """`num_used`: how many experts compute a token."""
        self._num_used = num_used
        self._logits: dict[Place, NDArray[np.float32]] = {}

    def record(self, place: Place, logits: NDArray[np.float32]) -> None:
        """Note the experts' logits of a token in a layer."""
        self._logits[place] = logits

    def first_difference(self, other: Experts) -> int:
        """Return the first position at which two runs chose other experts; sys.maxsize if they nowhere do."""
        return min(
            (place[0] for place in self._logits if self._chosen(place) != other._chosen(place)), default=sys.maxsize
        )

    def difference(self, other: Experts) -> float:
        """Return the largest difference between two runs' logits, up to where they chose other experts."""
        end = self.first_difference(other)
        pairs = ((mine, other._logits[place]) for place, mine in self._logits.items() if place[0] < end)
        return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)

    def ties(self, most: float, end: int) -> list[Tie]:
        """Return the pairs whose chosen expert leads by at most `most`, before position `end`; the latest first."""
        found = []
        for (position, layer), logits in self._logits.items():
            chosen = self._chosen((position, layer))
            pairs = itertools.product(chosen, set(range(len(logits))) - chosen) if position < end else ()
            found += [Tie(position, layer, *pair) for pair in pairs if logits[pair[0]] - logits[pair[1]] <= most]
        return sorted(found, reverse=True)

    def _chosen(self, place: Place) -> frozenset[int]:
        return frozenset(np.argsort(self._logits[place])[-self._num_used :].tolist())


class Router:
    """Records the experts' logits in the decodes of a runner, and decides ties the other way on demand."""

    def __init__(self, model: Model) -> None:
        self._num_used = int(model.metadata(f"{model.metadata('general.architecture')}.expert_used_count") or 0)
        self.experts = Experts(self._num_used)
        self._swaps: Swaps = frozenset()
        self._positions = range(0)
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)

    def begin(self, swaps: Swaps) -> None:
        """Begin a run in which the logits of these pairs of experts are swapped."""
        self.experts, self._swaps = Experts(self._num_used), swaps

    def expect(self, positions: range) -> None:
        """State the positions of the next batch's last tokens. The batch may begin with other tokens."""
        self._positions = positions

    def watch(self, params: Any) -> None:
        """Watch the context that is made with these parameters. Without experts, nothing is watched."""
        if self._num_used:
            params.cb_eval = self._callback

    def _on_node(self, node: int, is_asked: bool, _: object) -> bool:
        name = bytes(_tensors().ggml_get_name(node))
        if name.startswith(_LOGITS) and not is_asked:
            self._record(node, int(name.removeprefix(_LOGITS)))
        return not is_asked or name.startswith(_LOGITS)

    def _record(self, node: int, layer: int) -> None:
        base = _tensors()
        num_bytes, num_rows = base.ggml_nbytes(node), base.ggml_nrows(node)
        if num_rows == 0:
            return  # of the last layer, in a batch without logits
        rows = np.zeros((num_rows, num_bytes // 4 // num_rows), np.float32)
        base.ggml_backend_tensor_get(node, rows.ctypes.data, 0, num_bytes)
        # The last layer computes only the tokens that have logits, which are the last ones of a batch.
        positions = self._positions[-num_rows:]
        for row, position in zip(rows[-len(positions) :], positions, strict=True):
            for tie in self._swaps:
                if (tie.position, tie.layer) == (position, layer):
                    row[[tie.chosen, tie.other]] = row[[tie.other, tie.chosen]]
            self.experts.record((position, layer), row.copy())
        base.ggml_backend_tensor_set(node, rows.ctypes.data, 0, num_bytes)


class WatchedRunner(LlamaRunner):
    """A runner whose router is watched."""

    def __init__(self, model: Model, config: EngineConfig, router: Router) -> None:
        self._router = router
        super().__init__(model, config)

    def _context_params(self, config: EngineConfig, num_cells: int | None) -> Any:
        params = super()._context_params(config, num_cells)
        self._router.watch(params)
        return params


@cache
def _tensors() -> Any:
    base = _ggml("ggml-base")
    base.ggml_nbytes.restype, base.ggml_nbytes.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    base.ggml_nrows.restype, base.ggml_nrows.argtypes = ctypes.c_int64, [ctypes.c_void_p]
    base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    for function in (base.ggml_backend_tensor_get, base.ggml_backend_tensor_set):
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return base
