"""A loop that calls llama.cpp alone: a prompt in one batch, then token by token, with llama.cpp's own defaults."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.model import Model

# Batches of other sizes use other kernels: measured with flash attention, logits differ by up to 0.38. So a token that
# is this near to the likeliest one is as good.
NEAR_TIE = 0.4


class PlainLoop:
    """One llama.cpp context, and nothing around it."""

    def __init__(self, model: Model) -> None:
        params = lib.llama_context_default_params()
        # One thread never waits for another, which takes long beside other programs.
        params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
        self._context = lib.llama_init_from_model(model.handle, params)
        self._num_vocab = model.num_tokens

    def start(self, tokens: list[int]) -> NDArray[np.float32]:
        """Forget everything, compute a prompt, and return the logits after it."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        return self.go_on(tokens)

    def go_on(self, tokens: list[int]) -> NDArray[np.float32]:
        """Compute the next tokens, and return the logits after them."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))) == 0
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, -1), (self._num_vocab,))

    def close(self) -> None:
        lib.llama_free(self._context)
