"""The runner on llama.cpp. It has one context with a unified KV cache, and uses the low-level bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Payload
from edgeagent.engine.costs.cost_model import FLASH_TILE
from edgeagent.engine.llama.bindings import KV_TYPES, last_error, lib
from edgeagent.engine.llama.cell_packing import PayloadPool
from edgeagent.engine.llama.context_params import AbortFlag, make_params
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.engine.llama.fingerprint import adapter_id
from edgeagent.engine.llama.model import Model, is_short_of_memory
from edgeagent.engine.llama.past_states import PastStates, possible_rewind
from edgeagent.engine.llama.token_rows import TokenRows
from edgeagent.engine.runner import CUTTABLE, DecodeCancelled, Logits, OutOfCells, Rows, Slice, Stretch
from edgeagent.engine.scheduler import MAX_SCORED
from edgeagent.errors import InternalError, ModelDamaged, ModelLoadFailed, ModelOutOfMemory
from edgeagent.fit.attention import Attention, choose_attention
from edgeagent.fit.need import DEFAULT_MAX_CONTEXT, NUM_IDLE_SEQUENCES, NUM_IDLE_STATES, NUM_IDLE_STATES_WITHOUT_HOST
from edgeagent.types import MemoryKind

_SCALE = 1.0


class Adapter:
    """A loaded adapter. llama.cpp frees it with its model."""

    def __init__(self, model: Model, path: Path) -> None:
        """Load the adapter. Raise OSError if the file cannot be read.

        Raise ModelDamaged if the file is not an adapter for this model, or is an aLoRA adapter, which is not supported.
        """
        self.path = path
        self.id = adapter_id(path)
        self._handle = lib.llama_adapter_lora_init(model.handle, str(path).encode())
        if not self._handle:
            raise ModelDamaged(f"the adapter {path} does not suit {model.path}: {last_error() or 'no reason is given'}")
        if lib.llama_adapter_get_alora_n_invocation_tokens(self._handle):
            raise ModelDamaged(f"the adapter {path} acts behind certain tokens only (aLoRA), which is not supported")
        kind = lib.llama_set_adapters_lora.argtypes[1]._type_  # a pointer, as the bindings declare it
        self._handles = (kind * 1)(self._handle)
        self._scales = (ctypes.c_float * 1)(_SCALE)

    def use(self, context: object) -> None:
        """Apply the adapter to a context of its model, instead of any other adapter."""
        lib.llama_set_adapters_lora(context, self._handles, 1, self._scales)


_LARGE_TILE = 16
_TILED_KV_TYPES = ("auto", "f32", "f16")  # "auto" is f16
# By llama_ftype. Weights that llama.cpp repacks for the CPU are computed four tokens at once.
_UNQUANTIZED = {0: "F32", 1: "F16", 32: "BF16"}
_REPACKED = {2: "Q4_0", 25: "IQ4_NL"}


@dataclass(frozen=True, slots=True)
class WeightPadding:
    """How many tokens are added to a batch to fill the tiles in which the weights are multiplied.

    `tile`: one token is added if it completes a multiple of this number; 0: no batch is padded. `most`: up to this many
    tokens are added if they complete a multiple of 16.
    """

    tile: int = 0
    most: int = 0


def attention_tile(kv_type_k: str, kv_type_v: str) -> int:
    """Return the tile of ggml's flash attention on a CPU, in tokens; 0 if cells of these types have no tiles."""
    return FLASH_TILE if kv_type_k == kv_type_v and kv_type_k in _TILED_KV_TYPES else 0


def can_fill(model: Model) -> bool:
    """Whether batches of this model may be padded: only on a CPU, and only with full attention.

    With a window or a state, padding would add another sequence to a batch, with unknown effects.
    """
    return model.num_gpu_layers == 0 and model.memory_kind is MemoryKind.FULL_ATTENTION


