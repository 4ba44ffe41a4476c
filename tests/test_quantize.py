"""A quantized copy: its name and folder, its process, and every failure as an error in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeagent import quantize as quantizing
from edgeagent.config import StoreConfig
from edgeagent.errors import ConfigError, InvalidRequest, ModelLoadFailed, StoreError
from edgeagent.quantize import TYPES, Order, QuantizePlan, being_written, check_room, plan, quantize, type_number
from edgeagent.store.gguf.tables import FILE_TYPES
from edgeagent.store.library import Found, Origin
from tests.store.gguf_bytes import GgufBytes, small_model, tensor

UNQUANTIZED = GgufBytes(
    tensors=(tensor("token_embd.weight", [32, 4], 1), tensor("b", [32], 0, offset=256)), data=bytes(384)
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return UNQUANTIZED.write(tmp_path / "models" / "model-F16.gguf")


def planned(source: Path, type_name: str = "Q8_0", out: Path | None = None, origin: Origin = "path") -> QuantizePlan:
    return plan(Found(source.stem, (source,), origin), type_name, out, StoreConfig(models_dir=source.parent))


def test_types() -> None:
    assert type_number("q4_k_m") == ("Q4_K_M", 15)
    assert set(TYPES) <= set(FILE_TYPES.values())
    with pytest.raises(ConfigError, match=r"'Q4_K' is not a type: near ones are .*Q4_K_M.*; all: F32, BF16"):
        type_number("Q4_K")
    with pytest.raises(ConfigError, match=r"IQ1_S needs an importance matrix"):
        type_number("iq1_s")


def test_the_help_names_every_type() -> None:
    from edgeagent.cli.quantize import TYPE_HELP

    assert TYPE_HELP.split(", from")[0].replace(" or ", ", ").split(", ") == list(TYPES)


def test_where_the_result_goes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models = source.parent
    assert planned(source).target == models / "model-Q8_0.gguf"
    assert planned(source, out=tmp_path).target == tmp_path / "model-Q8_0.gguf"
    assert planned(source, out=Path("mine.gguf")).target == Path("mine.gguf")
    # Not into another program's folder, and not into the hub's cache.
    foreign = UNQUANTIZED.write(tmp_path / "ollama" / "blob")
    found = Found("imported", (foreign,), "import")
    assert plan(found, "Q8_0", None, StoreConfig(models_dir=models)).target == models / "blob-Q8_0.gguf"
    assert plan(found, "Q8_0", None, StoreConfig()).target == tmp_path / "blob-Q8_0.gguf"
    with pytest.raises(ConfigError, match=r"mine must end in \.gguf"):
        planned(source, out=Path("mine"))
    with pytest.raises(ConfigError, match="is the model itself"):
        planned(source, out=source)


def test_a_source_that_is_quantized_is_known(source: Path, tmp_path: Path) -> None:
    assert planned(source).quantized_before == ""
    (tmp_path / "small.gguf").write_bytes(small_model())
    assert planned(tmp_path / "small.gguf").quantized_before == "Q8_0"


def test_a_damaged_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadFailed):
        planned(tmp_path / "bad.gguf")


def test_room_is_checked(source: Path) -> None:
    def free(_: Path) -> object:
        return SimpleNamespace(free=100 << 20)

    check_room(planned(source), 10 << 20, free)
    check_room(planned(source), None, free)
    with pytest.raises(StoreError, match=r"needs 121\.6 MB and .* has 104\.9 MB free"):
        check_room(planned(source), 52 << 20, free)
    with pytest.raises(StoreError, match="cannot be used"):
        check_room(planned(source, out=source.parent / "gone" / "x.gguf"), 1)


def test_it_has_its_name_when_it_is_whole(source: Path) -> None:
    todo = planned(source)
    with being_written(todo, overwrite=False) as draft:
        draft.write_bytes(UNQUANTIZED.to_bytes())
        assert not todo.target.exists()
    assert todo.target.read_bytes() == UNQUANTIZED.to_bytes()
    assert left(source) == ["model-F16.gguf", "model-Q8_0.gguf"]


def test_what_is_not_whole_is_not_kept(source: Path) -> None:
    with pytest.raises(ModelLoadFailed), being_written(planned(source), overwrite=False) as draft:
        draft.write_bytes(UNQUANTIZED.to_bytes()[:-300])
    one_tensor = GgufBytes(tensors=UNQUANTIZED.tensors[:1], data=bytes(384)).to_bytes()
    with pytest.raises(StoreError, match="1 tensors of 2"), being_written(planned(source), overwrite=False) as draft:
        draft.write_bytes(one_tensor)
    with pytest.raises(KeyboardInterrupt), being_written(planned(source), overwrite=False):
        raise KeyboardInterrupt
    assert left(source) == ["model-F16.gguf"]


def test_a_file_that_exists_stays(source: Path) -> None:
    todo = planned(source)
    todo.target.write_bytes(b"mine")
    with pytest.raises(InvalidRequest, match="--force"), being_written(todo, overwrite=False):
        raise AssertionError("nothing is begun")
    with pytest.raises(KeyboardInterrupt), being_written(todo, overwrite=True):
        raise KeyboardInterrupt
    assert todo.target.read_bytes() == b"mine"
    with being_written(todo, overwrite=True) as draft:
        draft.write_bytes(UNQUANTIZED.to_bytes())
    assert todo.target.read_bytes() == UNQUANTIZED.to_bytes()


def test_a_file_that_came_meanwhile_stays(source: Path) -> None:
    todo = planned(source)
    with pytest.raises(InvalidRequest, match="exists"), being_written(todo, overwrite=False) as draft:
        draft.write_bytes(UNQUANTIZED.to_bytes())
        todo.target.write_bytes(b"mine")
    assert todo.target.read_bytes() == b"mine" and len(left(source)) == 2


@pytest.mark.skipif(os.name != "posix", reason="processes are looked up by their id")
def test_what_a_killed_process_left_is_swept(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".x.gguf.{ended.pid}-01234567.part", f".x.gguf.{os.getpid()}-01234567.part", ".mine.part"):
        (source.parent / name).touch()
    quantizing._sweep(source.parent)
    assert left(source) == [".mine.part", f".x.gguf.{os.getpid()}-01234567.part", "model-F16.gguf"]


def left(source: Path) -> list[str]:
    return sorted(path.name for path in source.parent.iterdir())


ORDER = Order((Path("/model.gguf"),), Path("/out.gguf"), 7)
BEGIN = (
    "import json, os, sys; order = json.loads(sys.stdin.readline()); "
    "say = lambda **fields: print(json.dumps(fields), flush=True); "
)


def stub(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", BEGIN + program)


def run(program: str) -> tuple[list[int | None], list[tuple[int, int]]]:
    sizes: list[int | None] = []
    steps: list[tuple[int, int]] = []
    quantize(ORDER, sizes.append, lambda done, total: steps.append((done, total)), command=stub(program))
    return sizes, steps


def test_size_and_progress_are_told() -> None:
    program = (
        "say(size_bytes=order['file_type']); assert sys.stdin.readline() == 'go\\n'; "
        "say(done=1, total=2); print('noise'); say(done=2, total=2); say(is_done=True)"
    )
    assert run(program) == ([7], [(1, 2), (2, 2)])


@pytest.mark.parametrize(
    "program, why",
    [
        ("say(error='requantizing is off')", r"/model\.gguf cannot be quantized: requantizing is off"),
        ("sys.exit(3)", "exit code 3"),
        ("pass", "exit code 0"),
        ("say(size_bytes=1); sys.stdin.readline(); 1 / 0", "ZeroDivisionError"),
        ("os.close(0); say(size_bytes=1); os._exit(4)", "exit code 4"),
    ],
)
def test_however_it_ends_is_an_error_in_words(program: str, why: str) -> None:
    with pytest.raises(ModelLoadFailed, match=why):
        run(program)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_crash_is_an_error_in_words() -> None:
    with pytest.raises(ModelLoadFailed, match="its process ended: SIGSEGV"):
        run("import signal; os.kill(os.getpid(), signal.SIGSEGV)")


def test_a_caller_that_stops_ends_it() -> None:
    def refuse(_: int | None) -> None:
        raise StoreError("no room")

    others = psutil.Process().children()
    program = "say(size_bytes=1); import time; time.sleep(60)"
    with pytest.raises(StoreError, match="no room"):
        quantize(ORDER, refuse, lambda _done, _total: None, command=stub(program))
    assert not set(psutil.Process().children()) - set(others)
