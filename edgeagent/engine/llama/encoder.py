"""Computes the vectors or the scores of whole texts, for models that need whole texts (see `needs_whole_texts`).

Several short texts are computed in one batch, which reads each weight only once. This module knows token ids, not text.
A context is made at the first batch that needs it, and replaced by a larger one for a batch that does not fit. On a CPU
there are two contexts: flash attention needs 64 tokens to compute whole tiles, so shorter batches use plain attention.
With all-MiniLM-L6-v2 (F16, one thread), plain and flash attention take 13 and 17 ms of CPU time for 32 tokens, 20 and
29 ms for 48, and 28 and 23 ms for 64.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeagent.config import EngineConfig
from edgeagent.engine.costs.cost_model import FLASH_TILE
from edgeagent.engine.llama.bindings import last_error, lib
from edgeagent.engine.llama.context_params import AbortFlag, make_params, suits_text
from edgeagent.engine.llama.embedder import Rows, normalized
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import BackendUnavailable, InternalError
from edgeagent.usable import usable_memory

_MAX_TEXTS = 64  # in a batch
_BATCH_TOKENS = 512
# llama.cpp keeps a row of logits for each token of a batch, even if the model computes no logits.
_MAX_LOGITS_BYTES = 64 << 20
_MIN_TOKENS = 64
_BYTES_A_LOGIT = 4
_NUM_WARM_TOKENS = 32
_SMOOTHING = 0.3
_CANCELLED = 2  # of llama_encode

# llama_pooling_type
_MEAN, _RANK = 1, 4
_DEFAULT_CONTEXT = 8192


def needs_whole_texts(model: Model) -> bool:
    """Whether a model must read a whole text at once, to embed or rank it. Such a model cannot generate.

    These are ranking models, encoders without a decoder, and models whose tokens attend to later tokens. Diffusion
    models do not count.
    """
    if lib.llama_model_is_diffusion(model.handle):
        return False
    if model.has_encoder:
        return not lib.llama_model_has_decoder(model.handle)
    return model.pooling == _RANK or not model.is_causal


@dataclass(frozen=True, slots=True)
class _Context:
    handle: object
    num_cells: int
    abort_flag: AbortFlag


class Encoder:
    """Computes batches of whole texts. One thread calls it; only `request_abort` may be called from another."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._contexts: dict[str, _Context] = {}  # by the form of attention
        self._is_aborted = False
        self._tokens_per_s = 0.0
        trained = model.context_length_trained or _DEFAULT_CONTEXT
        self.max_tokens = min(config.ctx or _DEFAULT_CONTEXT, trained)
        """The most tokens of a text: the configured context length, but no more than the model was trained for."""
        self.is_ranking = model.pooling == _RANK
        self.length = int(lib.llama_model_n_cls_out(model.handle)) if self.is_ranking else model.embedding_length
        """How many numbers `encode` returns for a text: the length of its vector, or a ranking model's classes."""
        by_logits = _MAX_LOGITS_BYTES // (_BYTES_A_LOGIT * model.num_tokens)
        self._batch_tokens = min(_BATCH_TOKENS, max(_MIN_TOKENS, by_logits), self.max_tokens)

    @property
    def is_open(self) -> bool:
        """Whether a context exists, which takes memory."""
        return bool(self._contexts)

    def batch_length(self, texts: Sequence[Sequence[int]]) -> int:
        """Return how many of `texts`, counted from the first, to compute in one batch; at least one."""
        num_tokens = 0
        for index, text in enumerate(texts[:_MAX_TEXTS]):
            num_tokens += len(text)
            if index and num_tokens > self._batch_tokens:
                return index
        return min(len(texts), _MAX_TEXTS)

    def expected_s(self, num_tokens: int) -> float:
        """Return the expected seconds to compute a batch of `num_tokens`; 0 before the first measurement."""
        return num_tokens / self._tokens_per_s if self._tokens_per_s else 0.0

    def warm_up(self, num_threads: int) -> None:
        """Load the weights into memory and measure the rate, by encoding tokens from the whole vocabulary.

        Raise the same errors as `encode`.
        """
        # A long text first: it opens the larger context and reads the weights, so its time does not count.
        for most in (FLASH_TILE, _NUM_WARM_TOKENS, _NUM_WARM_TOKENS):
            tokens = np.linspace(0, self._model.num_tokens - 1, min(most, self.max_tokens)).astype(int).tolist()
            self._tokens_per_s = 0.0
            self.encode([tokens], num_threads)

    def encode(self, texts: Sequence[Sequence[int]], num_threads: int) -> Rows:
        """Return a row for each text: its vector, or the scores of a ranking model's classes.

        A vector is scaled to Euclidean length 1. Each text must have 1 to `max_tokens` tokens. Pass at most as many
        texts as `batch_length` returns. Raise DecodeCancelled after `request_abort`, BackendUnavailable if there is not
        enough memory, or InternalError if llama.cpp fails or returns NaN or infinity.
        """
        num_tokens = sum(map(len, texts))
        form = self._attention(num_tokens)
        context = self._contexts.get(form)
        if context is None or not suits_text(self._model, context.num_cells, num_tokens):
            self._free(form)
            context = self._open(num_tokens, form)
        lib.llama_set_n_threads(context.handle, num_threads, num_threads)
        started_s = time.monotonic()
        self._compute(context.handle, texts, num_tokens)
        rate = num_tokens / max(time.monotonic() - started_s, 1e-6)
        self._tokens_per_s += (_SMOOTHING if self._tokens_per_s else 1.0) * (rate - self._tokens_per_s)
        rows = np.stack([self._row(context.handle, index) for index in range(len(texts))])
        if not np.isfinite(rows).all():
            raise InternalError("the model's embedding holds NaN or infinity")
        return rows if self.is_ranking else np.stack([normalized(row.astype(np.float64)) for row in rows])

    def request_abort(self) -> None:
        """Interrupt the running batch, and all later ones until `clear_abort` (CPU only). Any thread may call it."""
        self._is_aborted = True  # before the flags are read: `_open` makes a flag and then reads this
        for context in tuple(self._contexts.values()):
            context.abort_flag.set()

    def clear_abort(self) -> None:
        """Undo `request_abort`. Call it before reading commands, since a command may request a new abort."""
        self._is_aborted = False
        for context in self._contexts.values():
            context.abort_flag.clear()

    def close(self) -> None:
        """Free the memory; the next batch allocates it again."""
        for form in tuple(self._contexts):
            self._free(form)

    def _free(self, form: str) -> None:
        context = self._contexts.pop(form, None)
        if context is not None:
            lib.llama_free(context.handle)
            context.abort_flag.forget()

    def _attention(self, num_tokens: int) -> str:
        """Return the form of attention for a batch of this many tokens, a key of FLASH_ATTENTION."""
        config = self._config
        # Plain attention needs an f16 V cache.
        may_choose = config.flash_attention == "auto" and config.kv_type_v in ("auto", "f16")
        is_plain = may_choose and num_tokens < FLASH_TILE and not self._model.num_gpu_layers
        return "off" if is_plain else config.flash_attention

    def _open(self, num_tokens: int, form: str) -> _Context:
        least = self._batch_tokens if form == self._config.flash_attention else min(FLASH_TILE, self.max_tokens)
        num_cells = max(least, min(1 << (num_tokens - 1).bit_length(), self.max_tokens))
        if not suits_text(self._model, num_cells, num_tokens):
            num_cells = num_tokens
        self._check_memory(num_cells)
        params = make_params(self._model, self._config, num_cells, form)
        params.n_batch = params.n_ubatch = num_cells
        params.n_seq_max = _MAX_TEXTS
        params.n_outputs_max = max(num_cells, _MAX_TEXTS)
        params.embeddings = True
        params.pooling_type = self._model.pooling or _MEAN
        handle = lib.llama_init_from_model(self._model.handle, params) or None
        if handle is None:
            raise self._no_room(num_cells, last_error() or "llama.cpp makes no context")
        context = self._contexts[form] = _Context(handle, num_cells, AbortFlag(handle))
        if self._is_aborted:
            context.abort_flag.set()
        return context

    def _check_memory(self, num_cells: int) -> None:
        """Raise BackendUnavailable if the rows of logits for `num_cells` tokens do not fit into the free memory.

        llama.cpp writes to all of these rows.
        """
        needed_bytes = num_cells * self._model.num_tokens * _BYTES_A_LOGIT
        free_bytes = usable_memory().available
        if needed_bytes > free_bytes:
            raise self._no_room(
                num_cells, f"it takes {needed_bytes / 2**30:.1f} GiB and {free_bytes / 2**30:.1f} GiB are free"
            )

    def _no_room(self, num_tokens: int, why: str) -> BackendUnavailable:
        return BackendUnavailable(
            f"there is no room for a text of {num_tokens} tokens: {why}", retry_after_s=1.0, served_by="local"
        )

    def _compute(self, context: object, texts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """Compute a batch in which each text is its own sequence and each token is an output."""
        memory = lib.llama_get_memory(context)
        if memory:
            lib.llama_memory_clear(memory, False)
        batch = lib.llama_batch_init(num_tokens, 0, 1)
        try:
            batch.n_tokens = num_tokens
            places = ((index, place, token) for index, text in enumerate(texts) for place, token in enumerate(text))
            for at, (index, place, token) in enumerate(places):
                batch.token[at], batch.pos[at], batch.logits[at] = token, place, 1
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, index
            status = int((lib.llama_decode if memory else lib.llama_encode)(context, batch))
        finally:
            lib.llama_batch_free(batch)
        if status == _CANCELLED:
            raise DecodeCancelled
        if status != 0:
            self.close()
            raise InternalError(f"llama.cpp failed with status {status} on {num_tokens} tokens of {len(texts)} texts")
        lib.llama_synchronize(context)

    def _row(self, context: object, index: int) -> Rows:
        pointer = lib.llama_get_embeddings_seq(context, index)
        if not pointer:
            raise InternalError("llama.cpp computed a text, but has no vector of it")
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.length,)).copy()
