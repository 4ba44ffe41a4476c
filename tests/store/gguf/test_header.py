"""The GGUF pre-validator: what it reads and refuses, and that it raises only its own errors."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelNotFound
from edgeagent.store.gguf import tables
from edgeagent.store.gguf.header import Split, read_header, validate_adapter, validate_model
from edgeagent.store.gguf.tables import TENSOR_TYPES
from edgeagent.store.names.parsing import split_paths
from tests.examples import examples
from tests.store.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    MODEL_KEYS,
    STRING,
    U8,
    U32,
    U64,
    GgufBytes,
    array,
    key,
    small_model,
    split_model,
    string,
    tensor,
)


def test_a_small_model_is_read(tmp_path: Path) -> None:
    path = GgufBytes().write(tmp_path / "small.gguf")
    header = validate_model(path)
    assert (header.architecture, header.name, header.quant) == ("llama", "small one", "Q8_0")
    assert (header.context_length, header.num_layers, header.num_vocab) == (512, 2, 4)
    assert header.num_params == 32 * 4 + 32
    assert dict(header.tensor_types) == {"Q8_0": 1, "F32": 1}
    assert (header.tokenizer, header.pre_tokenizer) == ("gpt2", "qwen2")
    assert header.split is None
    assert header.size_bytes == path.stat().st_size


def test_a_file_written_by_the_reference_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "reference.gguf"
    writer = reference.GGUFWriter(path, "qwen2")
    writer.add_name("Reference")
    writer.add_context_length(4096)
    writer.add_block_count(1)
    writer.add_token_list([f"token{index}" for index in range(1000)])
    writer.add_token_scores([0.0] * 1000)
    writer.add_custom_alignment(64)
    writer.add_tensor("token_embd.weight", np.zeros((1000, 8), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.ones(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = validate_model(path)
    assert (header.architecture, header.name, header.context_length) == ("qwen2", "Reference", 4096)
    assert (header.num_vocab, header.num_params, header.quant) == (1000, 8007, "F16")


def test_block_sizes_agree_with_the_reference_library() -> None:
    # 36, not 40: block_q8_1 has two 16-bit floats before its 32 quants (ggml-common.h); the library counts 32-bit ones.
    ours = {id_: (kind.block_elements, kind.block_bytes) for id_, kind in TENSOR_TYPES.items() if kind.name != "Q8_1"}
    theirs = {kind.value: sizes for kind, sizes in reference.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert {id_: sizes for id_, sizes in ours.items() if id_ in theirs} == theirs
    names = {kind.value: kind.name for kind in reference.GGMLQuantizationType}
    assert all(names.get(id_, kind.name) == kind.name for id_, kind in TENSOR_TYPES.items())


def test_strings_longer_than_the_window_and_arrays_across_windows(tmp_path: Path) -> None:
    long = "x" * (tables._WINDOW_BYTES + 5)
    tokens = ["t" * (index % 50) for index in range(80_000)]
    keys = (
        key("tokenizer.chat_template", STRING, long),
        array("tokenizer.ggml.tokens", STRING, [*tokens, long, "end"]),
        array("tokenizer.ggml.scores", F32, [0.0] * 80_002),
        *MODEL_KEYS[:5],
    )
    assert validate_model(GgufBytes(keys=keys).write(tmp_path / "long.gguf")).num_vocab == 80_002


def huge(name: str, element_kind: int, count: int) -> bytes:
    return array(name, element_kind, [], count=count)


BROKEN = {
    "empty file": (b"", "it is empty"),
    "another format": (b"PK\x03\x04" + bytes(100), "not a GGUF"),
    "only a magic": (b"GGUF", "ends at byte 4"),
    "version 1": (GgufBytes(version=1).to_bytes(), "version is 1"),
    "version 4": (GgufBytes(version=4).to_bytes(), "version is 4"),
    "big-endian": (GgufBytes(version=3 << 24).to_bytes(), "big-endian"),
    "too many keys": (GgufBytes(num_keys=1 << 62).to_bytes(), "metadata keys"),
    "more keys than there are": (GgufBytes(num_keys=500).to_bytes(), ""),
    "too many tensors": (GgufBytes(num_tensors=(1 << 64) - 1).to_bytes(), "tensors"),
    "more tensors than there are": (GgufBytes(num_tensors=50).to_bytes(), ""),
    "no tensors": (GgufBytes(tensors=()).to_bytes(), "no tensors"),
    "no architecture": (GgufBytes(keys=MODEL_KEYS[1:3]).to_bytes(), "architecture"),
    "architecture is a number": (GgufBytes(keys=(key("general.architecture", U32, 1),)).to_bytes(), "not text"),
    "architecture is a path": (GgufBytes(keys=(key("general.architecture", STRING, "../x"),)).to_bytes(), "not a name"),
    "key twice": (GgufBytes(keys=(*MODEL_KEYS, MODEL_KEYS[0])).to_bytes(), "twice"),
    "empty key": (GgufBytes(keys=(*MODEL_KEYS, key("", U8, 0))).to_bytes(), "empty"),
    "long key": (GgufBytes(keys=(*MODEL_KEYS, key("k" * 2000, U8, 0))).to_bytes(), "2000 bytes"),
    "key of 2**63 bytes": (GgufBytes(keys=(struct.pack("<Q", 1 << 63),)).to_bytes(), "bytes long"),
    "string of 2**64-1 bytes": (
        GgufBytes(keys=(string("k") + struct.pack("<IQ", STRING, (1 << 64) - 1),)).to_bytes(),
        "bytes long",
    ),
    "unknown value type": (GgufBytes(keys=(string("k") + struct.pack("<I", 13),)).to_bytes(), "unknown type 13"),
    "array of arrays": (GgufBytes(keys=(huge("k", ARRAY, 1),)).to_bytes(), "unknown type 9"),
    "array of unknown": (GgufBytes(keys=(huge("k", 77, 1),)).to_bytes(), "unknown type 77"),
    "array of 2**61 numbers": (GgufBytes(keys=(huge("k", U64, 1 << 61),)).to_bytes(), "ends at byte"),
    "array of 2**60 strings": (GgufBytes(keys=(huge("k", STRING, 1 << 60),)).to_bytes(), "strings"),
    "alignment 0": (GgufBytes(keys=(*MODEL_KEYS, key("general.alignment", U32, 0))).to_bytes(), "power of two"),
    "alignment 48": (GgufBytes(keys=(*MODEL_KEYS, key("general.alignment", U32, 48))).to_bytes(), "power of two"),
    "alignment is text": (GgufBytes(keys=(*MODEL_KEYS, key("general.alignment", STRING, "32"))).to_bytes(), "power"),
    "513 layers": (GgufBytes(keys=(MODEL_KEYS[0], key("llama.block_count", U32, 513))).to_bytes(), "513 layers"),
    "layers are a float": (GgufBytes(keys=(MODEL_KEYS[0], key("llama.block_count", F64, 2.0))).to_bytes(), "whole"),
    "tokens are numbers": (
        GgufBytes(keys=(MODEL_KEYS[0], array("tokenizer.ggml.tokens", U32, [1]))).to_bytes(),
        "array of strings",
    ),
    "tokens are one string": (
        GgufBytes(keys=(MODEL_KEYS[0], key("tokenizer.ggml.tokens", STRING, "a"))).to_bytes(),
        "array of strings",
    ),
    "fewer types than tokens": (
        GgufBytes(keys=(*MODEL_KEYS[:8], array("tokenizer.ggml.token_type", I32, [1]))).to_bytes(),
        "each of the 4 tokens",
    ),
    "scores are strings": (
        GgufBytes(keys=(*MODEL_KEYS[:8], array("tokenizer.ggml.scores", STRING, ["1"] * 4))).to_bytes(),
        "each of the 4 tokens",
    ),
    "long tensor name": (GgufBytes(tensors=(tensor("n" * 64, [32]),)).to_bytes(), "64 bytes"),
    "tensor twice": (GgufBytes(tensors=(tensor("a", [32]), tensor("a", [32], offset=128))).to_bytes(), "twice"),
    "five dimensions": (GgufBytes(tensors=(tensor("a", [1] * 5),)).to_bytes(), "5 dimensions"),
    "2**32-1 dimensions": (GgufBytes(tensors=(tensor("a", [], num_dims=(1 << 32) - 1),)).to_bytes(), "dimensions"),
    "negative dimension": (GgufBytes(tensors=(tensor("a", [(1 << 64) - 1]),)).to_bytes(), "too large"),
    "product overflow": (GgufBytes(tensors=(tensor("a", [1 << 32, 1 << 32]),)).to_bytes(), "too large"),
    "overflow beside a zero": (GgufBytes(tensors=(tensor("a", [1 << 62, 4, 0]),)).to_bytes(), "too large"),
    "bytes overflow": (GgufBytes(tensors=(tensor("a", [1 << 62]),)).to_bytes(), "largest possible offset"),
    "sum overflow": (
        GgufBytes(tensors=tuple(tensor(str(i), [1 << 60], offset=i << 62) for i in range(4))).to_bytes(),
        "largest possible offset",
    ),
    "unknown tensor type": (GgufBytes(tensors=(tensor("a", [32], 43),)).to_bytes(), "type 43"),
    "removed tensor type": (GgufBytes(tensors=(tensor("a", [32], 4),)).to_bytes(), "type 4"),
    "F64 tensor": (GgufBytes(tensors=(tensor("a", [32], 28),)).to_bytes(), "F64"),
    "I8 tensor": (GgufBytes(tensors=(tensor("a", [32], 24),)).to_bytes(), "I8"),
    "row is no multiple": (GgufBytes(tensors=(tensor("a", [33], 8),)).to_bytes(), "multiple"),
    "offset beyond": (GgufBytes(tensors=(tensor("a", [32], offset=1 << 40),)).to_bytes(), "offset"),
    "overlapping tensors": (GgufBytes(tensors=(tensor("a", [32]), tensor("b", [32]))).to_bytes(), "expected 128"),
    "data missing": (GgufBytes(data=b"").to_bytes(), "truncated"),
    "last byte missing": (GgufBytes().to_bytes()[:-1], "truncated"),
    "half a header": (GgufBytes().to_bytes()[:200], "inside its header"),
    "part 3 of 2": (
        GgufBytes(keys=(*MODEL_KEYS, key("split.no", U32, 2), key("split.count", U32, 2))).to_bytes(),
        "part 2 of 2",
    ),
    "a million parts": (
        GgufBytes(keys=(*MODEL_KEYS, key("split.no", U32, 0), key("split.count", U32, 10**6))).to_bytes(),
        "parts",
    ),
    "more tensors than layers can have": (
        GgufBytes(tensors=tuple(tensor(f"t{no}", [0]) for no in range(1281))).to_bytes(),
        "declares 1281 tensors, more than 1280 for its 2 layers",
    ),
    "60,000 extra tensors": (GgufBytes(num_tensors=60_002).to_bytes(), "60002 tensors, more than 16384"),
    "alignment is a long text": (
        GgufBytes(keys=(*MODEL_KEYS, key("general.alignment", STRING, "x" * 5000))).to_bytes(),
        f"general.alignment is '{'x' * 40}'…, not",
    ),
    "layers are text": (
        GgufBytes(keys=(MODEL_KEYS[0], key("llama.block_count", STRING, "two\x1b[31m"))).to_bytes(),
        r"llama.block_count is 'two\x1b[31m', not a whole number",
    ),
    "layers are an array": (
        GgufBytes(keys=(MODEL_KEYS[0], array("llama.block_count", U32, [2, 2, 2]))).to_bytes(),
        "llama.block_count is an array of 3 numbers, not a whole number",
    ),
    "layers are true": (
        GgufBytes(keys=(MODEL_KEYS[0], key("llama.block_count", BOOL, True))).to_bytes(),
        "llama.block_count is true, not a whole number",
    ),
    "long key twice": (GgufBytes(keys=(key("k" * 1000, U8, 0),) * 2).to_bytes(), f"metadata key '{'k' * 40}'… is"),
    "a million KV heads by layer": (
        GgufBytes(keys=(*MODEL_KEYS, huge("llama.attention.head_count_kv", U32, 10**6))).to_bytes(),
        "1000000 elements",
    ),
    "split without a number": (GgufBytes(keys=(*MODEL_KEYS, key("split.count", U32, 2))).to_bytes(), "part None"),
}


@pytest.mark.parametrize("content, why", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadFailed) as refused:
        validate_model(path)
    assert why in refused.value.message
    assert str(path) in refused.value.message


def test_reading_a_hostile_header_needs_little_memory(tmp_path: Path) -> None:
    keys = tuple(key(f"{index:0>1000}", U64, index) for index in range(8192))
    path = GgufBytes(keys=keys).write(tmp_path / "keys.gguf")
    tracemalloc.start()
    try:
        read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 << 20


def test_too_many_strings_in_all_arrays_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_ARRAY_STRINGS", 5)
    keys = (array("one", STRING, ["", "", ""]), array("two", STRING, ["", "", ""]))
    with pytest.raises(ModelLoadFailed, match="more than 5 strings"):
        read_header(GgufBytes(keys=keys).write(tmp_path / "strings.gguf"))


def test_a_header_larger_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tables._WINDOW_BYTES
    monkeypatch.setattr(tables, "MAX_HEADER_BYTES", limit)
    keys = (key("text", STRING, "x" * limit),)
    with pytest.raises(ModelLoadFailed, match=f"larger than {limit}"):
        read_header(GgufBytes(keys=keys).write(tmp_path / "large.gguf"))


def test_control_characters_in_the_name_are_not_passed_on(tmp_path: Path) -> None:
    keys = (MODEL_KEYS[0], key("general.name", STRING, "\x1b[31mred\x07 \u202eevil"))
    name = validate_model(GgufBytes(keys=keys).write(tmp_path / "name.gguf")).name
    assert name.isprintable() and "red" in name


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no file"):
        validate_model(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFound):
        validate_model(GgufBytes().write(tmp_path / "file.gguf") / "below")


@pytest.mark.parametrize("name", ["nul\0.gguf", "x" * 5000])
def test_an_impossible_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises((ModelLoadFailed, ModelNotFound)):
        validate_model(tmp_path / name)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed):
        validate_model(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(ModelLoadFailed, match="regular file"):
            validate_model(tmp_path / "pipe.gguf")
    for device in (Path("/dev/zero"), Path("/dev/random")):
        if device.exists():
            with pytest.raises(ModelLoadFailed, match="regular file"):
                validate_model(device)


def write_parts(folder: Path, parts: list[bytes]) -> list[Path]:
    paths = [folder / f"big-{no:05d}-of-{len(parts):05d}.gguf" for no in range(1, len(parts) + 1)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    return paths


def test_a_split_model_is_read_as_one(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, split_model(3))
    header = validate_model(paths[0])
    assert header.split == Split(0, 3, 3)
    assert (header.num_tensors, header.num_params) == (3, 96)
    assert header.size_bytes == sum(path.stat().st_size for path in paths)
    assert split_paths(paths[2]) == tuple(paths)


def test_split_models_that_do_not_fit_together(tmp_path: Path) -> None:
    parts = split_model(3)
    paths = write_parts(tmp_path, parts)
    with pytest.raises(ModelLoadFailed, match=r"give the first part, big-00001-of-00003\.gguf"):
        validate_model(GgufBytes(keys=(*MODEL_KEYS, *SECOND_OF_THREE)).write(paths[1]))
    with pytest.raises(ModelLoadFailed, match="missing: part 2 of 3"):
        paths[1].unlink()
        validate_model(paths[0])
    paths[1].write_bytes(parts[2])
    with pytest.raises(ModelLoadFailed, match="is not part 2 of 3"):
        validate_model(paths[0])
    paths[1].write_bytes(parts[1][:-1])
    with pytest.raises(ModelLoadFailed, match=r"00002-of-00003.gguf cannot be loaded: the file is truncated"):
        validate_model(paths[0])
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(parts[0])
    with pytest.raises(ModelLoadFailed, match="its name does not end in"):
        validate_model(renamed)
    lacking = write_parts(tmp_path, split_model(2, num_tensors=7))
    with pytest.raises(ModelLoadFailed, match="declares 7 tensors in 2 parts, which hold 2"):
        validate_model(lacking[0])


SECOND_OF_THREE = (key("split.no", U32, 1), key("split.count", U32, 3))


def test_split_names() -> None:
    assert split_paths(Path("a/m-00002-of-00002.gguf")) == (
        Path("a/m-00001-of-00002.gguf"),
        Path("a/m-00002-of-00002.gguf"),
    )
    for name in ("m.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-00001-of-99999.gguf", "m-1-of-2.gguf"):
        assert split_paths(Path(name)) == (Path(name),)


def outcome(path: Path) -> str:
    try:
        validate_model(path)
    except ModelLoadFailed:
        return "refused"
    return "read"


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_after_a_good_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + content)
    assert outcome(path) == "refused"


INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]


def mutate(content: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(mutated))
        match rng.randrange(5):
            case 0:
                mutated[at] = rng.choice(INTERESTING)
            case 1:
                mutated[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]))
            case 2:
                del mutated[at : at + rng.randint(1, 40)]
            case 3:
                mutated[at:at] = mutated[max(0, at - 20) : at]
            case _:
                mutated[at] ^= 1 << rng.randrange(8)
        if not mutated:
            return b""
    return bytes(mutated)


def test_mutated_files_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(8127)
    seeds = [GgufBytes().header() + bytes(400), small_model(), split_model(2)[0]]
    outcomes = set()
    path = tmp_path / "mutated.gguf"
    for index in range(1000):
        path.write_bytes(mutate(seeds[index % len(seeds)], rng))
        outcomes.add(outcome(path))
    assert outcomes == {"read", "refused"}


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = GgufBytes().to_bytes()
    path = tmp_path / "cut.gguf"
    for num_bytes in range(len(content)):
        path.write_bytes(content[:num_bytes])
        assert outcome(path) == "refused"


def test_adapters_and_models_are_told_apart(tmp_path: Path) -> None:
    adapter = GgufBytes(keys=(*MODEL_KEYS, key("general.type", STRING, "adapter"))).write(tmp_path / "a.gguf")
    model = GgufBytes(keys=(*MODEL_KEYS, key("general.type", STRING, "model"))).write(tmp_path / "m.gguf")
    assert validate_adapter(adapter).kind == "adapter"
    assert validate_model(model).kind == "model"
    with pytest.raises(ModelDamaged, match=r"a\.gguf is an adapter, not a model: name it under \[models"):
        validate_model(adapter)
    with pytest.raises(ModelDamaged, match=r"its general\.type is 'model', not 'adapter'"):
        validate_adapter(model)
