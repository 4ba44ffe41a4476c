"""Computes embeddings in a separate context, a chunk at a time, so that other requests can run in between.

This module knows token ids, not text. The context is made at the first text, and replaced by a larger one for a text
that does not fit.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import last_error, lib
from edgeagent.engine.llama.context_params import make_params, suits_text
from edgeagent.engine.llama.model import Model
from edgeagent.errors import BackendUnavailable, InternalError

Rows = NDArray[np.float32]

# Below 64 tokens the CPU's arithmetic is the same for any batch size, so a vector does not depend on its chunks.
MAX_CHUNK = 63
_MIN_CHUNK = 8
_FIRST_CHUNK = 16
_SMOOTHING = 0.3
_MIN_CELLS = 512


class Pooling(StrEnum):
    """How the vectors of a text's tokens become one vector."""

    MEAN = "mean"
    FIRST = "first"
    LAST = "last"


# llama_pooling_type: 1 mean, 2 cls, 3 last. If a file names none (or 0), the last token's vector is used, since that
# token attends to the whole text. Ollama does the same (llamarunner falls back to the last token's embedding).
# llama-server refuses to choose.
_POOLINGS = {1: Pooling.MEAN, 2: Pooling.FIRST, 3: Pooling.LAST}
_RANKING = 4


def choose_pooling(model: Model) -> Pooling | None:
    """Return how a model's token vectors are pooled; None if the model cannot embed a text in chunks.

    It cannot if it is a ranking model, if it has an encoder, or if its tokens attend to later tokens.
    """
    if model.pooling == _RANKING or not model.is_causal or model.has_encoder:
        return None
    return _POOLINGS.get(model.pooling, Pooling.LAST)


