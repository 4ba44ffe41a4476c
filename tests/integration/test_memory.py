"""What the daemon and the worker take of the machine's memory."""

from __future__ import annotations

import platform
import re
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.conftest import serving
from tests.patience import patient

# The bar is 70 MB, and it takes 67.4 (docs/figures.md). The rest is for other versions of Python and of libraries.
MAX_BYTES = 75e6
# The address space that glibc reserves for the heap of a thread's own arena.
HEAP_BYTES = 64 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or sys.maxsize < 1 << 32, reason="only glibc has such arenas")
def test_all_threads_of_a_process_share_one_arena_and_an_idle_daemon_stays_small(tmp_path: Path) -> None:
    with serving(tmp_path / "state", "builtin") as daemon:
        process = psutil.Process(daemon.process.pid)
        assert process.num_threads() > 1
        assert _arenas(process.pid) == []
        assert process.memory_info().rss <= MAX_BYTES
        # A thread of its own reads the text. What it frees at the end of another arena is never given back.
        body = {"model": "builtin", "prompt": "word " * 20_000}
        assert httpx.post(f"{daemon.url}/api/embeddings", json=body, timeout=patient(60)).status_code == 200
        assert _arenas(daemon.worker_pid()) == []


def _arenas(pid: int) -> list[str]:
    """Return the heaps of a process's arenas besides the main one.

    A heap begins with what is used, "7fb764000000-7fb764021000 rw-p 00000000 00:00 0", and the rest cannot be read.
    """
    text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    maps = re.findall(r"^(\w+)-(\w+) (rw|--)-p 0+ 00:00 0 *$", text, re.MULTILINE)
    assert len(maps) > 1
    return [
        start
        for (start, end, access), (then, last, rest) in pairwise(maps)
        if (access, rest, end) == ("rw", "--", then) and int(last, 16) - int(start, 16) == HEAP_BYTES
    ]
