"""F2: every cause of a worker's end is named in the error, the log and `status`, and never quotes a prompt."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.robust.faults import faulty
from tests.stub_worker import SECRET
from tests.worker.support import QUICK


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("die SIGSEGV 1", "SIGSEGV (invalid memory access)"),
        ("assert", "SIGABRT (aborted): ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed"),
        ("die SIGBUS 1", "SIGBUS (invalid memory access; was the model file changed or truncated?)"),
        ("exit 0 1", "exit code 0 without being asked to stop"),
        ("raise", "exit code 1: RuntimeError at stub_worker.py:"),
        ("terminate", "SIGABRT (aborted): C++ exception std::runtime_error"),
    ],
)
async def test_the_cause_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, cause: str) -> None:
    async with faulty(tmp_path, limits=replace(QUICK, max_crashes=10)) as victim:
        goes_on = await victim.ask(f"{text} | answer 3")
        assert (goes_on.response["status"], goes_on.text) == ("completed", "0 1 2 ")
        assert cause in (victim.model.cause or "")
        told = (await victim.daemon.http.get(f"{victim.daemon.url}/edgeagent/status")).json()
        assert cause in told["models"][0]["cause"]
        ended = await victim.ask(text)
        marks = {"route": "local", "reason": "worker_crashed", "stages_ms": {}, "num_delivered_tokens": 1}
        assert ended.response["edgeagent"] == marks
        assert cause in ended.response["error"]["message"]
    assert f"died: {cause}" in caplog.text
    assert SECRET not in caplog.text + str(ended.events) + str(told)
