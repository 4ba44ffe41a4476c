"""What the daemon and the worker take of the machine's memory."""

from __future__ import annotations

import json
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.conftest import serving, wait_until
from tests.patience import patient

# The bar is 70 MB, and it takes 67.4 (docs/figures.md). The rest is for other versions of Python and of libraries.
MAX_BYTES = 75e6
# The address space that glibc reserves for the heap of a thread's own arena.
HEAP_BYTES = 64 << 20
LARGE_CHARS = 14 << 20
MAX_KEPT_BYTES = 20e6
HELLO = {"role": "user", "content": "Say hello"}


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep what they like")
def test_large_requests_leave_little_memory_behind(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": json.dumps({"x": "y" * LARGE_CHARS})}
    told = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
    tool = {"type": "function", "name": "f", "description": "y" * LARGE_CHARS, "parameters": {"type": "object"}}
    # Longer answers would fill the prefix cache, which is another use of memory.
    common = {"max_output_tokens": 4, "store": False, "prompt_cache": {"write": False}}
    kinds = (
        (200, {"truncation": "auto", "input": [HELLO, call, told, HELLO]}),
        (400, {"input": [HELLO], "tools": [tool]}),
    )
    with (
        serving(tmp_path / "state", "builtin") as daemon,
        httpx.Client(base_url=daemon.url, timeout=patient(60)) as client,
    ):

        def send(body: dict[str, Any]) -> int:
            return client.post("/v1/responses", json=common | body).status_code

        assert send({"input": [HELLO]}) == 200
        process = psutil.Process(daemon.process.pid)
        before = {each: each.memory_info().rss for each in (process, *process.children())}
        assert len(before) == 3, "the daemon, the worker, and the process of its chat template"
        with ThreadPoolExecutor(4) as threads:
            for status, body in kinds:
                assert {*threads.map(send, [body] * 8)} == {status}
        wait_until(lambda: all(each.memory_info().rss < then + MAX_KEPT_BYTES for each, then in before.items()))


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