def padding_of_type(file_type: int | None) -> WeightPadding:
    """Return the usual padding for weights of this llama_ftype: none if they are unquantized or of unknown type."""
    if file_type is None or file_type in _UNQUANTIZED:
        return WeightPadding()
    return WeightPadding(4 if file_type in _REPACKED else 8, 3)


def num_to_fill(num_tokens: int, padding: WeightPadding, micro_batch: int) -> int:
    """Return how many padding tokens to add to a batch of `num_tokens`.

    llama.cpp splits the batch into parts of `micro_batch` tokens. If the last part would have a single token, at least
    one padding token is added, since a single token is rounded differently (see engine.sequence).
    """
    is_last_alone = num_tokens > 1 and num_tokens % micro_batch == 1
    return max(_num_to_round(num_tokens, padding, micro_batch), 1 if is_last_alone else 0)


def _num_to_round(num_tokens: int, padding: WeightPadding, micro_batch: int) -> int:
    """Return how many padding tokens make a batch of `num_tokens` faster; 0 if none do."""
    if padding.tile == 0:
        return 0
    added = -num_tokens % _LARGE_TILE
    if added > padding.most:
        added = 1 if -num_tokens % padding.tile == 1 else 0
    # Parts of an attention tile or more use a kernel that rounds differently. Padding must not change the kernel.
    num_last = num_tokens % micro_batch or micro_batch
    return 0 if num_last < FLASH_TILE <= num_last + added else added


# llama.cpp allows 256 sequences per context. With attention, an idle sequence takes no extra memory. With recurrent
# memory it takes a whole state, so idle states are kept in host memory if possible.
_NUM_IDLE_SEQUENCES = {MemoryKind.FULL_ATTENTION: NUM_IDLE_SEQUENCES, MemoryKind.SLIDING_WINDOW: 16}
# With full attention, the branches of a tree have sequences of their own, as many as have rows of logits in any case.
# Windows and states take memory for each sequence, so their branches are computed one at a time, in the spare sequence.
_NUM_BRANCHES = MAX_SCORED - 1
_MAX_ROW_COST = 64.0  # for models that consist of little more than a vocabulary
_OUT_OF_CELLS = 1  # of llama_decode
_ROPES_WITH_DIMENSIONS = (8, 40)  # llama_rope_type: M-RoPE, and its interleaved form
_UNROUNDED = (KV_TYPES["f32"], KV_TYPES["f16"])  # K cells that an angle of 0 leaves as they are


def num_cells_of(model: Model, config: EngineConfig) -> int:
    return config.ctx or min(model.context_length_trained or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT)


def attention_of(model: Model, config: EngineConfig, num_cells: int | None = None) -> Attention:
    """Return the form of attention of a model's context."""
    return choose_attention(
        config,
        # llama.cpp reports the first layer's value, which may be 0 in a hybrid; heads are rarely narrower than 64.
        num_heads=int(lib.llama_model_n_head(model.handle)) or model.embedding_length // 64,
        ffn_width=model.ffn_width if model.memory_kind is MemoryKind.FULL_ATTENTION else 0,
        num_cells=num_cells or num_cells_of(model, config),
        is_on_gpu=model.num_gpu_layers != 0,
    )


def _make_context(model: Model, params: Any) -> tuple[Any, Any]:
    """Make a context; return (context, memory). Raise ModelLoadFailed if it cannot be made, or has no memory."""
    context = lib.llama_init_from_model(model.handle, params)
    if not context:
        why = last_error()
        kind = ModelOutOfMemory if is_short_of_memory(why) else ModelLoadFailed
        raise kind(
            f"llama.cpp could not make a context of {params.n_ctx} tokens for {model.path}: "
            f"{why or 'it does not say why'}. Try a smaller --ctx, or another KV type or flash attention"
        )
    memory = lib.llama_get_memory(context)
    if not memory:
        lib.llama_free(context)
        raise ModelLoadFailed(
            f"{model.path} keeps no memory of a text: it is an embedding or diffusion model, which cannot generate "
            "token by token"
        )
    return context, memory


