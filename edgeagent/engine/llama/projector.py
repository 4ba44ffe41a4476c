"""A projector (mmproj file): it turns images and sounds into embeddings, with llama.cpp's libmtmd.

No text passes through libmtmd. It gets one decoded medium at a time, and returns the model's own tokens around the
medium and its chunks of embeddings.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeagent.engine.llama.bindings import ERROR_LEVEL, device_named, has_tensor, lib
from edgeagent.engine.llama.fingerprint import adapter_id
from edgeagent.engine.llama.media_formats import Pixels, is_webp, orientation, turned, webp_pixels, without_claims
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Positions, Rows
from edgeagent.errors import InternalError, InvalidRequest, ModelDamaged, NotSupported
from edgeagent.types import MediaKind, MemoryKind

_TEXT = 0  # mtmd_input_chunk_type
# DeepSeek's: its chunks begin with as many of these as the text before them needs, which libmtmd does not get here.
_PADDING = "v.token_embd.img_pad"
# The kinds of memory that media with positions in several dimensions were tested with.
_WITH_DIMENSIONS = (MemoryKind.FULL_ATTENTION, MemoryKind.HYBRID)
_LONG, _SHORT = 2048, 512  # sides of images, in pixels, of which some has the most tokens
_MAX_SOUND_S = 3600  # `check_medium` allows less
_MIN_SAMPLES = 400  # of a sound: the window of one spectrum
# Between so many nodes of an encoder's graph it is asked whether the embeddings are still wanted.
_NODES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, eq=False)
class MediaChunk:
    """`num_tokens` embeddings of a medium. `is_causal`: each attends only to those before it.

    `positions`: if not None, their own positions, in several dimensions; they take `num_positions` of the sequence.
    """

    num_tokens: int
    is_causal: bool
    positions: Positions | None = None
    num_positions: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether no prefix may end within the chunk."""
        return not self.is_causal or self.positions is not None


Layout = tuple[tuple[int, ...] | MediaChunk, ...]
"""The form of a medium in a prompt: tokens of the vocabulary, and chunks of embeddings, in order."""


_errors: deque[str] = deque(maxlen=4)


def _log(level: int, text: bytes, _: object) -> None:
    # They are about clients' files, so they go to the client and not to the log.
    if level == ERROR_LEVEL:
        _errors.append(text.decode(errors="replace").strip())


_log_callback = lib.llama_log_callback(_log)  # kept alive: libmtmd holds the pointer


def _last_error() -> str:
    message = "; ".join(dict.fromkeys(_errors))
    _errors.clear()
    return message or "no reason is given"


def _load() -> Any:
    try:
        mtmd = importlib.import_module("llama_cpp.mtmd_cpp")
    except (OSError, FileNotFoundError, RuntimeError) as error:
        raise NotSupported(
            "this build of llama.cpp has no library for images and sounds (libmtmd); `edgeagent doctor` shows how to "
            "install one that has it"
        ) from error
    mtmd.mtmd_helper_log_set(_log_callback, None)
    return mtmd


def _always() -> bool:
    return True


class OpenMedium:
    """A decoded medium, whose chunks can be encoded. Close it, since it holds its pixels or spectra."""

    def __init__(self, projector: Projector, chunks: contextlib.AbstractContextManager[list[Any]]) -> None:
        self._projector = projector
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(chunks)
            self.layout: Layout = projector.describe(opened)
            """Its form in a prompt."""
            self._chunks = projector.only_media(opened)
            self._stack = stack.pop_all()

    @property
    def num_chunks(self) -> int:
        """How many chunks of embeddings it has."""
        return len(self._chunks)

    def encode(self, index: int, is_wanted: Callable[[], bool] = _always) -> Rows | None:
        """Return the embeddings of a chunk, shape (num_tokens, width).

        `is_wanted` is asked now and then. If it returns False, the computation ends early and the result is None. A GPU
        is not interrupted. Raise InternalError.
        """
        return self._projector.encode(self._chunks[index], is_wanted)

    def close(self) -> None:
        """Free the medium. Call no method afterwards."""
        self._stack.close()


