"""Images and sounds through a real worker: decoded in its sandbox, kept over its death and over a restart."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import ChatPrompt, Finished, GenerateRequest, MemoryKind, Message, Prompt, SamplingParams, Usage
from edgeagent.worker.parent.pool.cache_shares import CacheShares
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.backends.reading import steps_of
from tests.models import make_tiny_model
from tests.peer.shelf import make_model
from tests.peer.shelf.shapes import SEEING_TWIN
from tests.projectors import NEEDS_LIBMTMD, Kind, make_projector, medium, png, question, wav
from tests.worker.support import found_at

pytestmark = NEEDS_LIBMTMD

LIMITS = SupervisionLimits(ping_interval_s=0.1, pong_timeout_s=5.0, max_crashes=10)
QUESTION = question("What is on this picture, and what is beside it?", medium(png()))
HEARD = question("What is said, and by whom?", medium(wav(), "audio"))

Make = Callable[[], LocalBackend]


@pytest.fixture
def kind() -> Kind:
    """The form of the embeddings; some tests choose others."""
    return "gemma3"


@pytest.fixture
async def make(kind: Kind, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[LocalBackend] = []
    for folder in ("models", "state"):
        (tmp_path / folder).mkdir()
    model = tmp_path / "models" / "seeing-F32.gguf"
    if kind == "qwen2vl_merger":
        make_model(model, SEEING_TWIN, "F32")
    else:
        make_tiny_model(model, MemoryKind.FULL_ATTENTION)
    make_projector(tmp_path / "models" / "mmproj-seeing-F16.gguf", kind)

    def make_one() -> LocalBackend:
        config = Config(engine=EngineConfig(threads=1, ctx=2048, flash_attention="off"))
        config = structs.replace(config, state_dir=tmp_path / "state")
        files = found_at(model)
        source = ModelSource(lambda _: files, validate_model, cache=CacheShares(config))
        made.append(LocalBackend(Pool(config, source, limits=LIMITS)))
        return made[-1]

    yield make_one
    for backend in made:
        await backend.stop()


def ask(name: str, prompt: Prompt = QUESTION, max_tokens: int = 24) -> GenerateRequest:
    return GenerateRequest(name, "", prompt, sampling=SamplingParams(temperature=0.0), max_tokens=max_tokens)


async def answer(
    backend: LocalBackend, request: GenerateRequest, *, kill_at: int | None = None
) -> tuple[list[int], Usage]:
    """Return an answer's tokens and usage. Kill the worker when there are `kill_at` tokens."""
    tokens, usage = list[int](), None
    async for step in steps_of(backend.generate, request):
        tokens += step.tokens
        if kill_at is not None and len(tokens) >= kill_at:
            pid = backend.models.statuses()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            kill_at = None
        for delta in step.deltas:
            usage = delta.usage if isinstance(delta, Finished) else usage
    assert usage is not None
    return tokens, usage


@pytest.mark.parametrize("kind", ["qwen2vl_merger", pytest.param("gemma3", marks=pytest.mark.slow(seconds=5))])
async def test_an_answer_about_an_image_goes_on_after_the_worker_is_killed(make: Make) -> None:
    backend = make()
    await backend.start()
    # So many tokens that the kill comes before the end, also if other work delays this process.
    whole, usage = await answer(backend, ask("whole", max_tokens=1200))
    assert len(whole) == 1200 and usage.num_prompt_tokens > 64
    (status,) = backend.models.statuses()
    assert status.info is not None and status.info.media == ("image",)
    continued, _ = await answer(backend, ask("killed", max_tokens=1200), kill_at=5)
    assert continued == whole
    assert backend.models.statuses()[0].num_restarts == 1


@pytest.mark.parametrize("kind", ["gemma3", pytest.param("ultravox", marks=pytest.mark.slow(seconds=3))])
async def test_a_medium_stays_known_after_a_restart(make: Make, kind: Kind) -> None:
    asked = HEARD if kind == "ultravox" else QUESTION
    first = make()
    await first.start()
    words, _ = await answer(first, ask("first", asked))
    await first.stop()
    second = make()
    await second.start()
    again, usage = await answer(second, ask("second", asked))
    assert again == words
    assert usage.num_cached_tokens > 64, "the medium's cells were read from disk"


async def test_a_long_question_about_another_image_is_answered_by_the_same_worker(make: Make) -> None:
    """The prompts differ in their images. The client is told how much was computed again, in words."""
    backend = make()
    await backend.start()
    long = "What is on this picture, and what is beside it? " * 12
    await answer(backend, ask("first", question(long, medium(png(1))), max_tokens=2))
    again, usage = await answer(backend, ask("second", question(long, medium(png(2))), max_tokens=2))
    assert again and usage.num_prompt_tokens > 350 and usage.num_cached_tokens < 64
    assert backend.models.statuses()[0].num_restarts == 0


async def test_a_malformed_image_fails_its_own_request_only(make: Make) -> None:
    backend = make()
    await backend.start()
    for name, data in (("short", png()[:200]), ("webp", b"RIFF\x10\0\0\0WEBPVP8 "), ("empty", b"")):
        with pytest.raises(InvalidRequest) as caught:
            await answer(backend, ask(name, question("What?", medium(data))))
        assert caught.value.param == "input"
    assert (await answer(backend, ask("good")))[0]
    assert backend.models.statuses()[0].num_restarts == 0


async def test_without_a_projector_the_error_says_what_is_missing(make: Make, tmp_path: Path) -> None:
    (tmp_path / "models" / "mmproj-seeing-F16.gguf").unlink()
    backend = make()
    await backend.start()
    with pytest.raises(NotSupported, match="edgeagent pull"):
        await answer(backend, ask("a"))


async def test_a_projector_that_ends_the_process_is_left_out(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "models" / "mmproj-seeing-F16.gguf"
    size = b"clip.vision.image_size" + struct.pack("<I", 4)  # a key, and the type of its value
    path.write_bytes(path.read_bytes().replace(size + struct.pack("<I", 64), size + struct.pack("<I", 96)))
    backend = make()
    await backend.start()
    assert (await answer(backend, ask("text", ChatPrompt((Message("user", "Hi"),)))))[0]
    with pytest.raises(NotSupported, match=r"reads only text \(.*mmproj-seeing-F16.gguf ended the process"):
        await answer(backend, ask("image"))
