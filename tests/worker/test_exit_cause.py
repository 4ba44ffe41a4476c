"""The cause of a worker's death, from its exit code and its last output, without quoting a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.worker.exit_cause import (
    describe_exit,
    describe_unwritten,
    is_out_of_memory,
    num_oom_kills,
    read_unwritten,
)

TRACEBACK = """llama_model_loader: loaded meta data
Traceback (most recent call last):
  File "/opt/app/edgeagent/worker/process.py", line 10, in <module>
    main()
  File "/opt/app/edgeagent/text/template.py", line 77, in render
    raise ValueError("no such role: " + role)
ValueError: no such role: my secret
"""


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (-11, "SIGSEGV (invalid memory access)"),
        (-6, "SIGABRT (aborted)"),
        (-9, "SIGKILL (killed from outside; out of memory?)"),
        (-15, "SIGTERM (terminated from outside)"),
        (-64, "SIGRTMAX"),
        (-200, "signal 200"),
        (0, "exit code 0 without being asked to stop"),
        (3, "exit code 3"),
        (0xC0000005, "exit code 0xc0000005 (access violation)"),
    ],
)
def test_exit_codes(returncode: int, words: str) -> None:
    assert describe_exit(returncode, "", has_seen_prompts=False) == words


def test_a_kill_while_memory_ran_out_is_told(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 5\noom_kill 3\noom_kill_more 9\n")
    assert num_oom_kills(counters) == 3
    assert num_oom_kills(tmp_path / "none") == 0
    assert "the kernel ended it" in describe_exit(-9, "", has_seen_prompts=True, num_oom_kills=1)
    assert "the kernel" not in describe_exit(-11, "", has_seen_prompts=True, num_oom_kills=1)


def test_a_traceback_names_exception_and_place() -> None:
    assert describe_exit(1, TRACEBACK, has_seen_prompts=False) == (
        "exit code 1: ValueError: no such role: my secret at template.py:77"
    )


def test_after_a_prompt_nothing_is_quoted() -> None:
    assert describe_exit(1, TRACEBACK, has_seen_prompts=True) == "exit code 1: ValueError at template.py:77"
    terminate = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  my secret\n"
    assert describe_exit(-6, terminate, has_seen_prompts=True).endswith("C++ exception std::out_of_range")
    libcpp = "libc++abi: terminating due to uncaught exception of type std::runtime_error: my secret\n"
    assert describe_exit(-6, libcpp, has_seen_prompts=True).endswith("C++ exception std::runtime_error")


def test_before_a_prompt_a_cpp_exception_is_quoted() -> None:
    terminate = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert describe_exit(-6, terminate, has_seen_prompts=False).endswith("C++ exception std::bad_alloc: std::bad_alloc")


def test_an_assertion_wins_over_what_follows_it() -> None:
    stderr = "load ok\n/a/b/ggml-cpu.c:12: GGML_ASSERT(ne00 == ne10) failed\nterminate called recursively\n"
    assert describe_exit(-6, stderr, has_seen_prompts=True).endswith("ggml-cpu.c:12: GGML_ASSERT(ne00 == ne10) failed")


def test_the_last_of_several_tracebacks_counts() -> None:
    stderr = (
        TRACEBACK
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + ('Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\nKeyError: 5\n')
    )
    assert describe_exit(1, stderr, has_seen_prompts=False) == "exit code 1: KeyError: 5 at x.py:1"


@pytest.mark.parametrize("stderr", ["", "just noise\n" * 100, "Traceback (most recent call last):\n", "\x00" * 50])
def test_noise_adds_nothing(stderr: str) -> None:
    assert describe_exit(1, stderr, has_seen_prompts=False) == "exit code 1"


def test_hostile_output_is_cut() -> None:
    stderr = "Traceback (most recent call last):\n" + '  File "x.py", line 1, in f\n' + "Error: " + "x" * 16000
    assert len(describe_exit(1, stderr, has_seen_prompts=False)) < 300


def test_what_a_stopping_worker_left_out_is_read_and_nothing_else_that_it_prints() -> None:
    assert read_unwritten(f"ggml: goodbye\nedgeagent worker: {describe_unwritten(5 << 20)}\n") == 5 << 20
    assert read_unwritten("edgeagent worker: left out of everything\nleft out 7 bytes") == 0


@pytest.mark.parametrize(
    ("returncode", "num_oom_kills", "stderr", "expected"),
    [
        (-9, 1, "", True),
        (-9, 0, "", False),
        (-15, 1, "", False),
        (-6, 0, "terminate called after throwing an instance of 'std::bad_alloc'", True),
        (-6, 0, "CUDA error: out of memory", True),
        (-11, 0, "", False),
        (0, 0, "failed to allocate a buffer", False),
    ],
)
def test_the_end_for_want_of_memory(returncode: int, num_oom_kills: int, stderr: str, expected: bool) -> None:
    assert is_out_of_memory(returncode, num_oom_kills, stderr) is expected