class Projector:
    """An open projector of a model. Any thread may ask for layouts. One thread at a time may open media and encode."""

    def __init__(self, path: Path, model: Model, *, num_threads: int, gpu: str = "") -> None:
        """Open the file, on the GPU `gpu` if it is not "".

        Raise NotSupported if this build has no libmtmd, or if the projector cannot be used. Raise ModelDamaged if the
        file is damaged or does not suit the model.
        """
        self.path = path
        self._mtmd = mtmd = _load()
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = bool(gpu), num_threads, False
        params.device = device_named(gpu) if gpu else None
        self._is_wanted: Callable[[], bool] = _always
        self._num_nodes, self._was_interrupted = 0, False
        if not gpu:
            self._observe = lib.ggml_backend_sched_eval_callback(self._on_node)  # kept alive: libmtmd holds the pointer
            params.cb_eval = self._observe
        _errors.clear()
        self._handle = mtmd.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self._handle:
            raise ModelDamaged(f"the projector {path} does not suit {model.path}: {_last_error()}")
        if has_tensor(path, _PADDING):
            self.close()
            raise NotSupported(f"the projector {path} pads images by the text before them, which is not supported")
        self._has_dimensions = mtmd.mtmd_decode_use_mrope(self._handle)
        if self._has_dimensions and model.memory_kind not in _WITH_DIMENSIONS:
            self.close()
            raise NotSupported(
                f"the positions of {model.path} have several dimensions (M-RoPE), which is not supported with a memory "
                f"of the kind {model.memory_kind}"
            )
        takes = ((mtmd.mtmd_support_vision, "image"), (mtmd.mtmd_support_audio, "audio"))
        self.kinds: tuple[MediaKind, ...] = tuple(kind for is_taken, kind in takes if is_taken(self._handle))  # type: ignore[misc]
        """The kinds of media that it takes."""
        self.width = int(lib.llama_model_n_embd_inp(model.handle))
        """The number of values of an embedding."""
        self.id = adapter_id(path)
        """It changes when the file changes."""
        self.max_whole = self._find_max_whole() if mtmd.mtmd_decode_use_non_causal(self._handle, None) else 0
        """The most tokens of a chunk whose embeddings attend to each other; 0 if there are no such chunks."""

    def _find_max_whole(self) -> int:
        sizes = ((_LONG, _LONG), (_LONG, _SHORT), (_SHORT, _LONG))
        layouts = [self.layout_of_size(*size) for size in sizes if "image" in self.kinds]
        chunks = (part for layout in layouts for part in layout if isinstance(part, MediaChunk))
        return max((chunk.num_tokens for chunk in chunks), default=0)

    def close(self) -> None:
        """Free the projector. Call no method afterwards."""
        if self._handle:
            self._mtmd.mtmd_free(self._handle)
            self._handle = None

    def layout(self, data: bytes) -> Layout:
        """Return the form of a medium. Raise InvalidRequest if it cannot be decoded.

        `data` is a file that `check_medium` accepts.
        """
        return self._layout(partial(self._bitmap, data))

    def layout_of_size(self, width: int, height: int) -> Layout:
        """Return the form of an image of this size, in pixels. No image is decoded for it."""
        return self._layout(partial(self._mtmd.mtmd_bitmap_init, width, height, None))

    def _layout(self, decode: Callable[[], Any]) -> Layout:
        with self._chunks(decode) as chunks:
            return self.describe(chunks)

    def open(self, data: bytes) -> OpenMedium:
        """Decode a medium, to encode its chunks. Raise InvalidRequest if it cannot be decoded."""
        return OpenMedium(self, self._chunks(partial(self._bitmap, data)))

    def describe(self, chunks: list[Any]) -> Layout:
        """Return the form of a medium with these chunks."""
        return tuple(map(self._describe, chunks))

    def only_media(self, chunks: list[Any]) -> list[Any]:
        """Return the chunks of embeddings among those of a medium."""
        return [chunk for chunk in chunks if self._mtmd.mtmd_input_chunk_get_type(chunk) != _TEXT]

    def encode(self, chunk: Any, is_wanted: Callable[[], bool]) -> Rows | None:
        """Return the embeddings of a chunk; see OpenMedium."""
        _errors.clear()
        self._is_wanted, self._was_interrupted = is_wanted, False
        try:
            if self._mtmd.mtmd_encode_chunk(self._handle, chunk):
                raise InternalError(f"{self.path} could not encode a medium: {_last_error()}")
        finally:
            self._is_wanted = _always
        if self._was_interrupted:
            return None
        num_values = self._mtmd.mtmd_input_chunk_get_n_tokens(chunk) * self.width
        output = ctypes.cast(self._mtmd.mtmd_get_output_embd(self._handle), ctypes.POINTER(ctypes.c_float))
        rows: Rows = np.ctypeslib.as_array(output, (num_values,)).reshape(-1, self.width).copy()
        return rows

    def _on_node(self, _tensor: object, is_question: bool, _data: object) -> bool:
        """Tell ggml's scheduler after which nodes of the graph to ask, and then whether to compute the next ones."""
        if is_question:
            self._num_nodes += 1
            return self._num_nodes % _NODES_AT_ONCE == 0
        self._was_interrupted = not self._is_wanted()
        return not self._was_interrupted

    def _describe(self, chunk: Any) -> tuple[int, ...] | MediaChunk:
        mtmd, num_tokens = self._mtmd, ctypes.c_size_t()
        if mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT:
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(num_tokens))
            # -1: the vocabulary lacks a token that usually stands there.
            return tuple(token for token in tokens[: num_tokens.value] if token >= 0)
        count = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        is_causal = not mtmd.mtmd_decode_use_non_causal(self._handle, chunk)
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        if not self._has_dimensions or not image:
            return MediaChunk(count, is_causal, num_positions=count)
        places = (mtmd.mtmd_decoder_pos * count)()
        mtmd.mtmd_helper_image_get_decoder_pos(image, 0, places)
        if any(place.z for place in places):
            raise NotSupported(f"the positions of images of {self.path} depend on those before them; not supported")
        positions = np.array([[place.t, place.y, place.x] for place in places], np.int32).T
        return MediaChunk(count, is_causal, positions, int(mtmd.mtmd_input_chunk_get_n_pos(chunk)))

    @contextlib.contextmanager
    def _chunks(self, decode: Callable[[], Any]) -> Iterator[list[Any]]:
        """Open the chunks of the medium that `decode` returns, which are freed at the end."""
        mtmd = self._mtmd
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            self._split(decode(), chunks)
            yield [mtmd.mtmd_input_chunks_get(chunks, index) for index in range(mtmd.mtmd_input_chunks_size(chunks))]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def _split(self, bitmap: Any, chunks: Any) -> None:
        """Fill the chunks, which have their own copy of what is encoded, and free the decoded medium."""
        mtmd = self._mtmd
        try:
            part = mtmd.mtmd_input_part(None, bitmap)
            parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
            if mtmd.mtmd_tokenize_from_parts(self._handle, chunks, parts, 1, False):
                raise InvalidRequest(f"an image or a sound cannot be read: {_last_error()}", param="input")
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def _bitmap(self, data: bytes) -> Any:
        mtmd, how = self._mtmd, orientation(data)
        if is_webp(data):
            return self._of_pixels(turned(webp_pixels(data), how))
        data = without_claims(data, _MAX_SOUND_S)
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        options = mtmd.mtmd_helper_init_opt_default()
        bitmap = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(self._handle, buffer, len(data), False, options).bitmap
        if not bitmap:
            raise InvalidRequest("an image or a sound cannot be decoded: it is damaged", param="input")
        if mtmd.mtmd_bitmap_is_audio(bitmap) and mtmd.mtmd_bitmap_get_n_bytes(bitmap) < 4 * _MIN_SAMPLES:
            mtmd.mtmd_bitmap_free(bitmap)
            raise InvalidRequest("a sound is too short to be read", param="input")
        if how == 1:
            return bitmap
        try:
            size = mtmd.mtmd_bitmap_get_ny(bitmap), mtmd.mtmd_bitmap_get_nx(bitmap), 3
            return self._of_pixels(turned(np.ctypeslib.as_array(mtmd.mtmd_bitmap_get_data(bitmap), size), how))
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def _of_pixels(self, pixels: Pixels) -> Any:
        height, width, _ = pixels.shape
        return self._mtmd.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
