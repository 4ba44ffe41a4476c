"""Sequential, bounded reading of a GGUF header. This module does not interpret the fields.

It reads the file into a buffer, the window, and does not use mmap: a file that shrinks while it is mapped would kill
the process with SIGBUS.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Never

from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelNotFound

MAX_HEADER_BYTES = 256 << 20
MAX_STRING_BYTES = 64 << 20
MAX_ARRAY_STRINGS = 1 << 22

_WINDOW_BYTES = 1 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ByteReader:
    """A cursor over the header of a file.

    If the header is cut off or exceeds a limit, the methods raise ModelDamaged, which names the file and the problem.
    """

    def __init__(self, file: BinaryIO, path: Path, size_bytes: int) -> None:
        self._file = file
        self._path = path
        self._window = b""
        self._window_offset = 0
        self._pos = 0
        self._num_array_strings = 0
        self.size_bytes = size_bytes

    @property
    def offset(self) -> int:
        """Bytes consumed so far."""
        return self._window_offset + self._pos

    def fail(self, what: str) -> Never:
        """Raise ModelDamaged for this file."""
        raise ModelDamaged(f"{self._path} cannot be loaded: {what}", param="model")

    def take(self, num_bytes: int) -> bytes:
        """Return the next `num_bytes` bytes."""
        if self._pos + num_bytes > len(self._window):
            self._refill(num_bytes)
        start = self._pos
        self._pos += num_bytes
        return self._window[start : self._pos]

    def skip(self, num_bytes: int) -> None:
        """Step over bytes without reading them."""
        if self._pos + num_bytes <= len(self._window):
            self._pos += num_bytes
            return
        self._check_room(num_bytes)
        self._window_offset = self.offset + num_bytes
        self._window, self._pos = b"", 0

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self, what: str, max_bytes: int) -> str:
        """Return a length-prefixed string, with invalid UTF-8 replaced. `what` names the string in the error."""
        num_bytes = self.u64()
        if num_bytes > max_bytes:
            self.fail(f"{what} is {num_bytes} bytes long, more than {max_bytes}")
        return self.take(num_bytes).decode("utf-8", "replace")

    def string_start(self, max_bytes: int) -> str:
        """Return the first `max_bytes` bytes of a length-prefixed string as text, and step over the rest."""
        num_bytes = self.u64()
        if num_bytes > MAX_STRING_BYTES:
            self.fail(f"a string at byte {self.offset} is {num_bytes} bytes long, more than {MAX_STRING_BYTES}")
        start = self.take(min(num_bytes, max_bytes)).decode("utf-8", "replace")
        self.skip(max(0, num_bytes - max_bytes))
        return start

    def skip_string(self) -> None:
        """Step over a length-prefixed string."""
        num_bytes = self.u64()
        if num_bytes > MAX_STRING_BYTES:
            self.fail(f"a string at byte {self.offset} is {num_bytes} bytes long, more than {MAX_STRING_BYTES}")
        self.skip(num_bytes)

    def skip_strings(self, count: int) -> None:
        """Step over `count` length-prefixed strings, such as a vocabulary.

        Most of the time for a header is spent here, so the loop uses local variables.
        """
        self._num_array_strings += count
        if self._num_array_strings > MAX_ARRAY_STRINGS:
            self.fail(f"its arrays hold more than {MAX_ARRAY_STRINGS} strings")
        length_at = _U64.unpack_from
        window, pos = self._window, self._pos
        last = len(window) - 8
        for _ in range(count):
            if pos <= last:
                end = pos + 8 + length_at(window, pos)[0]
                if end <= last + 8:
                    pos = end
                    continue
            self._pos = pos
            self.skip_string()
            if self._pos == len(self._window) and self.offset < self.size_bytes:
                self._refill(0)
            window, pos = self._window, self._pos
            last = len(window) - 8
        self._pos = pos

    def _check_room(self, num_bytes: int) -> None:
        end = self.offset + num_bytes
        if end > self.size_bytes:
            self.fail(f"the file ends at byte {self.size_bytes}, inside its header (byte {end} is needed)")
        if end > MAX_HEADER_BYTES:
            self.fail(f"its header is larger than {MAX_HEADER_BYTES} bytes")

    def _refill(self, num_bytes: int) -> None:
        self._check_room(num_bytes)
        offset = self.offset
        self._file.seek(offset)
        self._window = self._file.read(max(num_bytes, _WINDOW_BYTES))
        self._window_offset, self._pos = offset, 0
        if len(self._window) < num_bytes:
            self.fail("the file became shorter while it was read")


@contextmanager
def open_model_file(path: Path) -> Iterator[ByteReader]:
    """Open a regular file for reading its header.

    The open does not block, so a FIFO or a device in place of the file cannot hang this process. The kind of file is
    read from the open descriptor, so the file cannot be exchanged after the check. Raise ModelNotFound or
    ModelLoadFailed.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"there is no file {path}: check the path", param="model") from None
    except (OSError, ValueError) as error:
        raise ModelLoadFailed(f"{path} cannot be opened: {error}", param="model") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadFailed(f"{path} is not a regular file: give the path of a .gguf file", param="model")
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            yield ByteReader(file, path, status.st_size)
    except OSError as error:
        raise ModelLoadFailed(f"{path} cannot be read: {error}", param="model") from None
    finally:
        os.close(descriptor)
