"""Which model on this machine drafts for another one, and the reason that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.store import drafts as drafts_module
from edgeagent.store.drafts import DraftFinder, FoundDraft
from edgeagent.store.gguf.header import read_header
from edgeagent.store.library import Library
from edgeagent.store.names.catalog import BuiltinModel, CatalogEntry
from tests.store.gguf_bytes import MODEL_KEYS, STRING, U32, GgufBytes, array, key
from tests.store.test_library import put

NONE = "no model on this machine has its vocabulary and at most a quarter of its size"


def padded(num_bytes: int, *more: bytes, keys: tuple[bytes, ...] = MODEL_KEYS) -> bytes:
    """Return a model with this many bytes more."""
    return GgufBytes(keys=(*keys, *more)).to_bytes() + bytes(num_bytes)


def of(architecture: str) -> tuple[bytes, ...]:
    others = [each for each in MODEL_KEYS if b"general.architecture" not in each]
    return (key("general.architecture", STRING, architecture), *others)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target.gguf"
    path.write_bytes(padded(100_000))
    return path


@pytest.fixture
def folder(store: StoreConfig) -> Path:
    assert store.models_dir is not None
    store.models_dir.mkdir(parents=True)
    return store.models_dir


def find(library: Library, name: str) -> FoundDraft:
    model = library.resolve(name)
    return DraftFinder(library).find(model, read_header(model.path))


def test_the_smallest_of_the_same_architecture_comes_first(library: Library, folder: Path, target: Path) -> None:
    assert find(library, str(target)) == FoundDraft(None, NONE)
    for name, content in {
        "other": padded(0, keys=of("qwen2")),
        "medium": padded(5000),
        "small": padded(3000),
        "large": padded(50_000),
    }.items():
        (folder / f"{name}.gguf").write_bytes(content)
    for name in ("small", "medium", "other"):
        path = folder / f"{name}.gguf"
        assert find(library, str(target)) == FoundDraft(path, f"{name} on this machine has the same vocabulary")
        path.unlink()
    assert find(library, str(target)) == FoundDraft(None, NONE)


@pytest.mark.parametrize(
    "content",
    [
        padded(0, key("llama.pooling_type", U32, 1)),
        padded(0, key("llama.ssm.state_size", U32, 8)),
        padded(0, key("general.type", STRING, "adapter")),
        padded(0).replace(b"<|end|>", b"<|fin|>"),
        padded(0, keys=tuple(each for each in MODEL_KEYS if b"tokens" not in each[:30])),
        b"GGUF" + bytes(500),
        b"",
        GgufBytes().header(),
    ],
    ids=["embedding", "recurrent", "adapter", "another token", "no vocabulary", "damaged", "empty", "truncated"],
)
def test_what_cannot_draft(library: Library, folder: Path, target: Path, content: bytes) -> None:
    (folder / "small.gguf").write_bytes(content)
    assert find(library, str(target)) == FoundDraft(None, NONE)


def test_headers_of_large_files_are_not_read(
    library: Library, folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (folder / f"m{number}.gguf").write_bytes(padded(60_000))
    monkeypatch.setattr(drafts_module, "current_header", lambda _: pytest.fail("a header was read"))
    assert find(library, str(target)) == FoundDraft(None, NONE)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (key("llama.pooling_type", U32, 2), "it generates no text"),
        (key("llama.ssm.state_size", U32, 8), "refused drafts cannot be removed from its memory"),
    ],
)
def test_models_that_have_no_draft(library: Library, folder: Path, tmp_path: Path, more: bytes, why: str) -> None:
    (folder / "small.gguf").write_bytes(padded(0))
    (tmp_path / "target.gguf").write_bytes(padded(100_000, more))
    assert find(library, str(tmp_path / "target.gguf")) == FoundDraft(None, why)


def test_a_damaged_file_of_the_hub_is_passed_over(library: Library, store: StoreConfig, target: Path) -> None:
    good = put(store, "good-Q8_0.gguf", padded(1000), repo="org/good")
    bad = put(store, "bad-Q8_0.gguf", padded(500), repo="org/bad")
    content = bytearray(bad.read_bytes())
    content[-1] ^= 1
    bad.resolve().write_bytes(content)
    found = find(library, str(target))
    assert found.path == good and "org/good" in found.why


def test_a_damaged_partner_is_told(library: Library, store: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "big": CatalogEntry("big", "org/big", "MIT", draft="little"),
        "little": CatalogEntry("little", "org/little", "MIT"),
    }
    monkeypatch.setattr("edgeagent.store.names.catalog.load_catalog", lambda: entries)
    for module in (drafts_module, "edgeagent.store.library"):
        monkeypatch.setattr(f"{getattr(module, '__name__', module)}.load_catalog", lambda: entries)
    put(store, "b.gguf", padded(100_000), repo="org/big")
    assert find(library, "big") == FoundDraft(None, "the catalog's partner little is not here: `edgeagent pull little`")
    path = put(store, "l.gguf", padded(90_000), repo="org/little")
    assert find(library, "big") == FoundDraft(path, "the catalog's partner")
    path.resolve().write_bytes(padded(90_001))
    found = find(library, "big")
    assert found.path is None and found.is_trouble
    assert found.why.startswith("the catalog's partner cannot be used: ") and "is damaged" in found.why


def test_the_bundled_draft(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = BuiltinModel(tmp_path / "m.gguf", tmp_path / "d.gguf")
    pair.path.write_bytes(padded(0))
    for module in ("library", "drafts"):
        monkeypatch.setattr(f"edgeagent.store.{module}.builtin_model", lambda: pair)
    assert find(library, "builtin") == FoundDraft(pair.draft, "the bundled draft")


def test_nothing_is_raised(library: Library, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(library, "found", fail)
    assert find(library, str(target)) == FoundDraft(None, "the search for a draft failed: a bug", is_trouble=True)


def test_a_token_more_is_a_difference(library: Library, folder: Path, target: Path) -> None:
    tokens = array("tokenizer.ggml.tokens", STRING, ["a", "b", "ab", "<|end|>", "more"])
    keys = tuple(tokens if b"ggml.tokens" in each[:30] else each for each in MODEL_KEYS if b"token_type" not in each)
    (folder / "small.gguf").write_bytes(padded(0, keys=keys))
    assert find(library, str(target)) == FoundDraft(None, NONE)
