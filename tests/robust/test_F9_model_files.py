"""F9: well-formed files with false values: refused by the reader, or by a worker that may die of them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import EdgeAgentError
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import GenerateRequest, MemoryKind, SamplingParams, TokenPrompt, WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from tests.backends.reading import steps_of
from tests.conftest import TinyModel
from tests.store.gguf_bytes import BOOL, F32, I32, STRING, U8, U32, array, key
from tests.worker.support import eventually, found_at

LIMIT_S = 60.0
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
LIMITS = SupervisionLimits(ping_interval_s=0.1, load_retry_s=60.0)


Changes = dict[str, bytes | None]


def with_keys(content: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return a model file with metadata replaced, added, or (None) removed; its tensors do not change."""
    _, _, num_tensors, num_keys = struct.unpack_from("<4sIQQ", content)
    at, keys = 24, {}
    for _ in range(num_keys):
        start = at
        (length,) = struct.unpack_from("<Q", content, at)
        name = content[at + 8 : at + 8 + length].decode()
        at = _after_value(content, at + 8 + length)
        keys[name] = content[start:at]
    tables_at = at
    for _ in range(num_tensors):
        (length,) = struct.unpack_from("<Q", content, at)
        at += 8 + length
        (num_dims,) = struct.unpack_from("<I", content, at)
        at += 4 + 8 * num_dims + 12
    data_at = -(-at // 32) * 32
    changed = {name: value for name, value in {**keys, **changes}.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(changed)) + b"".join(changed.values())
    head += content[tables_at:at]
    return head + bytes(-len(head) % 32) + content[data_at:]


def _after_value(content: bytes, at: int) -> int:
    (kind,) = struct.unpack_from("<I", content, at)
    at += 4
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", content, at)[0])
    if kind != 9:
        return at + _SIZES[kind]
    element, count = struct.unpack_from("<IQ", content, at)
    at += 12
    for _ in range(count):
        at += 8 + int(struct.unpack_from("<Q", content, at)[0]) if element == STRING else _SIZES[element]
    return at


def tokens_of(content: bytes) -> list[str]:
    """Return a file's vocabulary."""
    at = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    (count,) = struct.unpack_from("<Q", content, at)
    at += 8
    tokens = []
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", content, at)
        tokens.append(content[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return tokens


def cases(content: bytes) -> dict[str, Changes]:
    """Return changes to a good model's metadata, one for each class of bug that other readers of such files had."""
    tokens: list[object] = list(tokens_of(content))
    n = len(tokens)

    def number(name: str, value: int) -> Changes:
        return {name: key(name, U32, value)}

    def real(name: str, value: float) -> Changes:
        return {name: key(name, F32, value)}

    def vocabulary(changed: list[object]) -> Changes:
        return {"tokenizer.ggml.tokens": array("tokenizer.ggml.tokens", STRING, changed)}

    def types(kind: int) -> Changes:
        return {"tokenizer.ggml.token_type": array("tokenizer.ggml.token_type", I32, [kind] * n)}

    def merges(changed: list[object]) -> Changes:
        return {"tokenizer.ggml.merges": array("tokenizer.ggml.merges", STRING, changed)}

    def text(name: str, value: str) -> Changes:
        return {name: key(name, STRING, value)}

    return {
        "special tokens beyond the vocabulary": {
            name: key(name, U32, 0xFFFF_FFF0)
            for name in (f"tokenizer.ggml.{each}_token_id" for each in ("bos", "eos", "eot", "padding", "unknown"))
        },
        "a special token that is negative": {
            "tokenizer.ggml.eos_token_id": key("tokenizer.ggml.eos_token_id", I32, -5)
        },
        "a special token that is text": text("tokenizer.ggml.eos_token_id", "x"),
        "byte tokens that are no bytes": vocabulary(["<0x-1>", "<0xZZ>", "<0xFFF>", *tokens[3:]]) | types(6),
        "all tokens are bytes": types(6) | text("tokenizer.ggml.model", "llama"),
        "a token of 4 MB": vocabulary(["x" * (4 << 20), *tokens[1:]]),
        "empty tokens": vocabulary([""] * n),
        "tokens that are no UTF-8": {
            "tokenizer.ggml.tokens": array("tokenizer.ggml.tokens", STRING, [b"\xff\xfe", *tokens[1:]])
        },
        "every token alike": vocabulary(["same"] * n),
        "kinds of tokens that do not exist": types(-1),
        "no vocabulary": {"tokenizer.ggml.tokens": None},
        "more tokens than rows": vocabulary([*tokens, *(f"more{no}" for no in range(5000))])
        | {"tokenizer.ggml.token_type": None},
        "fewer tokens than rows": vocabulary(tokens[:4]) | {"tokenizer.ggml.token_type": None},
        "scores that are no numbers": text("tokenizer.ggml.model", "llama")
        | {"tokenizer.ggml.scores": array("tokenizer.ggml.scores", F32, [float("nan")] * n)},
        "merges of one piece": merges(["a", "", " ", "  ", "a b c"]),
        "merges of what is no token": merges(["zzzz yyyy"] * 100),
        "merges that are numbers": {"tokenizer.ggml.merges": array("tokenizer.ggml.merges", U32, [1, 2])},
        "a tokenizer that does not exist": text("tokenizer.ggml.model", "evil"),
        "a pre-tokenizer that does not exist": text("tokenizer.ggml.pre", "evil"),
        "an UGM tokenizer with a torn character map": text("tokenizer.ggml.model", "t5")
        | {
            "tokenizer.ggml.scores": array("tokenizer.ggml.scores", F32, [0.0] * n),
            "tokenizer.ggml.precompiled_charsmap": array(
                "tokenizer.ggml.precompiled_charsmap", U8, [0xFF, 0xFF, 0xFF, 0x7F, 1]
            ),
        },
        "no heads": number("llama.attention.head_count", 0),
        "no KV heads": number("llama.attention.head_count_kv", 0),
        "more KV heads than heads": number("llama.attention.head_count_kv", 4096),
        "heads that do not divide the width": number("llama.attention.head_count", 3),
        "heads of two thousand million": number("llama.attention.head_count", 0x7FFF_FFFF),
        "no width": number("llama.embedding_length", 0),
        "a width of 2**31": number("llama.embedding_length", 1 << 31),
        "keys as wide as nothing": number("llama.attention.key_length", 0),
        "keys of a million": number("llama.attention.key_length", 1 << 20),
        "a context of nothing": number("llama.context_length", 0),
        "a context of 2**32-1": number("llama.context_length", 0xFFFF_FFFF),
        "no layers": number("llama.block_count", 0),
        "layers that are not there": number("llama.block_count", 512),
        "fewer layers than there are": number("llama.block_count", 1),
        "experts that are not there": number("llama.expert_count", 100_000) | number("llama.expert_used_count", 8),
        "more experts used than there are": number("llama.expert_count", 2) | number("llama.expert_used_count", 200),
        "an epsilon that is no number": real("llama.attention.layer_norm_rms_epsilon", float("nan")),
        "an epsilon below nothing": real("llama.attention.layer_norm_rms_epsilon", -1.0),
        "a rotation of nothing": real("llama.rope.freq_base", 0.0),
        "rotated dimensions of a million": number("llama.rope.dimension_count", 1 << 20),
        "a window of nothing": number("llama.attention.sliding_window", 0),
        "another architecture": text("general.architecture", "mamba"),
        "an architecture that does not exist": text("general.architecture", "evil"),
        "a pooling that does not exist": number("llama.pooling_type", 77),
        "no causal mask": {"llama.attention.causal": key("llama.attention.causal", BOOL, False)},
        "a chat template without an end": text("tokenizer.chat_template", "{% for"),
    }


async def outcome(path: Path) -> str:
    """Load a file as the daemon does, and use it; return the outcome."""
    config = Config(engine=EngineConfig(threads=1))
    pool = Pool(config, ModelSource(lambda _: found_at(path), validate_model), limits=LIMITS)
    backend = LocalBackend(pool)
    async with asyncio.timeout(LIMIT_S):
        await backend.start()
        try:
            await eventually(
                lambda: pool.statuses()[0].state not in (WorkerState.STARTING, WorkerState.STOPPED), LIMIT_S
            )
            (status,) = pool.statuses()
            if status.state is not WorkerState.READY:
                return f"not loaded: {status.cause}"
            request = GenerateRequest(
                id="r", model="", prompt=TokenPrompt((1, 2, 3)), sampling=SamplingParams(temperature=0.0), max_tokens=4
            )
            try:
                async for _ in steps_of(backend.generate, request):
                    pass
            except EdgeAgentError as error:
                return f"failed: {error.message}"
            return "answers"
        finally:
            await backend.stop()


def write(path: Path, content: bytes, changes: Mapping[str, bytes | None] = {}) -> None:
    path.write_bytes(with_keys(content, changes))


async def check(content: bytes, names: Iterable[str], path: Path) -> None:
    """Try the files one after another; each answers, or says why it cannot. Then a good one answers."""
    for name in names:
        write(path, content, cases(content)[name])
        came = await outcome(path)
        assert came == "answers" or len(came.partition(": ")[2]) > 20, (name, came)
    write(path, content)
    assert await outcome(path) == "answers"


async def test_a_few_files_that_lie_in_what_they_mean(tiny_model: TinyModel, tmp_path: Path) -> None:
    content = tiny_model(MemoryKind.FULL_ATTENTION).read_bytes()
    await check(content, ["special tokens beyond the vocabulary", "merges that are numbers"], tmp_path / "m.gguf")


@pytest.mark.slow(seconds=45)
@pytest.mark.timeout(600)
async def test_all_files_that_lie_in_what_they_mean(tiny_model: TinyModel, tmp_path: Path) -> None:
    content = tiny_model(MemoryKind.FULL_ATTENTION).read_bytes()
    await check(content, cases(content), tmp_path / "m.gguf")
