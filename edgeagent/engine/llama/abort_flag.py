"""A flag with which another thread interrupts the computation of a llama.cpp context."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgeagent.engine.llama.bindings import abort_flags, lib

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
        """Clear the flag, so that computations can run."""
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
