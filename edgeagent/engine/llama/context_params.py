"""Makes the parameters of every llama.cpp context, and keeps those equal that decide its numbers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import FLASH_ATTENTION, KV_TYPES, abort_flags, lib
from edgeagent.engine.llama.model import Model

_NEVER = ctypes.create_string_buffer(2)  # a flag that is never set


class AbortFlag:
    """The flag of one context. Any thread may call `set`. Only the computing thread may call the other methods."""

    def __init__(self, context: object) -> None:
        self._context = context
        # llama.cpp asks its abort callback at every graph node; a Python callback would take the interpreter's lock
        # each time. libc's strlen on a two-byte buffer reads the flag instead: "" is false, "\1" is true.
        self._flag = ctypes.create_string_buffer(2)
        abort_flags.append(self._flag)
        libc = ctypes.CDLL("msvcrt" if os.name == "nt" else None)
        self._callback = ctypes.cast(libc.strlen, lib.ggml_abort_callback)  # llama.cpp holds the pointer
        lib.llama_set_abort_callback(context, self._callback, ctypes.cast(self._flag, ctypes.c_void_p))

    def set(self) -> None:
        """Interrupt the running computation, and all later ones until `clear` is called."""
        self._flag[0] = b"\1"

    def clear(self) -> None:
        self._flag[0] = b"\0"

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Let computations run to their end meanwhile, whatever the flag says."""
        lib.llama_set_abort_callback(self._context, self._callback, ctypes.cast(_NEVER, ctypes.c_void_p))
        try:
            yield
        finally:
            lib.llama_set_abort_callback(self._context, self._callback, ctypes.cast(self._flag, ctypes.c_void_p))

    def ask(self, must_stop: Callable[[], bool]) -> None:
        """Let llama.cpp call `must_stop` at each graph node instead of reading the flag.

        The computation stops if `must_stop` returns True. After this call, `set` interrupts nothing. Each call of
        `must_stop` takes the interpreter's lock.
        """

        def answer(_: int | None) -> bool:
            is_stopped = must_stop()
            if is_stopped:
                self.set()  # so that the interruption is not reported as an error
            return is_stopped

        self._callback = lib.ggml_abort_callback(answer)
        lib.llama_set_abort_callback(self._context, self._callback, None)

    def forget(self) -> None:
        """Forget the context. Call it after the context was freed."""
        abort_flags.remove(self._flag)
        self._callback = None  # the function passed to `ask` may refer to this object


# The fields of llama_context_params that change what a context computes from the same tokens, or how it stores it. They
# are equal in all contexts that exchange cells. `n_ctx` is such a field too, but only through the RoPE factors: see
# `num_cells_like`. The other fields set sizes, threads and callbacks, or choose which results are returned.
NUMBERS = (
    *("ctx_type", "ctx_other"),
    *("rope_scaling_type", "rope_freq_base", "rope_freq_scale"),
    *("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx"),
    *("attention_type", "flash_attn_type"),
    *("type_k", "type_v", "kv_unified", "swa_full"),
    *("offload_kqv", "op_offload"),  # devices round differently
)


def make_params(model: Model, config: EngineConfig, num_cells: int, flash: str, like: Any = None) -> Any:
    """Return the parameters of a context of `num_cells`; the caller sets batches, sequences, threads and results.

    `flash` is the form of attention, a key of FLASH_ATTENTION. `like`: the parameters of a context of the same model,
    which exchanges cells with this one. So the numbers are decided by `like` alone.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = num_cells
    params.flash_attn_type = FLASH_ATTENTION[flash]
    params.type_k, params.type_v = KV_TYPES[config.kv_type_k], KV_TYPES[config.kv_type_v]
    params.kv_unified = True
    params.no_perf = True
    # Otherwise a GPU computes long batches even with weights that are all in the machine's own memory.
    params.op_offload = model.num_gpu_layers != 0
    if like is not None:
        for name in NUMBERS:
            setattr(params, name, getattr(like, name))
        params.n_ctx = num_cells_like(model, like.n_ctx, num_cells)
    return params


def suits_text(model: Model, num_cells: int, num_tokens: int) -> bool:
    """Whether a context of this size has room for a text, and the RoPE factors for the text's own length.

    Use it for texts whose cells are not shared. So a text's numbers do not depend on the texts before it.
    """
    return num_tokens <= num_cells and model.rope_factors(num_cells) == model.rope_factors(num_tokens)


def num_cells_like(model: Model, other: int, least: int) -> int:
    """Return the size of a context whose numbers equal those of one with `other` cells: `least` cells, if possible.

    It is larger if `least` cells would get the RoPE factors for short texts, and never larger than the other context.
    """
    is_equal = model.rope_factors(least) == model.rope_factors(other)
    return min(least if is_equal else max(least, model.max_short_context + 1), other)
