"""Quantizes a model file with llama.cpp. It redirects llama.cpp's log, so use a process that does nothing else."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

from edgeagent.engine.llama.bindings import lib, listen
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.errors import ModelLoadFailed

# Limit of the rows that are converted at a time. llama.cpp's default is 8 GiB.
_MAX_BUFFER_BYTES = 1 << 30
_ERROR_LEVEL = 4  # ggml_log_level
# Lines of llama.cpp's log: `[  12/ 290]  blk.0.attn_q.weight - [...]` before each tensor, and one with the size.
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")
_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")


class Quantizer:
    """Quantizes one file into another.

    `file_type`: a llama_ftype. `num_threads`: 0 means one for each usable core. `allow_requantize`: accept a source
    that is quantized already. `on_tensor`: called before each tensor with its number and the number of all tensors.
    """

    def __init__(
        self,
        source: Path,
        file_type: int,
        *,
        num_threads: int,
        allow_requantize: bool,
        on_tensor: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._on_tensor = on_tensor
        self._size_bytes: int | None = None
        self._errors: list[str] = []
        self._log = lib.llama_log_callback(self._read)  # kept alive: llama.cpp holds the pointer
        self._params = lib.llama_model_quantize_default_params()
        self._params.ftype = file_type
        self._params.nthread = num_threads or num_usable_cores()
        self._params.allow_requantize = allow_requantize
        self._params.max_buf_size = _MAX_BUFFER_BYTES

    def size_bytes(self) -> int | None:
        """Return how many bytes the result's tensors will have. Return None if llama.cpp does not report it.

        Raise ModelLoadFailed if llama.cpp fails.
        """
        report, self._on_tensor = self._on_tensor, lambda _done, _all: None
        self._run(Path(os.devnull), is_dry=True)
        self._on_tensor = report
        return self._size_bytes

    def write(self, target: Path) -> None:
        """Write the result over an existing file. Raise ModelLoadFailed if llama.cpp fails."""
        self._run(target, is_dry=False)

    def _run(self, target: Path, *, is_dry: bool) -> None:
        self._params.dry_run = is_dry
        self._errors.clear()
        lib.llama_log_set(self._log, None)
        paths = str(self._source).encode(), str(target).encode()
        status = lib.llama_model_quantize(*paths, ctypes.byref(self._params))
        listen()
        if status != 0:
            raise ModelLoadFailed("; ".join(dict.fromkeys(self._errors)) or "llama.cpp gives no reason", param="model")

    def _read(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level == _ERROR_LEVEL:
            self._errors.append(_readable_error(line))
        elif found := _TENSOR.match(line):
            self._on_tensor(int(found[1]), int(found[2]))
        elif found := _SIZE.search(line):
            self._size_bytes = round(float(found[1]) * (1 << 20))


def _readable_error(line: str) -> str:
    """Return a readable form of an error in llama.cpp's log. If a write fails, the log does not give the reason."""
    if "iostream error" in line:
        return "the result cannot be written: the disk is full, or a limit for the size of files is reached"
    return line.removeprefix("llama_model_quantize: failed to quantize: ")
