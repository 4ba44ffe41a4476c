"""The calibration's probe on llama.cpp (CPU only): it measures how long a model's first layers take."""

from __future__ import annotations

import time
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import lib, node_name
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.calibration import Sample
from edgeagent.engine.tuning.padding import WeightPadding
from edgeagent.engine.tuning.workload import BATCH_TOKENS, MAX_STREAMS, Workload, tokens_of

_LAYER_OUTPUT = b"l_out-"  # names the output of a layer in most of llama.cpp's graphs, but not in all
# The deadline is checked after so many nodes without a layer's output. Most layers have fewer.
_NODES_BETWEEN_LOOKS = 256
_SPARE_CELLS = 256  # llama.cpp rounds, and batches may be padded


def num_probe_cells(depth: int) -> int:
    """Return the number of cells that a probe with `depth` used cells needs."""
    return depth + BATCH_TOKENS + _SPARE_CELLS


class LlamaProbe:
    """A context that measures one candidate setting. It computes only the first layers, and no logits."""

    def __init__(self, model: Model, config: EngineConfig, attention: Attention, depth: int) -> None:
        """Make the context. It has room for `depth` used cells, and for the measured work after them.

        Raise ModelLoadFailed if llama.cpp cannot make it.
        """
        self._num_streams = min(config.num_parallel, MAX_STREAMS)
        self._depth = depth
        self._state = ""
        self._num_layers = 0  # to compute; 0: none at all
        self._deadline_s = 0.0
        self._is_late = self._is_cut = False
        self._num_nodes = 0
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._runner = _ProbeRunner(model, config, attention, num_probe_cells(depth), self._callback)

    def measure(self, work: Workload, num_layers: int, deadline_s: float) -> Sample | None:
        """See calibration.Probe. Also return None if the nodes of llama.cpp's graph do not show where a layer ends."""
        kind, state = work.split(" ")
        self._deadline_s = deadline_s
        self._arrange(state)
        slices = self._slices(work, kind)
        self._num_layers, self._is_late, self._is_cut = num_layers, False, False
        started_s, used_s = time.monotonic(), time.process_time()
        self._runner.decode(slices)
        took_s, used_s = time.monotonic() - started_s, time.process_time() - used_s
        for part in slices:
            # A recurrent state cannot be cut, so the next work arranges the cells again.
            if not self._runner.trim(part.seq_id, part.start):
                self._state = ""
        is_known = self._is_cut or num_layers >= self._runner.model.num_layers
        return None if self._is_late or not is_known else Sample(took_s, used_s / (took_s * self._runner.num_threads))

    def close(self) -> None:
        """Free the context."""
        self._runner.close()

    def _slices(self, work: Workload, kind: str) -> list[Slice]:
        if kind == "streams":
            return [Slice(1 + at, self._runner.length(1 + at), [at], 0) for at in range(self._num_streams)]
        return [Slice(0, self._runner.length(0), [0] * min(tokens_of(work), self._runner.max_batch), 0)]

    def _arrange(self, state: str) -> None:
        """Mark cells as used, without computing any layer.

        State "behind": cells of sequence 0. State "alone": none. Any other state: cells of several other sequences.
        """
        if state == self._state:
            return
        self._state = state
        self._num_layers = 0
        others = range(1, 1 + self._num_streams)
        for seq_id in (0, *others):
            self._runner.clear(seq_id)
        if state == "behind":
            self._use(0, self._depth)
        elif state != "alone":
            for seq_id in others:
                self._use(seq_id, self._depth // self._num_streams)

    def _use(self, seq_id: int, num_cells: int) -> None:
        for start in range(0, num_cells, self._runner.max_batch):
            length = min(self._runner.max_batch, num_cells - start)
            self._runner.decode([Slice(seq_id, start, [0] * length, 0)])

    def _on_node(self, node: int, is_asked: bool, _: Any) -> bool:
        """Answer llama.cpp's callback for a node of the graph.

        If `is_asked`, the node is not computed yet: return whether to call again after it was computed. In that second
        call, return whether to compute the remaining nodes.
        """
        if self._num_layers == 0:
            return is_asked
        self._is_late = self._is_late or time.monotonic() > self._deadline_s
        name = node_name(node)
        is_output = name.startswith(_LAYER_OUTPUT)
        if is_asked:
            self._num_nodes = 0 if is_output else self._num_nodes + 1
            return self._is_late or is_output or self._num_nodes % _NODES_BETWEEN_LOOKS == _NODES_BETWEEN_LOOKS - 1
        layer = name.removeprefix(_LAYER_OUTPUT) if is_output else b""
        self._is_cut = layer.isdigit() and int(layer) + 1 >= self._num_layers
        return not self._is_late and not self._is_cut


class _ProbeRunner(LlamaRunner):
    """A runner whose computation can be stopped by a callback."""

    def __init__(self, model: Model, config: EngineConfig, attention: Attention, num_cells: int, on_node: Any) -> None:
        self._on_node = on_node
        # What padding gains is measured too.
        super().__init__(model, config, num_cells=num_cells, attention=attention, weight_padding=WeightPadding())

    def _context_params(self, config: EngineConfig, num_cells: int | None) -> Any:
        params = super()._context_params(config, num_cells)
        params.cb_eval = self._on_node
        return params
