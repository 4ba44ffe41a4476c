"""The embeddings of tokens, out of a model's file. With them, a batch of embeddings can also hold tokens.

llama.cpp takes either tokens or embeddings in a batch. It looks tokens up in a table of the file, and so does this
module, with the same conversion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeagent.engine.llama.bindings import find_tensor, lib
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Rows
from edgeagent.errors import InternalError

_TABLE = "token_embd.weight"


class TokenRows:
    """Looks tokens up. The file stays mapped."""

    def __init__(self, model: Model) -> None:
        """Raise InternalError if the model's file has no such table, or if it cannot be read."""
        path, num_tokens, self._width = model.path, model.num_tokens, int(lib.llama_model_n_embd(model.handle))
        # llama.cpp adds zeros if the embeddings of media are longer (Qwen3-VL).
        self._width_of_media = int(lib.llama_model_n_embd_inp(model.handle))
        table = find_tensor(path, _TABLE)
        if table is None or table.row_bytes(self._width) * num_tokens != table.num_bytes:
            raise InternalError(f"{path} has no table of {num_tokens} embeddings")
        self._convert = table.to_f32
        try:
            self._table = np.memmap(path, np.uint8, "r", table.offset, (num_tokens, table.row_bytes(self._width)))
        except (OSError, ValueError) as error:
            raise InternalError(f"{path} cannot be read: {error}") from error

    def of(self, tokens: Sequence[int]) -> Rows:
        """Return the embeddings of tokens, shape (number, width of the embeddings of media)."""
        rows = np.zeros((len(tokens), self._width_of_media), np.float32)
        for row, token in zip(rows, tokens, strict=True):
            source = np.ascontiguousarray(self._table[token])
            if self._convert is None:
                row[: self._width] = source.view(np.float32)
            else:
                self._convert(source.ctypes.data, row.ctypes.data, self._width)
        return rows
