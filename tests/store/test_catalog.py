"""The catalog file, and where the bundled files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.errors import ModelNotFound, StoreError
from edgeagent.store import catalog
from edgeagent.store.catalog import builtin_model, find_entry, load_catalog
from edgeagent.store.names import CatalogName, HubName, parse_name


def test_the_catalog_that_ships_is_well_formed() -> None:
    entries = load_catalog()
    assert "qwen2.5-0.5b" in entries
    for name, entry in entries.items():
        assert parse_name(name) == CatalogName(name)
        assert entry.license and entry.description
        assert str(parse_name(str(entry.hub_name()))) == str(entry.hub_name())
    assert find_entry(CatalogName("qwen2.5-1.5b")).draft == "qwen2.5-0.5b"


def test_an_entry_s_place_on_the_hub() -> None:
    entry = find_entry(CatalogName("qwen3-0.6b"))
    assert entry.hub_name() == HubName("Qwen/Qwen3-0.6B-GGUF", quant="Q8_0")
    assert entry.hub_name("Q4_0") == HubName("Qwen/Qwen3-0.6B-GGUF", quant="Q4_0")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelNotFound, match=r"no model is called gpt5: .* builtin, .*qwen2\.5-0\.5b"):
        find_entry(CatalogName("gpt5"))


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
    with pytest.raises(ModelNotFound, match="no model is called mistral:7b: "):
        find_entry(CatalogName("mistral", "7b"))
