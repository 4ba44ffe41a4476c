"""Model names: the meaning of each form; hostile names are refused before any file access."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgeagent.errors import InvalidRequest, ModelNotFound
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.names.parsing import (
    BuiltinName,
    CatalogName,
    HubName,
    LocalPath,
    ModelName,
    is_file_name,
    is_path,
    is_repo_name,
    parse_name,
)

MEANINGS: dict[str, ModelName] = {
    "builtin": BuiltinName(),
    "qwen2.5-0.5b": CatalogName("qwen2.5-0.5b"),
    "qwen2.5-0.5b:Q8_0": CatalogName("qwen2.5-0.5b", "Q8_0"),
    "org/repo": HubName("org/repo"),
    "Qwen/Qwen2.5-0.5B-Instruct-GGUF:q4_k_m": HubName("Qwen/Qwen2.5-0.5B-Instruct-GGUF", quant="q4_k_m"),
    "o/r:UD-Q4_K_XL": HubName("o/r", quant="UD-Q4_K_XL"),
    "org/repo/model.gguf": HubName("org/repo", file="model.gguf"),
    "org/repo/BF16/model-00001-of-00002.gguf": HubName("org/repo", file="BF16/model-00001-of-00002.gguf"),
    "hf.co/org/repo": HubName("org/repo"),
    "HF.co/org/repo:q4_0": HubName("org/repo", quant="q4_0"),
    "huggingface.co/org/repo:latest": HubName("org/repo"),
    "hf.co/org/repo/model.gguf": HubName("org/repo", file="model.gguf"),
    "org/repo:latest": HubName("org/repo"),
    "builtin:latest": BuiltinName(),
    "qwen3:4b-q8_0": CatalogName("qwen3", "4b-q8_0"),
    "/models/x.gguf": LocalPath(Path("/models/x.gguf")),
    "./x": LocalPath(Path("x")),
    "../x.gguf": LocalPath(Path("../x.gguf")),
    "C:\\models\\x.gguf": LocalPath(Path("C:\\models\\x.gguf")),
    "d:/models/x.gguf": LocalPath(Path("d:/models/x.gguf")),
}


@pytest.mark.parametrize("name, meaning", MEANINGS.items())
def test_meanings(name: str, meaning: ModelName) -> None:
    assert parse_name(name) == meaning


@pytest.mark.parametrize("name", ["org/repo", "org/repo:Q4_0", "org/repo/a/b.gguf"])
def test_hub_names_are_written_as_they_are_read(name: str) -> None:
    assert str(parse_name(name)) == name


def test_an_existing_file_is_a_path_whatever_it_looks_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x.gguf", "a/x.gguf", "a/b/x.GGUF"):
        (tmp_path / name).write_bytes(b"")
        assert parse_name(name) == LocalPath(Path(name))
    for name in ("none.gguf", "a/none.gguf"):
        with pytest.raises(ModelNotFound, match="there is no file"):
            parse_name(name)


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME" if sys.platform != "win32" else "USERPROFILE", str(Path("/home/someone")))
    assert parse_name("~/x.gguf") == LocalPath(Path("/home/someone/x.gguf"))


HOSTILE = [
    "",
    "a" * 5000,
    "nul\0byte",
    "new\nline",
    "bell\x07",
    "escape\x1b[31m",
    "c1\x85",
    "\ud800surrogate",
    "line\u2028separator",
    "//server/share/x.gguf",
    "\\\\server\\share\\x.gguf",
    "\\\\?\\C:\\x.gguf",
    "https://huggingface.co/org/repo",
    "file:///etc/passwd",
    "hf://org/repo",
    "org//repo",
    "hf.co/",
    "hf.co/repo",
    "hf.co//etc/passwd.gguf",
    "hf.co/../../x.gguf",
    "hf.co/~/x.gguf",
    "hf.co/hf.co/org/repo",
    ":latest",
    "/".join(["org", "repo", "..", "..", "x.gguf"]),
    "org/repo/../x.gguf",
    "org/repo/a/../../x.gguf",
    "org/repo/.hidden.gguf",
    "org/repo/x.gguf/",
    "org/repo//x.gguf",
    "org/repo/x.bin",
    "org/repo/CON.gguf",
    "org/repo/a\\..\\x.gguf",
    "org/repo/x.gguf:stream",
    "org/repo/folder /x.gguf",
    "org/repo/folder./x.gguf",
    "../repo/x/y.gguf:Q4" + "\n",
    "org/../x",
    "org/..",
    ".org/repo",
    "org./repo",
    "-org/repo",
    "org/repo-",
    "org/re..po",
    "org/re--po",
    "org/repo:",
    "org/repo:Q4:Q5",
    "org/repo:../x",
    "org/repo:" + "Q" * 40,
    "org/" + "r" * 97,
    "örg/repo",
    "org/rep\u043e",
    "org/repo/\uff0e\uff0e/x.gguf",
    "sha256:" + "a" * 64 + "/..",
    "name with space",
    "$(reboot)",
    "a;b",
    "*",
    "?",
    "..",
    ".",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_name(name)
    assert refused.value.message.isprintable()
    assert refused.value.param == "model"


@given(st.text(max_size=60))
@example("~0")  # does not mean a user's home
def test_any_text_is_a_name_or_refused(name: str) -> None:
    try:
        meaning = parse_name(name)
    except (InvalidRequest, ModelNotFound):
        return
    match meaning:
        case HubName(repo, _, file):
            assert is_repo_name(repo) and (file is None or is_file_name(file))
        case LocalPath() | CatalogName() | BuiltinName():
            pass


@given(st.text(alphabet="ab./\\-_: ~\0%CON", max_size=24))
def test_accepted_names_stay_inside_the_cache(text: str) -> None:
    root = Path("/cache").resolve()
    cache = HubCache(root)
    if is_repo_name(text):
        assert cache.repo_dir(text).resolve().parent == root
    if is_file_name(text):
        snapshot = cache.pointer("o/r", "a" * 40, "x").parent
        assert cache.pointer("o/r", "a" * 40, text).resolve().is_relative_to(snapshot)


def test_a_name_longer_than_a_file_s_can_be_is_no_path() -> None:
    assert not is_path(f"org/repo/{'x' * 600}.gguf")