def _check_status(status: int, num_tokens: int) -> None:
    """Raise the error that a status of llama_decode stands for; 0 is none."""
    if status == _OUT_OF_CELLS:
        raise OutOfCells
    if status == 2:
        raise DecodeCancelled
    if status != 0:
        raise InternalError(f"llama_decode failed with status {status} on a batch of {num_tokens} tokens")


def num_sequences_of(model: Model, config: EngineConfig) -> int:
    """Return how many sequences a context has, live and idle ones together."""
    num_states = NUM_IDLE_STATES if config.cache_memory_bytes else NUM_IDLE_STATES_WITHOUT_HOST
    return config.num_parallel + _NUM_IDLE_SEQUENCES.get(model.memory_kind, num_states)


class LlamaRunner:
    """Runs batches on one llama.cpp context; see engine.runner.Runner.

    One thread calls it; only `request_abort` may be called from another.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        num_cells: int | None = None,
        attention: Attention | None = None,
        max_rewind: int = 0,
        like: LlamaRunner | None = None,
    ) -> None:
        """Make the context. Raise ModelLoadFailed if llama.cpp cannot (out of memory, impossible options).

        `max_rewind`: how many tokens a sequence should be able to go back. With a recurrent state, this needs earlier
        states, which llama.cpp keeps only for some architectures. The attribute of this name has the possible number.

        `like`: another runner of the model, with which this one exchanges cells, so both must compute the same numbers.
        """
        self.model = model
        self.attention = attention or attention_of(model, config, num_cells)
        self.memory_kind = model.memory_kind
        self.num_vocab = model.num_tokens
        self.num_threads = config.threads or num_usable_cores()
        self.num_sequences = num_sequences_of(model, config)
        self._spare = self.num_sequences  # an additional sequence, for tokens that are not kept
        has_branches = model.memory_kind is MemoryKind.FULL_ATTENTION
        self.max_branches = _NUM_BRANCHES if has_branches else 1
        self._first_branch = self._spare + has_branches
        self.min_prompt_chunk = 2 if model.num_gpu_layers == 0 and model.memory_kind in CUTTABLE else 1
        self._can_fill = can_fill(model)
        self.is_blocking = model.num_gpu_layers == 0
        self.can_shift = self.can_mix = False
        self._token_rows: TokenRows | None = None  # see allow_mix
        self._weight_padding = padding_of_type(model.file_type)
        is_flash = self._can_fill and self.attention.flash == "on"
        self.attention_tile = attention_tile(config.kv_type_k, config.kv_type_v) if is_flash else 0
        self._window = model.window
        self._gapless_from: dict[int, int] = {}  # by sequence; see _window_begins
        self._stretches: dict[int, tuple[Stretch, ...]] = {}  # by sequence; see place_media
        self._has_dimensions = lib.llama_model_rope_type(model.handle) in _ROPES_WITH_DIMENSIONS
        self._like = like
        self.params = params = self._context_params(config, num_cells)
        if model.memory_kind not in CUTTABLE:
            params.n_rs_seq = possible_rewind(max_rewind, min(params.n_batch, params.n_ubatch, params.n_ctx))
        self._context, self._memory = _make_context(model, params)
        self.num_cells = int(lib.llama_n_ctx(self._context))
        self.max_batch = int(lib.llama_n_batch(self._context))
        self.num_decodes = 0
        """How often llama.cpp was asked to compute a batch."""
        self.num_graphs_reused = 0
        """How often it could take the graph of the batch before: a batch of the same size and outputs."""
        self.max_whole = min(self.max_batch, int(lib.llama_n_ubatch(self._context)))
        """The most tokens of a micro-batch, and so the most embeddings that may attend to each other; see Slice."""
        self._past = PastStates(self._context, self._memory)
        self.max_rewind = self.max_batch if self.memory_kind in CUTTABLE else self._past.max_rewind
        self._adapters: dict[str, Adapter] = {}
        self._payloads = PayloadPool()
        self._make_batch()
        self.abort_flag = AbortFlag(self._context)

    def _context_params(self, config: EngineConfig, num_cells: int | None) -> Any:
        cells, like = num_cells or num_cells_of(self.model, config), None if self._like is None else self._like.params
        params = make_params(self.model, config, cells, self.attention.flash, like)
        params.n_batch, params.n_ubatch = config.batch, self.attention.micro_batch
        params.n_seq_max = self._first_branch + self.max_branches
        # Rows of logits to allocate. llama.cpp's default is n_batch of them, 300 MB at a vocabulary of 150,000.
        num_sampled = max(self.num_sequences, config.num_parallel * (1 + config.draft_tokens))
        self.max_outputs = min(num_sampled + MAX_SCORED, config.batch)
        # The cost of a row of logits, in tokens. A row uses the output weights (vocabulary × width). A token uses all
        # other weights.
        row_params = self.model.num_tokens * self.model.embedding_length
        self.row_cost = min(_MAX_ROW_COST, row_params / max(1, self.model.num_params - row_params))
        params.n_outputs_max = max(self.max_outputs, params.n_seq_max)  # llama.cpp asserts that each sequence has one
        params.n_threads = params.n_threads_batch = self.num_threads
        return params

    def _make_batch(self) -> None:
        # The arrays live as long as the runner; a decode only fills them. seq_id is an array of pointers, each to its
        # own element of one array of ids, or, for a token of several branches, to the first of their ids.
        size = self.max_batch
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._seq_ids = np.zeros(size, np.int32)
        self._flags = np.zeros(size, np.int8)
        self._num_ids = np.ones(size, np.int32)
        self._own_pointers = self._seq_ids.ctypes.data + np.arange(size, dtype=np.uint64) * 4
        self._pointers = self._own_pointers.copy()
        self._branch_ids = np.arange(self._first_branch, self._first_branch + self.max_branches, dtype=np.int32)
        self._batch = lib.llama_batch()
        self._batch.token = self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self._batch.pos = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self._batch.n_seq_id = self._num_ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self._batch.seq_id = self._pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        self._batch.logits = self._flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._row_batch = lib.llama_batch()  # of embeddings, which share the other arrays
        for field in ("pos", "n_seq_id", "seq_id", "logits"):
            setattr(self._row_batch, field, getattr(self._batch, field))
        self._outputs: list[int | Logits] = []  # rows of llama.cpp's buffer, or copies of rows that it has overwritten
        self._row = ctypes.c_float * self.num_vocab
        self._views: dict[int, Logits] = {}

    def set_num_threads(self, num_threads: int) -> None:
        """Use this many threads from the next decode on.

        Logits then differ by rounding, since llama.cpp sums attention in another order.
        """
        self.num_threads = num_threads
        lib.llama_set_n_threads(self._context, num_threads, num_threads)

    def close(self) -> None:
        """Free the context. The model stays loaded."""
        if self._context:
            lib.llama_free(self._context)
            self._context = None
            self.abort_flag.forget()

    def add_adapter(self, adapter: Adapter) -> None:
        self._adapters[adapter.id] = adapter

    def use_adapter(self, adapter: str) -> None:
        if adapter:
            self._adapters[adapter].use(self._context)
        else:
            lib.llama_set_adapters_lora(self._context, None, 0, None)

    def request_abort(self) -> None:
        """Make the running decode stop at its next graph node (CPU only). Any thread may call it."""
        self.abort_flag.set()

    def clear_abort(self) -> None:
        """Undo `request_abort`. Call it before reading commands, since a command may request a new abort."""
        self.abort_flag.clear()

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        self.submit(slices, min_tokens)
        self.wait()

    def wait(self) -> None:
        """Wait until the submitted batch is computed. GPU backends return early from llama_decode."""
        lib.llama_synchronize(self._context)
        self.num_graphs_reused = int(lib.llama_perf_context(self._context).n_reused)

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Begin to compute a batch of at most `max_batch` tokens.

        Raise OutOfCells before anything is computed, or InternalError. Raise DecodeCancelled after an
        interruption, or if cells ran out midway: parts may be computed, so cut each sequence to its known length.
        """
        self._past.begin()
        if any(part.rows is not None for part in slices):
            self._outputs = []
            if len(slices) > 1:
                self._decode_mixed(slices)
            else:
                self._decode_rows(slices[0])
            self._past.record(slices)
            return
        rows: dict[int, list[int | Logits]] = {}
        for call in self._past.calls(slices):
            is_first = not rows
            # The next call overwrites llama.cpp's buffer.
            rows = {seq_id: [self._row_at(row).copy() for row in each] for seq_id, each in rows.items()}
            try:
                rows |= self._decode_at_once(call, min_tokens)
            except OutOfCells:
                if is_first:
                    raise
                raise DecodeCancelled from None  # the calls before it were computed
        self._past.record(slices)
        self._outputs = [row for part in slices for row in rows[part.seq_id]]

    def _decode_at_once(self, slices: Sequence[Slice], min_tokens: int) -> dict[int, list[int | Logits]]:
        """Compute slices in one call of llama_decode. Return, by seq_id, which tokens of the batch have logits."""
        at = num_branches = 0
        rows: dict[int, list[int | Logits]] = {}
        for part in slices:
            end = at + len(part.tokens)
            self._tokens[at:end] = part.tokens
            if part.places:
                num_branches += self._branch_off(part, at, num_branches)
            else:
                begin = self._position(part.seq_id, part.start)
                self._positions[at:end] = np.arange(begin, begin + end - at)
                self._seq_ids[at:end] = part.seq_id
            self._flags[at : end - part.num_logits] = 0
            self._flags[end - part.num_logits : end] = 1
            rows[part.seq_id] = [*range(end - part.num_logits, end)]
            at = end
        status = self._compute(at, min_tokens)
        for branch in range(num_branches):
            self.clear(self._first_branch + branch)
        if num_branches:
            self._num_ids[:at], self._pointers[:at] = 1, self._own_pointers[:at]
        _check_status(status, at)
        return rows

    def _decode_mixed(self, slices: Sequence[Slice]) -> None:
        """Compute tokens beside the embeddings of a slice, as embeddings too, in one call of llama_decode."""
        assert self._token_rows is not None and all(part.is_causal and not part.places for part in slices)
        all_rows, all_positions, at = list[Rows](), list[NDArray[np.int32]](), 0
        for part in slices:
            count = len(part.tokens)
            all_rows.append(self._token_rows.of(part.tokens) if part.rows is None else part.rows)
            all_positions.append(self._positions_of(part, count))
            self._seq_ids[at : at + count] = part.seq_id
            self._flags[at : at + count] = 0
            self._flags[at + count - part.num_logits : at + count] = 1
            self._outputs += range(at + count - part.num_logits, at + count)
            at += count
        _check_status(self._compute_rows(np.concatenate(all_rows), np.concatenate(all_positions, axis=1)), at)

    def _positions_of(self, part: Slice, count: int) -> NDArray[np.int32]:
        """Return the positions of a slice in time, height, width, and a fourth dimension that no image here uses."""
        positions = np.zeros((4, count), np.int32)
        begin = self._position(part.seq_id, part.start)
        positions[:3] = begin + (np.arange(count) if part.positions is None else part.positions)
        return positions

    def _decode_rows(self, part: Slice) -> None:
        """Compute the embeddings of a slice."""
        rows = part.rows
        assert rows is not None
        assert part.is_causal or len(rows) <= self.max_whole, "llama.cpp computes them in one micro-batch"
        positions = self._positions_of(part, len(rows))
        if not part.is_causal:
            lib.llama_set_causal_attn(self._context, False)
        try:
            for start in range(0, len(rows), self.max_batch):
                end = min(len(rows), start + self.max_batch)
                self._seq_ids[: end - start], self._flags[: end - start] = part.seq_id, 0
                status = self._compute_rows(rows[start:end], positions[:, start:end])
                if status == _OUT_OF_CELLS and start:
                    raise DecodeCancelled
                _check_status(status, end - start)
        finally:
            if not part.is_causal:
                lib.llama_set_causal_attn(self._context, True)

    def _compute_rows(self, rows: Rows, positions: NDArray[np.int32]) -> int:
        """Compute embeddings in one call of llama_decode, and return its status. Their ids and flags are set."""
        batch, rows = self._row_batch, np.ascontiguousarray(rows, np.float32)
        flat = np.ascontiguousarray(positions if self._has_dimensions else positions[:1]).ravel()
        batch.n_tokens, batch.embd = len(rows), rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.pos = flat.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        self.num_decodes += 1
        status = int(lib.llama_decode(self._context, batch))
        lib.llama_synchronize(self._context)  # it reads the rows
        return status

    def allow_mix(self, token_rows: TokenRows | None) -> None:
        """Let batches have embeddings beside tokens, which get their embeddings from `token_rows`. None: forbid it."""
        self._token_rows, self.can_mix = token_rows, token_rows is not None

    def place_media(self, seq_id: int, stretches: Sequence[Stretch]) -> None:
        if stretches:
            self._stretches[seq_id] = tuple(stretches)
        else:
            self._stretches.pop(seq_id, None)

    def _position(self, seq_id: int, length: int) -> int:
        """Return the position behind a sequence's first `length` tokens."""
        return length - sum(each.end - each.start - each.num_positions for each in self._before(seq_id, length))

    def _before(self, seq_id: int, length: int) -> list[Stretch]:
        return [each for each in self._stretches.get(seq_id, ()) if each.start < length]

    def _branch_off(self, part: Slice, at: int, first: int) -> int:
        """Begin the branches of a slice's tree, whose tokens are at `at` in the batch. Return the number of branches.

        `first`: how many branches the batch has so far.
        """
        places, num_branches = np.array(part.places, np.int32), part.places[0].end
        for branch in range(num_branches if part.start else 0):
            # Not `copy`: that would cut each branch, at the end of a sequence that already ends there.
            if not self._past.put_in_place(part.seq_id):
                raise InternalError("llama.cpp could not copy the state of a sequence")
            lib.llama_memory_seq_cp(self._memory, part.seq_id, self._first_branch + first + branch, -1, -1)
        end = at + len(places)
        self._positions[at:end] = self._position(part.seq_id, part.start) + places[:, 0]
        self._num_ids[at:end] = places[:, 2] - places[:, 1]
        self._pointers[at:end] = self._branch_ids.ctypes.data + 4 * (first + places[:, 1]).astype(np.uint64)
        return num_branches

    def _compute(self, num_tokens: int, min_tokens: int) -> int:
        """Decode the batch's first `num_tokens`, with padding if it is useful and fits. Return llama.cpp's status."""
        num_added = num_to_fill(num_tokens, self._weight_padding, self.attention.micro_batch) if self._can_fill else 0
        num_added = max(num_added, min_tokens - num_tokens)
        end = num_tokens + num_added
        if num_added and end <= self.max_batch:
            added = slice(num_tokens, end)
            self._tokens[added] = self._flags[added] = 0
            self._positions[added], self._seq_ids[added] = range(num_added), self._spare
            self._batch.n_tokens = end
            self.num_decodes += 1
            status = int(lib.llama_decode(self._context, self._batch))
            self.clear(self._spare)
            if status != _OUT_OF_CELLS:
                return status
        self._batch.n_tokens = num_tokens
        self.num_decodes += 1
        return int(lib.llama_decode(self._context, self._batch))

    def logits(self, index: int) -> Logits:
        return self._row_at(self._outputs[index])

    def all_logits(self) -> Logits:
        if not all(isinstance(row, int) for row in self._outputs):
            return np.stack([self._row_at(row) for row in self._outputs])
        num_rows, address = len(self._outputs), ctypes.addressof(lib.llama_get_logits(self._context).contents)
        memory = memoryview((self._row * num_rows).from_address(address))
        rows: Logits = np.ndarray((num_rows, self.num_vocab), np.float32, memory)
        rows.flags.writeable = False
        return rows

    def _row_at(self, row: int | Logits) -> Logits:
        if not isinstance(row, int):
            return row
        address = ctypes.addressof(lib.llama_get_logits_ith(self._context, row).contents)
        view = self._views.get(address)
        if view is None:
            # llama.cpp returns few different addresses: the rows of its buffer. A cached view owns no memory, so an
            # unused one is harmless.
            view = np.ndarray(self.num_vocab, np.float32, memoryview(self._row.from_address(address)))
            view.flags.writeable = False
            self._views[address] = view
        return view

    def can_trim(self, seq_id: int, length: int) -> bool:
        held = self.length(seq_id)
        if length >= held:
            return length == held
        match self.memory_kind:
            case MemoryKind.FULL_ATTENTION:
                return not any(length < each.end for each in self._before(seq_id, length))
            case MemoryKind.SLIDING_WINDOW:
                # The next token attends to the window before it, so those cells must be present.
                return length == 0 or self._window_begins(seq_id) <= max(0, length - self._window)
            case _:
                return length == 0

    def trim(self, seq_id: int, length: int) -> bool:
        if not self.can_trim(seq_id, length):
            return False
        if length == 0:
            self._past.forget(seq_id)
        return bool(lib.llama_memory_seq_rm(self._memory, seq_id, self._position(seq_id, length), -1))

    def rewind(self, seq_id: int, length: int) -> bool:
        if self.memory_kind in CUTTABLE:
            return self.trim(seq_id, length)
        return self._past.go_back(seq_id, self._position(seq_id, length), self.length(seq_id) - length)

    def clear(self, seq_id: int) -> None:
        self._past.forget(seq_id)
        self._gapless_from.pop(seq_id, None)
        self._stretches.pop(seq_id, None)
        lib.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def copy(self, source: int, target: int, length: int) -> bool:
        if not self.can_trim(source, length) or not self._past.put_in_place(source):
            return False
        # Copy the whole sequence, then trim it: sliding windows hold only a part of [0, length), and recurrent states
        # have no ranges.
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        if source in self._gapless_from:
            self._gapless_from[target] = self._gapless_from[source]
        self.place_media(target, self._before(source, length))
        return self.trim(target, length)

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        held = self.length(seq_id)
        match self.memory_kind:
            case MemoryKind.FULL_ATTENTION:
                return end <= held
            case MemoryKind.SLIDING_WINDOW:
                # For a windowed layer llama.cpp writes only the cells in the window at the end.
                return end <= held and self._window_begins(seq_id) <= max(start, end - self._window)
            case _:
                return end == held  # a state exists only for its current position

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        if not self._past.put_in_place(seq_id):
            raise InternalError("llama.cpp could not read the state of a sequence")
        begin, behind = self._position(seq_id, start), self._position(seq_id, end)
        lib.llama_memory_seq_cp(self._memory, seq_id, self._spare, begin, behind)
        try:
            size = lib.llama_state_seq_get_size(self._context, self._spare)
            payload = self._payloads.take(size)
            pointer = np.frombuffer(payload, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            written = lib.llama_state_seq_get_data(self._context, pointer, size, self._spare)
        finally:
            self.clear(self._spare)
        if written == 0:
            raise InternalError(f"llama.cpp could not read positions {start} to {end} of a sequence out of its cells")
        return payload[:written].toreadonly()

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        self._payloads.max_free_bytes = max_bytes
        return self._payloads.prepare(num_bytes)

    def state_bytes(self, seq_id: int) -> int:
        if self.memory_kind in CUTTABLE:
            return 0
        return int(lib.llama_state_seq_get_size_ext(self._context, seq_id, lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY))

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        if not self._past.put_in_place(seq_id):
            return False
        source = np.frombuffer(payload, np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = lib.llama_state_seq_set_data(self._context, pointer, len(source), self._spare)
        self.place_media(self._spare, self._stretches.get(seq_id, ()))
        is_whole = bool(read == len(source)) and self.length(self._spare) == end
        if is_whole:
            start = self.length(seq_id)
            if end - start > self._window:
                self._gapless_from[seq_id] = end - self._window
            lib.llama_memory_seq_cp(self._memory, self._spare, seq_id, -1, -1)
        self.clear(self._spare)
        return is_whole

    def allow_shift(self) -> str:
        """Set `can_shift`, and return "". Return the reason if positions of this model's cells cannot be changed."""
        why = self._why_no_shift()
        self.can_shift = not why
        return why

    def _why_no_shift(self) -> str:
        architecture = self.model.metadata("general.architecture")
        if self.memory_kind is not MemoryKind.FULL_ATTENTION:
            return f"its memory is of the kind {self.memory_kind}, and only full attention can reuse a part of a prompt"
        if lib.llama_model_rope_type(self.model.handle) < 0:
            return "it has no rotary positions"
        if not lib.llama_memory_can_shift(self._memory):
            return "llama.cpp cannot change the positions of its cells"
        # llama.cpp turns all cells, most of them by an angle of 0. These two would change cells that did not move.
        if self.model.metadata(f"{architecture}.rope.scaling.type") == "yarn":
            return "its positions are scaled by YaRN"
        if self.params.type_k not in _UNROUNDED:
            return "its K cache is quantized; use --kv-type-k f16"
        return ""

    def restore_shifted(self, seq_id: int, payload: Payload, end: int, wanted: range, shift: int) -> bool:
        source = np.frombuffer(payload, np.uint8)
        pointer = source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        read = lib.llama_state_seq_set_data(self._context, pointer, len(source), self._spare)
        is_whole = bool(read == len(source)) and self.length(self._spare) == end
        if is_whole:
            lib.llama_memory_seq_rm(self._memory, self._spare, 0, wanted.start)
            lib.llama_memory_seq_rm(self._memory, self._spare, wanted.stop, -1)
            # Only the spare sequence has these cells: a position is that of a cell, for all of its sequences.
            lib.llama_memory_seq_add(self._memory, self._spare, wanted.start, wanted.stop, shift)
            lib.llama_memory_seq_cp(self._memory, self._spare, seq_id, -1, -1)
        self.clear(self._spare)
        return is_whole

    def apply_shift(self) -> None:
        """Let llama.cpp turn the keys of moved cells to their new positions.

        It does so at the beginning of a decode. If that is interrupted, some layers are turned, and the next decode
        would turn them again. So a decode of one token follows at once, which cannot be interrupted.
        """
        with self.abort_flag.ignored():
            self._tokens[0] = self._positions[0] = self._flags[0] = 0
            self._seq_ids[0], self._batch.n_tokens = self._spare, 1
            lib.llama_decode(self._context, self._batch)
            lib.llama_synchronize(self._context)
        self.clear(self._spare)

    def _window_begins(self, seq_id: int) -> int:
        """Return the position from which on the windowed layers have all cells of a sequence.

        Earlier cells may be missing: they were reused, or were outside the window when the sequence was saved.
        """
        oldest = int(lib.llama_memory_seq_pos_min(self._memory, seq_id))
        return max(oldest, self._gapless_from.get(seq_id, 0))

    def length(self, seq_id: int) -> int:
        length = int(lib.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        for each in self._stretches.get(seq_id, ()):
            if length <= each.start:
                break
            # In llama.cpp, an image's cells may all have its first position.
            length = each.end + max(0, length - each.start - each.num_positions)
        return length

    def is_end(self, token: int) -> bool:
        return self.model.is_end(token)
