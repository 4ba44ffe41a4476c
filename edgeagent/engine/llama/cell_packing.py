"""Nearly halves the size of blocks: stores cells of type f16 as q8_0 (32 values share a scale), and all else as it is.

A payload has the layout that `llama_kv_cache::state_write` in llama.cpp writes. It has one or two KV caches: with a
sliding window, the windowed layers have their own. Each has a header, one record for each cell, the K rows of each
layer, and the V rows (or columns) of each layer. The type of the values precedes the rows of each layer. Nothing here
depends on the model. A payload with another layout is not packed.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.cache.block import Payload
from edgeagent.engine.llama.bindings import row_conversions
from edgeagent.errors import InternalError

_GRAIN = 64 << 10
_HUGE_PAGE = 2 << 20  # on x86-64 and most ARM systems
_MIN_BYTES = 256 << 10  # smaller buffers come from numpy's allocator, which keeps their pages

Buffer = NDArray[np.uint8]


class PayloadPool:
    """Lends buffers. A buffer returns to the pool when its last reference is dropped, on any thread.

    The pool keeps free buffers of at most `max_free_bytes` together. The buffers that returned first are dropped first,
    so it keeps the sizes that were used last.
    """

    def __init__(self) -> None:
        self.max_free_bytes = 0
        self._free: dict[int, Buffer] = {}  # in the order in which they returned
        self._numbers = itertools.count()

    @property
    def num_free_bytes(self) -> int:
        return sum(map(len, list(self._free.values())))

    def take(self, num_bytes: int) -> memoryview:
        """Return a buffer of this many bytes with undefined content; raise MemoryError if there is no memory."""
        if num_bytes < _MIN_BYTES:
            return np.empty(num_bytes, np.uint8).data
        capacity = _capacity(num_bytes)
        whole = self._find(capacity)
        if whole is None:
            whole = _fresh(capacity)
        buffer = whole[:num_bytes]
        weakref.finalize(buffer, self._give_back, whole).atexit = False
        # Not the array itself: numpy's views of it would refer to `whole` only, and `buffer` would be finalized.
        return buffer.data

    def prepare(self, num_bytes: int) -> bool:
        """Add a free buffer of this many bytes whose pages were already written to. Drop buffers of other sizes for it.

        Return False if free buffers of its size would exceed `max_free_bytes`, if there is no memory, or if the buffer
        is too small to need preparation. If `max_free_bytes` was lowered, first drop free buffers until the rest fits.
        """
        capacity = _capacity(num_bytes)
        self._make_room(0)
        num_alike = sum(len(buffer) == capacity for buffer in list(self._free.values()))
        if num_bytes < _MIN_BYTES or (num_alike + 1) * capacity > self.max_free_bytes:
            return False
        self._make_room(capacity, keep=capacity)
        try:
            whole = _fresh(capacity)
        except MemoryError:
            return False
        whole.fill(1)  # zeros could leave the pages unmapped
        self._free[next(self._numbers)] = whole
        return True

    def _find(self, capacity: int) -> Buffer | None:
        """Remove and return the free buffer of this capacity that returned last; None if there is none."""
        for number in reversed(list(self._free)):
            whole = self._free.get(number)
            if whole is not None and len(whole) == capacity and self._free.pop(number, None) is not None:
                return whole
        return None

    def _give_back(self, whole: Buffer) -> None:
        if len(whole) <= self.max_free_bytes:
            self._make_room(len(whole))
            self._free[next(self._numbers)] = whole

    def _make_room(self, num_bytes: int, keep: int = 0) -> None:
        """Drop free buffers until there is room for `num_bytes` more. Do not drop buffers of capacity `keep`."""
        excess = self.num_free_bytes + num_bytes - self.max_free_bytes
        for number in list(self._free):
            whole = self._free.get(number) if excess > 0 else None
            # Another thread may have taken it meanwhile.
            if whole is not None and len(whole) != keep and self._free.pop(number, None) is not None:
                excess -= len(whole)


def _fresh(capacity: int) -> Buffer:
    """Return a new buffer. A large one is in huge pages if the system has them: the kernel maps these faster."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or capacity < _HUGE_PAGE:
        return np.empty(capacity, np.uint8)
    try:
        mapped = mmap.mmap(-1, capacity + _HUGE_PAGE)  # pages that are never touched take no memory
    except OSError as error:
        raise MemoryError(f"no memory for a payload of {capacity} bytes: {error.strerror}") from None
    whole = np.frombuffer(mapped, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    with contextlib.suppress(OSError):  # a kernel without huge pages
        # Only whole huge pages: a part of one at the end would take a whole page.
        mapped.madvise(mmap.MADV_HUGEPAGE, start, capacity // _HUGE_PAGE * _HUGE_PAGE)
    return whole[start : start + capacity]


def _capacity(num_bytes: int) -> int:
    return -(-num_bytes // _GRAIN) * _GRAIN


_F16, _Q8_0 = 1, 8  # ggml_type
_CELL_TYPES = frozenset((0, _F16, 2, 3, 6, 7, _Q8_0, 30))  # the types that a context's cells may have
_GROUP = 32  # values with one scale
_GROUP_BYTES = 2 + _GROUP
_AT_ONCE = 64 << 10  # values that are converted at a time, so that they stay in the processor's cache

_MAGIC = b"edgeq8_0"
_HEADER = struct.Struct("<8sQQ")  # magic, bytes of the payload, number of spans
_MAX_CACHES = 2  # those of layers with and without a window
_STATE_HEADER_BYTES = 8  # llama.cpp's magic, and the sequence
_CELL_BYTES = (12, 24)  # of a cell's record: position, number of sequences, sequence; 24: also a place in an image

_FREE_BYTES = 32 << 20


class _OtherLayout(Exception):
    """The payload does not have the layout of llama.cpp's cells."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads numbers of a payload at given positions."""

    payload: memoryview

    def u32(self, at: int) -> int:
        """Return the little-endian unsigned 32-bit number at byte `at`; raise _OtherLayout beyond the payload."""
        return self._number("<I", at)

    def u64(self, at: int) -> int:
        """Return the little-endian unsigned 64-bit number at byte `at`; raise _OtherLayout beyond the payload."""
        return self._number("<Q", at)

    def _number(self, layout: str, at: int) -> int:
        try:
            number: int = struct.unpack_from(layout, self.payload, at)[0]
        except struct.error:
            raise _OtherLayout from None
        return number


class CellPacker:
    """A PayloadCodec: packs payloads and unpacks them. Only one thread may call it."""

    def __init__(self) -> None:
        self._convert = row_conversions()
        self._values = np.empty(_AT_ONCE, np.float32)
        self._unpacked = np.empty(0, np.uint8)
        self._buffers = PayloadPool()
        self._buffers.max_free_bytes = _FREE_BYTES

    def pack(self, payload: Payload) -> Payload:
        """Return a copy of a payload in which f16 cells are q8_0.

        Return the same payload if it has no such cells, or if its layout is unknown.
        """
        spans = _spans(memoryview(payload))
        if not spans:
            return payload
        source = np.frombuffer(payload, np.uint8)
        packed = self._buffers.take(_packed_bytes(len(source), spans))
        _HEADER.pack_into(packed, 0, _MAGIC, len(source), len(spans))
        target = np.frombuffer(packed, np.uint8)
        at = _HEADER.size + 16 * len(spans)
        target[_HEADER.size : at] = np.array(spans, "<u8").reshape(-1).view(np.uint8)
        for start, end in _between(spans, len(source)):
            target[at : at + end - start] = source[start:end]
            at += end - start
        for start, length in spans:
            at += self._to_q8_0(source[start : start + length], target[at:])
        return packed.toreadonly()

    def unpack(self, payload: Payload) -> Payload:
        """Return the payload that was packed, with rounded values. The result is valid until the next `unpack`.

        A payload that is not packed is returned as it is. Raise InternalError if a packed payload is damaged.
        """
        if bytes(payload[: len(_MAGIC)]) != _MAGIC:
            return payload
        source = np.frombuffer(payload, np.uint8)
        num_bytes, spans, at = _read_header(source)
        if len(self._unpacked) < num_bytes:
            self._unpacked = np.empty(num_bytes, np.uint8)
        target = self._unpacked[:num_bytes]
        for start, end in _between(spans, num_bytes):
            target[start:end] = source[at : at + end - start]
            at += end - start
        for start, length in spans:
            at += self._to_f16(source[at:], target[start : start + length])
        return target.data.toreadonly()

    def _to_q8_0(self, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> int:
        """Convert f16 values to q8_0 groups of 32 values; return how many bytes were written to `target`."""
        num_values, at, written = len(source) // 2, 0, 0
        values = self._values.ctypes.data
        while at < num_values:
            count = min(_AT_ONCE, num_values - at)
            self._convert.f16_to_f32(source.ctypes.data + 2 * at, values, count)
            self._convert.f32_to_q8_0(values, target.ctypes.data + written, count)
            written += count // _GROUP * _GROUP_BYTES
            at += count
        return written

    def _to_f16(self, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> int:
        """Convert q8_0 groups to f16 values until `target` is full; return how many bytes of `source` were read."""
        num_values, at, read = len(target) // 2, 0, 0
        values = self._values.ctypes.data
        while at < num_values:
            count = min(_AT_ONCE, num_values - at)
            self._convert.q8_0_to_f32(source.ctypes.data + read, values, count)
            self._convert.f32_to_f16(values, target.ctypes.data + 2 * at, count)
            read += count // _GROUP * _GROUP_BYTES
            at += count
        return read


def _packed_bytes(num_bytes: int, spans: list[tuple[int, int]]) -> int:
    """Return the size that a payload of `num_bytes` has after packing. `spans`: its runs of f16 values."""
    num_values = sum(length for _, length in spans) // 2
    return _HEADER.size + 16 * len(spans) + num_bytes - 2 * num_values + num_values // _GROUP * _GROUP_BYTES


def _read_header(source: NDArray[np.uint8]) -> tuple[int, list[tuple[int, int]], int]:
    """Return (size before packing, spans of f16 values, end of the header) from the header of a packed payload.

    Sizes are in bytes. Raise InternalError if the header does not match the bytes after it.
    """
    if len(source) >= _HEADER.size:
        _, num_bytes, num_spans = _HEADER.unpack_from(source.data)
        begin = _HEADER.size + 16 * num_spans
        if begin <= len(source):
            spans = [(int(at), int(length)) for at, length in source[_HEADER.size : begin].view("<u8").reshape(-1, 2)]
            next_starts = [start for start, _ in spans[1:]] + [num_bytes]
            is_in_order = all(
                start + length <= after for (start, length), after in zip(spans, next_starts, strict=True)
            )
            if is_in_order and _packed_bytes(num_bytes, spans) == len(source):
                return num_bytes, spans, begin
    raise InternalError("a block's packed cells are not as long as its header says")


def _between(spans: list[tuple[int, int]], num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the byte ranges of a payload that lie outside all spans."""
    at = 0
    for start, length in spans:
        if start > at:
            yield at, start
        at = start + length
    if at < num_bytes:
        yield at, num_bytes


def _spans(payload: memoryview) -> list[tuple[int, int]]:
    """Return (start, length) in bytes of each run of f16 values, in whole groups of 32 values.

    Return [] if there are none, or if the payload has another layout.
    """
    reader = _Reader(payload)
    for cell_bytes in _CELL_BYTES:
        spans: list[tuple[int, int]] = []
        at, num_caches = _STATE_HEADER_BYTES, 0
        try:
            while at < len(payload) and num_caches < _MAX_CACHES:
                at, more = _cache_spans(reader, at, cell_bytes)
                spans += more
                num_caches += 1
        except _OtherLayout:
            if num_caches == 0:
                continue
            # A recurrent state follows the cells. It has another layout and is not packed.
        return [(start, length // (2 * _GROUP) * 2 * _GROUP) for start, length in spans if length >= 2 * _GROUP]
    return []


def _cache_spans(reader: _Reader, at: int, cell_bytes: int) -> tuple[int, list[tuple[int, int]]]:
    """Return where the KV cache that begins at byte `at` ends, and its runs of f16 values as (start, length) in bytes.

    `cell_bytes`: the size of a cell's record. Raise _OtherLayout if the payload has another layout there.
    """
    num_streams, num_cells = reader.u32(at), reader.u32(at + 4)
    if num_streams != 1:
        raise _OtherLayout
    at += 8
    if num_cells == 0:
        return at, []
    for cell in (0, num_cells - 1):
        if reader.u32(at + cell * cell_bytes + 4) != 1:  # a cell of a saved sequence is of that sequence alone
            raise _OtherLayout
    at += num_cells * cell_bytes
    is_transposed, num_layers = reader.u32(at), reader.u32(at + 4)
    if is_transposed > 1 or num_layers >= 1 << 16:
        raise _OtherLayout
    at += 8
    spans = []
    for is_value in (False, True):
        for _ in range(num_layers):
            kind = reader.u32(at)
            if kind not in _CELL_TYPES:
                raise _OtherLayout
            if is_value and is_transposed:
                num_bytes, header = reader.u32(at + 4) * reader.u32(at + 8) * num_cells, 12
            else:
                num_bytes, header = reader.u64(at + 4) * num_cells, 12
            at += header
            if at + num_bytes > len(reader.payload):
                raise _OtherLayout
            if kind == _F16:
                spans.append((at, num_bytes))
            at += num_bytes
    return at, spans
