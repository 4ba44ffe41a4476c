"""The probe of the forms of attention on llama.cpp (CPU only): it measures how long a model's first layers take."""

from __future__ import annotations

import sys
import time
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import PROMPT_TOKENS, Attention, Sample
from edgeagent.engine.llama.bindings import lib, node_name
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice

_LAYER_OUTPUT = b"l_out-"  # names the output of a layer in most of llama.cpp's graphs, but not in all
# The deadline is checked after so many nodes without a layer's output. Most layers have fewer.
_NODES_BETWEEN_LOOKS = 256
_SPARE_CELLS = 256  # llama.cpp rounds, and batches may be padded


def num_probe_cells(depth: int) -> int:
    """Return the number of cells that a probe with a text of `depth` tokens needs."""
    return depth + PROMPT_TOKENS + _SPARE_CELLS


class LlamaProbe:
    """An attention.Probe. It computes only the first layers, and no logits.

    The cells of the text are marked as used without computing them, since the cost of attention does not depend on
    their content.
    """

    def __init__(self, model: Model, config: EngineConfig, attention: Attention, depth: int) -> None:
        """Make the context, with a text of `depth` tokens. Raise ModelLoadFailed if llama.cpp cannot make it."""
        self._depth = depth
        self._num_layers = 0  # to compute; 0: none at all
        self._deadline_s = 0.0
        self._is_late = self._is_cut = False
        self._num_nodes = 0
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._runner = _ProbeRunner(model, config, attention, num_probe_cells(depth), self._callback)

    def measure(self, num_tokens: int, num_layers: int, deadline_s: float) -> Sample | None:
        """See attention.Probe. Also return None if the nodes of llama.cpp's graph do not show where a layer ends.

        With one thread, its CPU time is measured, which other programs do not disturb.
        """
        runner, self._deadline_s = self._runner, deadline_s
        if runner.length(0) != self._depth and not runner.trim(0, self._depth):
            self._fill()  # a recurrent state cannot be cut
        part = Slice(0, self._depth, [0] * min(num_tokens, runner.max_batch), 0)
        self._num_layers, self._is_late, self._is_cut = num_layers, False, False
        started_s, used_s = time.monotonic(), time.process_time()
        runner.decode([part])
        took_s, used_s = time.monotonic() - started_s, time.process_time() - used_s
        if self._is_late or not (self._is_cut or num_layers >= runner.model.num_layers):
            return None
        if runner.num_threads == 1 and sys.platform == "linux":  # elsewhere, CPU time has coarse ticks
            return Sample(used_s)
        return Sample(took_s, used_s / (took_s * runner.num_threads))

    def close(self) -> None:
        """Free the context."""
        self._runner.close()

    def _fill(self) -> None:
        self._num_layers = 0
        self._runner.clear(0)
        for start in range(0, self._depth, self._runner.max_batch):
            length = min(self._runner.max_batch, self._depth - start)
            self._runner.decode([Slice(0, start, [0] * length, 0)])

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
        super().__init__(model, config, num_cells=num_cells, attention=attention)

    def _context_params(self, config: EngineConfig, num_cells: int | None) -> Any:
        params = super()._context_params(config, num_cells)
        params.cb_eval = self._on_node
        return params
