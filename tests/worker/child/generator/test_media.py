"""Images and sounds through a real llama.cpp, with tiny random projectors: the same words as llama.cpp's own path."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import psutil
import pytest
from msgspec import structs
from PIL import Image

from edgeagent import cache_folder
from edgeagent.config import EngineConfig
from edgeagent.engine.cache.disk.files import Buffer, Files
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.projector import MediaChunk, OpenMedium, Projector
from edgeagent.engine.media_tokens import is_medium
from edgeagent.engine.runner import Rows, Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    MediaPlace,
    MemoryKind,
    Message,
    RenderPrompt,
    SamplingParams,
    TextPrompt,
    Tier,
)
from edgeagent.worker.child.generator import host as host_module
from edgeagent.worker.child.generator import media as media_module
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.generator.media import ChunkEmbeddings, Reading
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.child.process import _PromptPreparer, start_block_store
from edgeagent.worker.protocol import DiskCache, Load, Submit
from tests.integrity import check_integrity
from tests.local_template import open_here
from tests.media_corpus import exif, with_exif
from tests.models import make_tiny_model
from tests.patience import patient
from tests.peer.shelf import make_model
from tests.peer.shelf.shapes import SEEING_TWIN, TWINS, Shape
from tests.projectors import NEEDS_LIBMTMD, TILE_TOKENS, Kind, make_projector, medium, png, question, wav

pytestmark = NEEDS_LIBMTMD

# For each form of embeddings, a memory: a window, a state, and full attention.
MODELS: dict[str, tuple[Kind, MemoryKind | Shape]] = {
    "gemma3": ("gemma3", MemoryKind.SLIDING_WINDOW),
    "lfm2": ("lfm2", MemoryKind.HYBRID),
    "smolvlm": ("idefics3", MemoryKind.FULL_ATTENTION),
    "ultravox": ("ultravox", MemoryKind.FULL_ATTENTION),
    # The positions of these have dimensions.
    "qwen2vl": ("qwen2vl_merger", SEEING_TWIN),
    "qwen35": ("qwen2vl_merger", TWINS["qwen3.5-0.8b"]),  # and a state
}
NAMES = tuple(MODELS)
SEEING = tuple(name for name in MODELS if name != "ultravox")  # a sound takes longer: its spectra are of half a minute
WITH_DIMENSIONS = ("qwen2vl", "qwen35")


class Asker:
    """A loaded model that answers questions, one after the other or beside each other."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        block_tokens: int = 0,
        has_draft: bool = False,
        disk: DiskCache | None = None,
        **engine: Any,
    ) -> None:
        """`name`: one of MODELS. `block_tokens`: the tokens of a full block; 0: as many as the host chooses.

        `has_draft`: the model drafts for itself, without its projector.
        """
        kind, memory = MODELS[name]
        path = folder / f"{name}.gguf"
        self.projector_path = folder / f"mmproj-{name}.gguf"
        if not path.exists():  # else it is loaded again
            if isinstance(memory, MemoryKind):
                make_tiny_model(path, memory, controls=TILE_TOKENS if kind == "idefics3" else ())
            else:
                make_model(path, memory, "F32")
            make_projector(self.projector_path, kind)
        options: dict[str, Any] = {"threads": 1, "ctx": 2048, "flash_attention": "off"}
        config = EngineConfig(**(options | engine))
        draft = str(path) if has_draft else None
        load = Load("tiny", str(path), draft, config, projector_path=str(self.projector_path), disk=disk)
        with pytest.MonkeyPatch.context() as patch:
            if block_tokens:
                patch.setattr(host_module, "choose_block_tokens", lambda _: block_tokens)
            self.host = Host(load, open_model(load), open_here, store=None if disk is None else start_block_store(disk))
        self.media = [medium(wav(n), "audio") if kind == "ultravox" else medium(png(n)) for n in range(3)]
        self._num = 0

    def begin(self, prompt: ChatPrompt, **fields: Any) -> Sequence:
        self._num += 1
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest(f"r{self._num}", "", prompt, **{"sampling": sampling, "max_tokens": 12, **fields})
        return self.host.engine.add(self.host.prepare(request).spec)

    def finish(self, *sequences: Sequence) -> list[list[int]]:
        left = {sequence.id for sequence in sequences}
        while left:
            for output in self.host.engine.step():
                assert output.error is None
                left -= {output.sequence.id} if output.is_last else set()
            check_integrity(self.host.engine)
        return [list(sequence.tokens[sequence.num_prompt :]) for sequence in sequences]

    def ask(self, prompt: ChatPrompt, **fields: Any) -> list[int]:
        return self.finish(self.begin(prompt, **fields))[0]

    def close(self) -> None:
        self.host.close()


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Callable[..., Asker]]:
    made: list[Asker] = []

    def make(name: str, **options: Any) -> Asker:
        made.append(Asker(tmp_path, name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def words_of_libmtmd(asker: Asker, prompt: ChatPrompt, num: int) -> list[int]:
    """Return the greedy words of llama.cpp's own path: mtmd_tokenize and mtmd_helper_eval_chunks of a whole prompt."""
    host = asker.host
    assert host.media is not None
    projector, mtmd = host.media.projector, host.media.projector._mtmd
    text = host.answer(RenderPrompt(prompt)).text.encode()
    bitmaps = [projector._bitmap(each.data) for each in prompt.media]
    chunks = mtmd.mtmd_input_chunks_init()
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 1024, 512, 512, 1
    params.flash_attn_type, params.n_threads_batch = 0, 1
    context = lib.llama_init_from_model(host.model.handle, params)
    position, words = ctypes.c_int32(), list[int]()
    try:
        whole = mtmd.mtmd_input_text(text, len(text), True, True)
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        assert mtmd.mtmd_tokenize(projector._handle, chunks, ctypes.byref(whole), array, len(bitmaps)) == 0
        assert not mtmd.mtmd_helper_eval_chunks(
            projector._handle, context, chunks, 0, 0, 512, True, ctypes.byref(position)
        )
        while True:
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (host.model.num_tokens,))
            words.append(int(logits.argmax()))
            if len(words) == num:
                return words
            token, place = ctypes.c_int32(words[-1]), ctypes.c_int32(position.value + len(words) - 1)
            batch = lib.llama_batch_get_one(ctypes.pointer(token), 1)
            batch.pos = ctypes.pointer(place)
            assert lib.llama_decode(context, batch) == 0
    finally:
        lib.llama_free(context)
        mtmd.mtmd_input_chunks_free(chunks)
        for bitmap in bitmaps:
            mtmd.mtmd_bitmap_free(bitmap)


class TestWords:
    @pytest.mark.daily(3, seconds=0.3)
    @pytest.mark.parametrize("name", NAMES)
    def test_they_are_those_of_libmtmd(self, asker: Callable[..., Asker], name: str) -> None:
        own = asker(name)
        two = question("Compare.", *own.media[:2], offsets={1: 4})
        for prompt in (question("What is this?", own.media[0]), *([two] if name in SEEING else [])):
            assert own.ask(prompt, cache=CachePolicy(read=False, write=False)) == words_of_libmtmd(own, prompt, 12)

    @pytest.mark.daily(2, seconds=1)
    @pytest.mark.parametrize("name", NAMES)
    def test_they_are_the_same_from_the_cache_and_beside_others(self, asker: Callable[..., Asker], name: str) -> None:
        own = asker(name)
        first, other = question("What is it?", own.media[0]), question("What is it?", own.media[1])
        apart = CachePolicy(read=False, write=False, partition=f"{name} apart")
        plain = [own.ask(each, cache=apart) for each in (first, other)]
        assert plain[0] != plain[1], "the model sees its images"
        text = ChatPrompt((Message("user", "Count to ten, then to twenty, then to thirty."),))
        streams = [own.begin(text, max_tokens=40), own.begin(first), own.begin(other)]
        assert own.finish(*streams)[1:] == plain
        again = own.begin(first)
        assert own.finish(again) == [plain[0]]
        assert again.num_cached >= again.spec.media[-1].end
        another = own.begin(question("And what else?", own.media[0]))
        own.finish(another)
        assert another.num_cached >= another.spec.media[-1].end, "a second question about the same medium"

    @pytest.mark.daily(2, seconds=0.3)
    @pytest.mark.parametrize("name", SEEING)
    def test_they_are_the_same_from_blocks_in_memory(
        self, asker: Callable[..., Asker], name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Blocks of 32 tokens end within each medium, except where its cells have one position."""
        monkeypatch.setattr(PrefixStore, "_computed_s", lambda *_: math.inf)  # so that blocks are always restored
        own = asker(name, block_tokens=32)
        prompts = [question("What is it?", own.media[0]), question("Which is it?", own.media[1], own.media[0])]
        words = [own.ask(prompt) for prompt in prompts]
        slots = own.host.engine.prefixes.slots
        while own.host.engine.has_work:
            own.host.engine.step()
        while slots.evict_one():
            pass
        assert slots.num_cells_used == 0
        again = [own.begin(prompt) for prompt in prompts]
        assert own.finish(*again) == words
        for sequence in again:
            assert sequence.num_restored.get("host", 0) >= sequence.spec.media[0].end

    @pytest.mark.parametrize("name", SEEING)
    def test_another_client_finds_nothing(self, asker: Callable[..., Asker], name: str) -> None:
        own = asker(name)
        prompt = question("Whose is it?", own.media[2])
        words = own.ask(prompt, cache=CachePolicy(partition="alice"))
        sequence = own.begin(prompt, cache=CachePolicy(partition="bob"))
        assert own.finish(sequence) == [words]
        assert sequence.num_cached < sequence.spec.media[0].end

    @pytest.mark.parametrize("name", SEEING)
    def test_a_purge_forgets_them(self, asker: Callable[..., Asker], name: str) -> None:
        own = asker(name)
        assert own.host.media is not None
        own.ask(question("Once.", own.media[2]), cache=CachePolicy(partition="carol"))
        own.host.engine.purge("carol")
        sequence = own.begin(question("Once.", own.media[2]), cache=CachePolicy(partition="carol"))
        num_before = own.host.media.encoder.num_encoded
        own.finish(sequence)
        assert sequence.num_cached == 0 and own.host.media.encoder.num_encoded > num_before


def test_tiles_have_text_between_them(asker: Callable[..., Asker]) -> None:
    own = asker("smolvlm")
    assert own.host.media is not None
    shown = "".join(
        f"[{part.num_tokens}]" if isinstance(part, MediaChunk) else b"".join(map(own.host.model.piece, part)).decode()
        for part in own.host.media.projector.layout(png())
    )
    mark = "<fake_token_around_image>"
    assert shown == (
        f"{mark}<row_1_col_1>[16]{mark}<row_1_col_2>[16]\n{mark}<row_2_col_1>[16]{mark}<row_2_col_2>[16]"
        f"\n\n{mark}<global-img>[16]{mark}"
    )


def test_an_image_is_encoded_once(asker: Callable[..., Asker]) -> None:
    own = asker("gemma3")
    assert own.host.media is not None
    fresh = medium(png(99))
    num_before = own.host.media.encoder.num_encoded
    for text in ("What is this?", "And this?", "And now?"):
        own.ask(question(text, fresh))
    assert own.host.media.encoder.num_encoded == num_before + 1


def test_no_thread_of_an_encoding_stays(asker: Callable[..., Asker]) -> None:
    """If there are more of OpenMP's threads than cores, those of a step sleep at its barriers."""
    own, process = asker("gemma3", threads=2), psutil.Process()
    own.ask(ChatPrompt((Message("user", "Count."),)))
    num_threads = process.num_threads()
    own.ask(question("What is it?", own.media[0]))
    deadline_s = time.monotonic() + patient(5)
    while process.num_threads() > num_threads and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert process.num_threads() == num_threads


@pytest.mark.parametrize("name", WITH_DIMENSIONS)
def test_a_long_image_is_computed_in_parts(asker: Callable[..., Asker], name: str) -> None:
    """Its 80 tokens have few positions in time, and a step has at most 32."""
    own = asker(name, batch=32)
    prompt = question("What is this?", own.media[0])
    sequence, seen = own.begin(prompt), set[int]()
    while sequence.num_output == 0:
        own.host.engine.step()
        check_integrity(own.host.engine)
        seen.add(sequence.num_rows)
    assert len(seen - {0}) >= 2
    assert own.finish(sequence) == [words_of_libmtmd(own, prompt, 12)]


@pytest.mark.parametrize("name", WITH_DIMENSIONS)
def test_an_image_whose_part_was_interrupted_is_computed_again(
    asker: Callable[..., Asker], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = asker(name, batch=32)
    prompt = question("What is this?", own.media[0])
    words = own.ask(prompt, cache=CachePolicy(read=False, write=False))
    sequence = own.begin(prompt, cache=CachePolicy(read=False))
    while sequence.num_rows == 0:
        own.host.engine.step()
    own.host.runner.request_abort()
    own.host.engine.step()
    own.host.runner.clear_abort()
    assert sequence.num_rows == 0 and sequence.is_one_whole
    assert own.finish(sequence) == [words]


@pytest.mark.daily(1, seconds=0.4)
@pytest.mark.parametrize("name", ["smolvlm", "ultravox", "qwen2vl"])
def test_a_stream_has_a_token_in_each_batch_of_embeddings(
    asker: Callable[..., Asker], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = asker(name, batch=32)
    prompt, text = question("What is it?", own.media[0]), ChatPrompt((Message("user", "Count."),))
    words = own.ask(text, max_tokens=40, cache=CachePolicy(read=False, write=False))
    sizes, submit = list[int](), own.host.runner.submit

    def note(slices: Items[Slice], min_tokens: int = 0) -> None:
        sizes.extend(len(slices) for part in slices if part.rows is not None)
        submit(slices, min_tokens)

    monkeypatch.setattr(own.host.runner, "submit", note)
    monkeypatch.setattr(CostModel, "prefill_s", lambda *_: 0.0)  # so that no chunk gets a context of its own
    stream = own.begin(text, max_tokens=40)
    while stream.num_output < 3:
        own.host.engine.step()
    sequence = own.begin(prompt)
    for span in sequence.spec.media:  # else the stream may end before they are computed
        while span.embeddings.take() is None:
            span.embeddings.wait(1.0)
    assert own.finish(stream, sequence) == [words, words_of_libmtmd(own, prompt, 12)]
    assert sizes and set(sizes) == {2}


@pytest.mark.daily(2, seconds=1)
@pytest.mark.parametrize("name", ["gemma3", "lfm2", "ultravox", "qwen2vl", "qwen35"])
def test_a_chunk_has_a_context_of_its_own_beside_streams(
    asker: Callable[..., Asker], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that attend to each other, have positions in several dimensions, or neither. Two, one behind the other."""
    own = asker(name)
    prompt = question("Compare.", *own.media[:2], offsets={1: 4})
    monkeypatch.setattr(CostModel, "prefill_s", lambda *_: 10.0)  # so that a stream would wait too long
    stream = own.begin(ChatPrompt((Message("user", "Count."),)), max_tokens=500)
    while stream.num_output < 3:
        own.host.engine.step()
    sequence, aside = own.begin(prompt, cache=CachePolicy(read=False)), set[int]()
    while sequence.num_output < 12:
        own.host.engine.step()
        check_integrity(own.host.engine)
        if own.host.engine._side.sequence is sequence and sequence.span is not None:
            aside.add(sequence.span.start)
    assert aside == {span.start for span in sequence.spec.media}
    assert list(sequence.tokens[sequence.num_prompt :])[:12] == words_of_libmtmd(own, prompt, 12)
    own.host.engine.cancel(stream.id)


@pytest.mark.parametrize("name", ["gemma3", "qwen2vl"])
def test_a_draft_model_drafts_behind_an_image(asker: Callable[..., Asker], name: str) -> None:
    own = asker(name, has_draft=True)
    for prompt in (question("Once, twice, once, twice.", own.media[0]), question("Twice.", *own.media[:2])):
        sequence = own.begin(prompt, draft_tokens=3, max_tokens=24)
        assert own.finish(sequence) == [words_of_libmtmd(own, prompt, 24)]
        assert sequence.num_drafted > 0


@pytest.mark.daily(1, seconds=0.4)
@pytest.mark.parametrize("name", ["gemma3", "qwen2vl", "smolvlm"])
def test_an_image_is_not_encoded_again_after_a_restart(asker: Callable[..., Asker], name: str, tmp_path: Path) -> None:
    """The text before the image differs, so its cells are of no use."""
    disk = DiskCache(str(tmp_path / "blocks"), b"s" * 32, 1 << 30, 0, 86400.0, 0, close_s=patient(30))
    before = Asker(tmp_path, name, disk=disk)
    before.ask(question("Once.", before.media[0]))
    another = question("Before it, and behind it.", before.media[0], offsets={0: 10})
    words = before.ask(another, cache=CachePolicy(read=False, write=False))
    before.close()
    own = asker(name, disk=disk)
    assert own.host.media is not None
    sequence = own.begin(another)
    assert own.finish(sequence) == [words]
    assert sequence.num_cached < sequence.spec.media[0].start and own.host.media.encoder.num_encoded == 0


def test_a_full_disk_costs_no_answer_about_an_image(
    asker: Callable[..., Asker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tried = 0

    def write_half(_: Files, file: BinaryIO, parts: Iterable[Buffer]) -> None:
        nonlocal num_tried
        num_tried += 1
        file.write(b"".join(map(bytes, parts))[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Files, "write", write_half)
    disk = DiskCache(str(tmp_path / "blocks"), b"s" * 32, 1 << 30, 0, 86400.0, 0, close_s=patient(30))
    own = Asker(tmp_path, "gemma3", disk=disk)
    prompt, elsewhere = question("Once.", own.media[0]), question("Behind it.", own.media[0], offsets={0: 10})
    words = [own.ask(each, cache=CachePolicy(read=False, write=False)) for each in (prompt, elsewhere)]
    assert own.host.media is not None
    num_before = own.host.media.encoder.num_encoded
    assert [own.ask(each) for each in (prompt, elsewhere)] == words
    assert own.host.media.encoder.num_encoded == num_before + 1, "memory still has the embeddings"
    own.close()
    assert num_tried and not list(cache_folder.scan(tmp_path / "blocks"))
    assert not list((tmp_path / "blocks").glob("tmp-*")), "nothing half remains"
    monkeypatch.undo()
    again = asker("gemma3", disk=disk)
    assert [again.ask(each) for each in (prompt, elsewhere)] == words


def test_an_image_that_is_not_wanted_any_more_is_not_encoded_to_its_end(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = asker("gemma3")
    assert own.host.media is not None
    encoder, encode = own.host.media.encoder, OpenMedium.encode
    has_begun, goes_on = threading.Event(), threading.Event()
    asks = list[Callable[[], bool]]()

    def encode_later(opened: OpenMedium, index: int, is_wanted: Callable[[], bool]) -> Rows | None:
        asks.append(is_wanted)
        has_begun.set()
        goes_on.wait()
        return encode(opened, index, is_wanted)

    monkeypatch.setattr(OpenMedium, "encode", encode_later)
    sequence = own.begin(question("What is it?", own.media[0]))
    while not has_begun.is_set():
        own.host.engine.step()
    assert asks[0]()
    own.host.engine.cancel(sequence.id)
    del sequence
    assert not asks[0](), "also if no step follows"
    goes_on.set()
    own.ask(question("What is it?", own.media[1]))
    assert encoder.num_interrupted == 1 and encoder.num_encoded == 1


def test_the_encoder_ends_between_two_nodes(tmp_path: Path) -> None:
    own = Asker(tmp_path, "gemma3")
    assert own.host.media is not None
    opened = own.host.media.projector.open(own.media[0].data)
    asked = list[bool]()

    def is_wanted() -> bool:
        asked.append(len(asked) < 2)
        return asked[-1]

    try:
        assert opened.num_chunks == 1
        assert opened.encode(0, is_wanted) is None and asked == [True, True, False]
        whole = opened.encode(0)
        assert whole is not None and np.array_equal(whole, np.asarray(opened.encode(0)))
    finally:
        opened.close()
        own.close()


def test_a_penalty_counts_only_the_tokens_of_texts(asker: Callable[..., Asker]) -> None:
    own = asker("lfm2")
    sampling = SamplingParams(temperature=0.0, repeat_penalty=1.5, presence_penalty=0.5)
    assert not any(map(is_medium, own.ask(question("Again and again.", own.media[0]), sampling=sampling)))


def test_media_that_cannot_be_read_are_refused(asker: Callable[..., Asker]) -> None:
    own = asker("gemma3")
    webp = b"RIFF\x10\0\0\0WEBPJUNK" + bytes(20)
    for data, why in ((webp, "WebP"), (b"GIF89a", "incomplete"), (png()[:60], "damaged"), (b"hello", "no image")):
        with pytest.raises(InvalidRequest, match=why) as caught:
            own.begin(question("What?", medium(data)))
        assert caught.value.param == "input"
    with pytest.raises(NotSupported, match="tiny takes images, and no other media"):
        own.begin(question("What?", medium(wav(), "audio")))
    twice = structs.replace(question("What?", own.media[0]), media=())
    with pytest.raises(InvalidRequest, match="no medium 0"):
        own.begin(twice)


@pytest.mark.parametrize("kind", ["gemma3", "lfm2"])
def test_media_count_as_tokens(asker: Callable[..., Asker], kind: Kind) -> None:
    own = asker(kind)
    prompt = question("What is this, and this?", own.media[0], medium(png(5)), offsets={1: 12})
    answer = own.host.answer(RenderPrompt(prompt))
    prepared = own.host.prepare(GenerateRequest("r", "", prompt))
    assert len(answer.tokens) == len(prepared.spec.prompt)
    assert answer.text.count("<__media__>") == 2
    with pytest.raises(InvalidRequest, match="damaged"):
        own.host.answer(RenderPrompt(question("What?", medium(png()[:60]))))


def read_all(host: Host, request: GenerateRequest) -> list[int]:
    """Have the media of a request read, as the preparer does. Return how many were read after each."""
    readings: SimpleQueue[Reading] = SimpleQueue()
    nums, reading = list[int](), None
    while (begin := host.next_to_read(request, reading)) is not None:
        begin(readings.put, lambda: True)
        reading = readings.get(timeout=patient(10))
        nums.append(reading.num_read)
    return nums


def test_the_images_of_a_prompt_are_read_one_at_a_time(asker: Callable[..., Asker]) -> None:
    lfm2 = asker("lfm2")
    one, two, three = lfm2.media
    request = GenerateRequest("r", "", question("which?", one, one, two, three), cache=CachePolicy(partition="client"))
    assert read_all(lfm2.host, request) == [1, 3, 4], "the second is known by then"
    assert read_all(lfm2.host, request) == []
    assert read_all(lfm2.host, structs.replace(request, prompt=TextPrompt("hi"))) == []
    damaged = GenerateRequest("r", "", question("which?", medium(png()[:200]), one))
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        read_all(lfm2.host, damaged)


def count_opened(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets each file that is decoded from now on."""
    assert host.media is not None
    opened, open_medium = list[bytes](), host.media.projector.open

    def opens(data: bytes) -> OpenMedium:
        opened.append(data)
        return open_medium(data)

    monkeypatch.setattr(host.media.projector, "open", opens)
    return opened


@pytest.mark.parametrize(("max_bytes", "num_opened"), [(128 << 20, 3), (0, 6)])
def test_the_images_of_a_prompt_are_decoded_once_if_they_are_small_enough(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch, max_bytes: int, num_opened: int
) -> None:
    """If no more than the latest one may be kept, the others are decoded again to be encoded."""
    monkeypatch.setattr(media_module, "_MAX_OPEN_BYTES", max_bytes)
    lfm2 = asker("lfm2")
    opened = count_opened(lfm2.host, monkeypatch)
    prompt = question("which?", lfm2.media[2], lfm2.media[1], lfm2.media[0])
    read_all(lfm2.host, GenerateRequest("r", "", prompt))
    lfm2.ask(prompt)
    assert len(opened) == num_opened


def test_a_cancelled_request_closes_its_own_image_only(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    lfm2 = asker("lfm2")
    assert lfm2.host.media is not None
    encoder, encode = lfm2.host.media.encoder, OpenMedium.encode
    has_begun, goes_on = threading.Event(), threading.Event()

    def encode_later(opened: OpenMedium, index: int, is_wanted: Callable[[], bool]) -> Rows | None:
        has_begun.set()
        goes_on.wait()
        return encode(opened, index, is_wanted)

    monkeypatch.setattr(OpenMedium, "encode", encode_later)
    opened = count_opened(lfm2.host, monkeypatch)
    prompts = [question("What is it?", image) for image in lfm2.media[:2]]
    for prompt in prompts:
        read_all(lfm2.host, GenerateRequest("r", "", prompt))
    sequence = lfm2.begin(prompts[0])
    while not has_begun.is_set():
        lfm2.host.engine.step()
    waiting = ChunkEmbeddings(lfm2.media[2], "", 0, encoder.ask)
    assert waiting.take() is None
    lfm2.host.engine.cancel(sequence.id)
    del sequence, waiting
    goes_on.set()
    lfm2.ask(prompts[1])
    assert encoder.num_interrupted == 1
    assert opened == [image.data for image in lfm2.media[:2]]


def test_an_urgent_image_is_decoded_before_those_that_came_first(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the image that is decoded now, and no image of a cancelled request is decoded."""
    lfm2 = asker("lfm2")
    goes_on, prepared = threading.Event(), list[str]()
    opened, decode = count_opened(lfm2.host, monkeypatch), Projector._bitmap

    def decode_later(projector: Projector, data: bytes) -> Any:
        goes_on.wait()
        return decode(projector, data)

    monkeypatch.setattr(Projector, "_bitmap", decode_later)
    loop = GeneratorLoop(lfm2.host, SimpleQueue())
    monkeypatch.setattr(loop, "hand_in", lambda submit, _: prepared.append(submit.request.id))
    preparer, queue = _PromptPreparer(lfm2.host, loop), loop.to_prepare
    images = [*lfm2.media, medium(png(3))]
    tiers = [Tier.BATCH] * 3 + [Tier.REALTIME]
    for index, (image, tier) in enumerate(zip(images, tiers, strict=True)):
        queue.put(Submit(GenerateRequest(f"r{index}", "", question("what?", image), tier=tier), 0.0))
        preparer._prepare(*queue.get())
    queue.drop("r2")
    goes_on.set()
    while len(prepared) < 3:
        preparer._prepare(*queue.get())
    assert opened == [images[index].data for index in (0, 3, 1)]
    assert sorted(prepared) == ["r0", "r1", "r3"]


def test_a_medium_that_is_not_wanted_any_more_is_not_decoded(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    lfm2, readings = asker("lfm2"), SimpleQueue[Reading]()
    assert lfm2.host.media is not None
    monkeypatch.setattr(lfm2.host.media.projector, "open", None)
    begin = lfm2.host.next_to_read(GenerateRequest("r", "", question("what?", lfm2.media[0])), None)
    assert begin is not None
    begin(readings.put, lambda: False)
    assert readings.get(timeout=patient(10)) == Reading(1, ())


def test_each_medium_that_is_read_is_progress(asker: Callable[..., Asker]) -> None:
    """A chunk may wait for many of them, and the daemon ends a worker that makes no progress."""
    lfm2 = asker("lfm2")
    assert lfm2.host.media is not None
    encoder = lfm2.host.media.encoder
    read_all(lfm2.host, GenerateRequest("r", "", question("which?", *lfm2.media)))
    encoder.stop()
    encoder.join()
    assert lfm2.host.num_encoder_steps == 3


@pytest.mark.daily(2, seconds=0.3)
@pytest.mark.parametrize("name", SEEING)
def test_an_image_whose_embeddings_are_kept_is_not_decoded(
    asker: Callable[..., Asker], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its form follows from its size. A photo that lies on its side is as wide as it is when it is upright."""
    disk = DiskCache(str(tmp_path / "blocks"), b"s" * 32, 1 << 30, 0, 86400.0, 0, close_s=patient(30))
    first, photo = Asker(tmp_path, name, disk=disk), BytesIO()
    Image.new("RGB", (96, 40)).save(photo, "JPEG")
    lying = medium(with_exif(photo.getvalue(), exif(6)))
    prompts = [question("What is this?", first.media[0]), question("And this?", lying)]
    words = [first.ask(prompt) for prompt in prompts]
    first.close()
    again = asker(name, disk=disk)
    assert again.host.media is not None
    monkeypatch.setattr(again.host.media.projector, "open", None)
    for prompt, expected in zip(prompts, words, strict=True):
        assert read_all(again.host, GenerateRequest("r", "", prompt)) == []
        assert again.ask(prompt) == expected
    apart = GenerateRequest("r", "", prompts[0], cache=CachePolicy(partition="another"))
    monkeypatch.undo()
    assert read_all(again.host, apart) == [1], "another client's image is decoded"


def test_what_another_preprocessing_made_of_a_file_is_not_found(
    asker: Callable[..., Asker], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = asker("lfm2").host.media
    assert reader is not None
    before = reader.read(medium(png()), "")
    monkeypatch.setattr(media_module, "PREPROCESSING", b"another")
    after = reader.read(medium(png()), "")
    (span,) = before.spans
    assert before.tokens[: span.start] == after.tokens[: span.start]
    assert before.tokens[span.start : span.end] != after.tokens[span.start : span.end]


def test_a_note_stands_for_an_image_of_a_tool_that_cannot_be_read(asker: Callable[..., Asker]) -> None:
    lfm2 = asker("lfm2")
    whole, damaged = lfm2.media[0], medium(png()[:200])
    places = (MediaPlace(2, 0), MediaPlace(5, 1), MediaPlace(7, 0))
    shown = Message("tool", "a screen", tool_call_id="c", media=places)
    prompt = ChatPrompt((Message("user", "look"), shown), media=(whole, damaged))
    request = GenerateRequest("r", "", prompt)
    assert read_all(lfm2.host, request) == [1, 2]
    assert lfm2.host.prepare(request).spec.media
    assert lfm2.host.media is not None
    noted = lfm2.host.media.with_notes(prompt, "").messages[1]
    assert noted.content == "a scr[image left out: the file cannot be read]een"
    assert [place.index for place in noted.media] == [0, 0]
    assert noted.content[noted.media[1].offset :] == "n"


def test_the_model_says_what_it_takes(asker: Callable[..., Asker]) -> None:
    assert asker("gemma3").host.info.media == ("image",)
    own = asker("ultravox")
    assert own.host.info.media == ("audio",) and own.host.info.projector == str(own.projector_path)


def test_an_unsuitable_projector_leaves_the_model_its_texts(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION)
    projector = make_projector(tmp_path / "mmproj.gguf", "lfm2", width=32)
    load = Load("tiny", str(path), None, EngineConfig(threads=1, ctx=256), projector_path=str(projector))
    host = Host(load, open_model(load), open_here)
    try:
        assert host.info.media == () and any("mismatch between text model" in line for line in host.warnings)
        with pytest.raises(NotSupported, match="the projector"):
            host.prepare(GenerateRequest("r", "", question("What?", medium(png()))))
        assert host.prepare(GenerateRequest("r", "", ChatPrompt((Message("user", "Hi"),)))).spec.prompt
    finally:
        host.close()


@pytest.mark.parametrize("micro_batch", [32, 512])
def test_a_whole_image_has_room_in_a_step(tmp_path: Path, micro_batch: int) -> None:
    """Its 64 tokens attend to each other, so the micro-batch is raised, but not beyond --batch."""
    own = Asker(tmp_path, "gemma3", batch=micro_batch)
    try:
        if micro_batch >= 64:
            assert own.host.runner.max_whole >= 64
            own.ask(question("What?", own.media[0]))
        else:
            with pytest.raises(InvalidRequest, match="load the model with a larger --batch"):
                own.begin(question("What?", own.media[0]))
    finally:
        own.close()
