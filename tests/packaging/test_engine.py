"""The script that builds the portable engine: names, tags, licences and archives. Nothing is compiled."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
import zipfile
from base64 import urlsafe_b64encode
from email.parser import HeaderParser
from pathlib import Path
from types import ModuleType

import pytest

from edgeagent.doctor.plug_ins import PLUG_INS, PORTABLE
from edgeagent.engine.llama import bindings
from tests.portable_engine import build_script

COMMIT = "0c1e570"
MAX_BYTES = 25_000_000


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script, which copies libraries as they are."""
    module = build_script()
    monkeypatch.setattr(module.subprocess, "run", lambda *arguments, **options: None)
    return module


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The parts of the bindings' sdist that a wheel takes."""
    folder = tmp_path / "llama_cpp_python-0.3.36"
    for name, text in {
        "PKG-INFO": "Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.3.36\nLicense: MIT\n\nBindings.\n",
        "LICENSE.md": "licence of the bindings",
        "vendor/llama.cpp/LICENSE": "licence of llama.cpp",
        "llama_cpp/__init__.py": '__version__ = "0.3.36"\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """A build folder."""
    ending = ".dll" if sys.platform == "win32" else ".so"
    for name in ("libllama", "libggml", "libggml-cpu-x64", "libggml-vulkan"):
        path = tmp_path / "build" / "bin" / f"{name}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    header = tmp_path / "build/ggml/src/ggml-version.h"
    header.parent.mkdir(parents=True)
    header.write_text(f'#define GGML_VERSION "0.25.3"\n#define GGML_COMMIT  "{COMMIT}-dirty"\n')
    return tmp_path / "build"


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_the_engine_has_the_bindings_as_they_are(
    script: ModuleType, sources: Path, compiled: Path, tmp_path: Path
) -> None:
    script.lay_out_engine(tmp_path / "tree", "0.3.36", compiled, sources)
    path = script.write_wheel(tmp_path / "tree", tmp_path / "out")
    version = f"0.3.36{PORTABLE}"
    # pip ignores the local part where a requirement has none, so this one meets ==0.3.36.
    assert re.fullmatch(rf"llama_cpp_python-{re.escape(version)}-py3-none-\w+\.whl", path.name)
    wheel = zipfile.ZipFile(path)
    assert wheel.read("llama_cpp/__init__.py") == (sources / "llama_cpp/__init__.py").read_bytes()
    assert HeaderParser().parsestr(metadata(wheel, "METADATA"))["Version"] == version
    assert "licence of llama.cpp" in metadata(wheel, "licenses/LICENSE-llama.cpp")
    assert "licence of the bindings" in metadata(wheel, "licenses/LICENSE-llama-cpp-python")


def test_a_plug_in_lies_where_the_engine_looks(
    script: ModuleType, sources: Path, compiled: Path, tmp_path: Path
) -> None:
    commit = script.read_commit(compiled)
    assert commit == COMMIT
    script.lay_out_plug_in(tmp_path / "tree", "vulkan", "0.3.36", commit, compiled, sources)
    (library,) = bindings.plug_ins(tmp_path / "tree" / bindings.PLUG_IN_FOLDER / COMMIT)
    assert library.stem == "libggml-vulkan"
    path = script.write_wheel(tmp_path / "tree", tmp_path / "out")
    header = HeaderParser().parsestr(metadata(zipfile.ZipFile(path), "METADATA"))
    assert header["Name"] == "edgeagent-engine-vulkan"
    assert header["Requires-Dist"] == f"llama-cpp-python==0.3.36{PORTABLE}"


def test_an_archive_is_the_same_each_time_and_lists_its_files(script: ModuleType, tmp_path: Path) -> None:
    info = tmp_path / "tree" / "engine-1.dist-info"
    info.mkdir(parents=True)
    (info / "WHEEL").write_text("Tag: py3-none-manylinux_2_34_x86_64\nTag: py3-none-manylinux2014_x86_64\n")
    (info / "RECORD").write_text("an old one")
    (tmp_path / "tree" / "libx.so.1").write_bytes(b"\x7fELF")
    first, second = (script.write_wheel(tmp_path / "tree", tmp_path / name) for name in ("a", "b"))
    assert first.name == "engine-1-py3-none-manylinux_2_34_x86_64.manylinux2014_x86_64.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as wheel:
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(metadata(wheel, "RECORD")))}
        assert rows.pop("engine-1.dist-info/RECORD") == ["", ""]
        assert rows.keys() == set(wheel.namelist()) - {"engine-1.dist-info/RECORD"}
        for name, (digest, size) in rows.items():
            expected = urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
            assert (digest, int(size)) == (f"sha256={expected}", len(wheel.read(name)))
        assert wheel.getinfo("libx.so.1").external_attr >> 16 & 0o777 == 0o755


def test_a_build_without_a_commit_is_refused(script: ModuleType, compiled: Path) -> None:
    (compiled / "ggml/src/ggml-version.h").write_text('#define GGML_COMMIT  "unknown"\n')
    with pytest.raises(script.BuildError, match="is git on the PATH"):
        script.read_commit(compiled)


def test_script_and_program_agree(script: ModuleType) -> None:
    assert f"+{script.LOCAL}" == PORTABLE
    assert script.PLUG_INS == bindings.PLUG_IN_FOLDER
    assert set(PLUG_INS) | {"cpu", "metal"} == set(script.BACKENDS)


def test_the_cache_has_a_whole_engine_at_any_time(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out"
    old, new = cache / "llama_cpp_python-1-py3-none-any.whl", out / "llama_cpp_python-2-py3-none-any.whl"
    for path in (old, new):
        path.parent.mkdir()
        path.write_text(path.name)
    monkeypatch.setattr(script, "CACHE", cache)
    monkeypatch.setattr(script, "build", lambda *_: new)
    monkeypatch.setattr(sys, "argv", ["build.py", "--out", str(out)])

    def interrupted(_: Path, to: Path) -> None:
        to.write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script.shutil, "copy2", interrupted)
        script.main()
    assert list(cache.iterdir()) == [old]
    assert script.main() == 0
    (kept,) = cache.iterdir()
    assert (kept.name, kept.read_text()) == (new.name, new.name) and list(out.iterdir()) == [new]


def test_a_built_engine_is_small_and_complete(script: ModuleType) -> None:
    built = sorted(script.CACHE.glob("llama_cpp_python-*.whl"))
    if not built:
        pytest.skip(f"{script.CACHE} has no engine: python packaging/engine/build.py")
    for path in built:
        assert path.stat().st_size <= MAX_BYTES
        with zipfile.ZipFile(path) as wheel:
            assert wheel.testzip() is None
            names = {Path(name).name.split(".")[0] for name in wheel.namelist() if script.is_library(name)}
            assert {"libllama", "libggml", "libggml-base", "libmtmd"} <= names