class Embedder:
    """Computes the vectors of texts, one text after another. Only the engine's thread may call it."""

    def __init__(self, model: Model, config: EngineConfig, max_tokens: int) -> None:
        """`max_tokens`: the length of the longest text, in tokens."""
        self.max_tokens = max_tokens
        self.pooling = choose_pooling(model)
        self.num_chunks = 0
        self._model = model
        self._config = config
        self._context: object | None = None
        self.num_cells = 0
        """The context's size; 0 without one. It is set before the context takes its memory; any thread may read it."""
        self._tokens: Sequence[int] = ()
        self._num_done = 0
        self._sum: NDArray[np.float64] = np.zeros(0)
        self._tokens_per_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a context exists, which takes memory."""
        return self._context is not None

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a text of 1 to `max_tokens` tokens. An unfinished earlier text is dropped.

        Raise BackendUnavailable if there is not enough memory.
        """
        assert 0 < len(tokens) <= self.max_tokens
        if not suits_text(self._model, self.num_cells, len(tokens)):
            self.close()
            self._open(len(tokens))
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        self._tokens, self._num_done = tokens, 0
        self._sum = np.zeros(self._model.embedding_length)

    def advance(self, budget_s: float, num_threads: int) -> Rows | None:
        """Compute a chunk in about `budget_s` seconds. After the last chunk, return the text's vector, else None.

        The vector is `normalized`. Raise InternalError if llama.cpp fails or returns NaN or infinity.
        """
        chunk = self._tokens[self._num_done : self._num_done + self._chunk_length(budget_s)]
        is_last = self._num_done + len(chunk) == len(self._tokens)
        started_s = time.monotonic()
        lib.llama_set_n_threads(self._context, num_threads, num_threads)
        self._pool(self._decode(chunk, is_pooled=self._is_pooled(is_last=is_last)), len(chunk))
        self._note_rate(len(chunk) / max(time.monotonic() - started_s, 1e-6))
        self.num_chunks += 1
        self._num_done += len(chunk)
        return normalized(self._sum) if is_last else None

    def close(self) -> None:
        """Free the memory; the next text allocates it again."""
        if self._context is not None:
            lib.llama_free(self._context)
            self._context, self.num_cells = None, 0

    def _open(self, num_tokens: int) -> None:
        num_cells = min(max(_MIN_CELLS, 1 << (num_tokens - 1).bit_length()), max(_MIN_CELLS, self.max_tokens))
        if not suits_text(self._model, num_cells, num_tokens):
            num_cells = num_tokens
        # "auto" is llama.cpp's own choice here, not fit.attention's: with plain attention a token's vector
        # differs between chunks of one token and of many (by 0.006 on a 0.5 B model), so it would depend on the
        # machine's load.
        params = make_params(self._model, self._config, num_cells, self._config.flash_attention)
        params.n_batch = params.n_ubatch = MAX_CHUNK + 1
        params.n_seq_max = 1
        params.embeddings = True
        params.pooling_type = lib.LLAMA_POOLING_TYPE_NONE  # pooled here: llama.cpp would pool each chunk alone
        self.num_cells = num_cells
        self._context = lib.llama_init_from_model(self._model.handle, params) or None
        if self._context is None:
            self.num_cells = 0
            raise BackendUnavailable(
                f"there is no room to embed {num_tokens} tokens: {last_error() or 'llama.cpp makes no context'}",
                retry_after_s=1.0,
                served_by="local",
            )
        self.num_cells = int(lib.llama_n_ctx(self._context))

    def _chunk_length(self, budget_s: float) -> int:
        if self._tokens_per_s is None:
            return _FIRST_CHUNK
        return min(MAX_CHUNK, max(_MIN_CHUNK, int(self._tokens_per_s * budget_s)))

    def _note_rate(self, tokens_per_s: float) -> None:
        usual = self._tokens_per_s or tokens_per_s
        self._tokens_per_s = usual + _SMOOTHING * (tokens_per_s - usual)

    def _is_pooled(self, *, is_last: bool) -> bool:
        match self.pooling:
            case Pooling.FIRST:
                return self._num_done == 0
            case Pooling.LAST:
                return is_last
        return True

    def _decode(self, chunk: Sequence[int], *, is_pooled: bool) -> Rows | None:
        """Compute the next chunk. If `is_pooled`, return the vectors of its tokens, else None."""
        array = (ctypes.c_int32 * len(chunk))(*chunk)
        lib.llama_set_embeddings(self._context, is_pooled)
        status = lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(chunk)))
        if status != 0:
            self.close()
            raise InternalError(f"llama_decode failed with status {status} on an embedding's {len(chunk)} tokens")
        lib.llama_synchronize(self._context)
        if not is_pooled:
            return None
        rows = lib.llama_get_embeddings(self._context)
        if not rows:
            self.close()
            raise InternalError(f"llama.cpp computed an embedding's {len(chunk)} tokens, but has no vectors of them")
        return np.ctypeslib.as_array(rows, (len(chunk), self._model.embedding_length))

    def _pool(self, rows: Rows | None, num_tokens: int) -> None:
        if rows is None:
            return
        match self.pooling:
            case Pooling.FIRST:
                self._sum += rows[0]
            case Pooling.LAST:
                self._sum += rows[num_tokens - 1]
            case _:
                self._sum += rows.sum(axis=0, dtype=np.float64)


def normalized(vector: NDArray[np.float64]) -> Rows:
    """Return a vector scaled to Euclidean length 1; a zero vector stays zero.

    So a sum of vectors gives the same result as their mean. Raise InternalError if the vector contains NaN or infinity.
    """
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise InternalError("the model's embedding holds NaN or infinity")
    return (vector / (length or 1.0)).astype(np.float32)


def truncated(vector: Rows, dimensions: int | None) -> Rows:
    """Return a vector's first `dimensions` numbers, scaled to Euclidean length 1. None: return the vector unchanged."""
    if dimensions is None or dimensions == len(vector):
        return vector
    return normalized(vector[:dimensions].astype(np.float64))
