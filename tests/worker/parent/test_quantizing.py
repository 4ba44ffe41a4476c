"""The quantizing process: its reports reach the caller, and every failure becomes an error in words."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from edgeagent.errors import ModelLoadFailed, StoreError
from edgeagent.worker.parent.quantizing import Order, quantize

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
