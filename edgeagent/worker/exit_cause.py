"""Describes in a few words why a worker died, from its exit code and the end of its output.

No cause contains user text. After a worker has seen a prompt, the text of an exception may quote it. So the cause then
has only the exception's type and where it was raised.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

_SIGNAL_WORDS = {
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "invalid memory access; was the model file changed or truncated?",
    "SIGILL": "illegal instruction; llama.cpp was built for another CPU",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "aborted",
    "SIGKILL": "killed from outside; out of memory?",
    "SIGTERM": "terminated from outside",
    "SIGXCPU": "out of its CPU time limit",
}
_SIGKILL, _SIGTERM = 9, 15
# Texts that C++ and ggml print if an allocation fails.
_ALLOCATION_FAILED = (
    "std::bad_alloc",
    "out of memory",
    "OutOfDeviceMemory",
    "failed to allocate",
    "memory allocation of",
)
_OUT_OF_MEMORY = "SIGKILL (out of memory: the kernel ended it; a smaller --ctx or model needs less)"
# NTSTATUS values that a Windows process leaves as its exit code.
_WINDOWS_CODES = {
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction; llama.cpp was built for another CPU",
    0xC0000017: "out of memory",
    0xC00000FD: "stack overflow",
    0xC0000409: "aborted",
    0xC0000374: "heap corruption",
}
_ASSERTION = re.compile(r"^.*?([^/\\\s:]+:\d+: )?(GGML_ASSERT\(.*\) failed|GGML_ABORT.*|fatal error)\s*$", re.MULTILINE)
_TERMINATE = re.compile(
    r"terminate called (?:after throwing an instance of '([^'\n]+)'|without an active exception|recursively)"
    r"(?:\s+what\(\):\s*([^\n]*))?"
)
_LIBCPP = re.compile(r"terminating due to uncaught exception of type ((?:[^:\n]|::)+)(?:: ([^\n]*))?")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "[^"]*?([^/\\"]+)", line (\d+)', re.MULTILINE)
_EXCEPTION = re.compile(r"^([A-Za-z_][\w.]*)(?::\s*(.*))?$")
# Limits of a worker's text for the log. The text may be hostile and long.
_MAX_NOTES = 3
_MAX_NOTE_CHARS = 400
_EXCESS = re.compile(r"^edgeagent worker: (took \d{1,9} MiB of memory more than planned)$", re.MULTILINE)
_UNWRITTEN = re.compile(r"^edgeagent worker: left out (\d{1,15}) bytes", re.MULTILINE)
_MAX_QUOTE = 200
_MAX_LINE = 400


def describe_unwritten(num_bytes: int) -> str:
    """Return the words in which a stopping worker reports how many bytes it had no time to write to the disk cache."""
    return f"left out {num_bytes} bytes"


def read_unwritten(stderr: str) -> int:
    """Return how many unwritten bytes a stopped worker reported; 0 if it reported none."""
    found = _UNWRITTEN.search(stderr)
    return int(found[1]) if found else 0


def describe_excess(num_bytes: int) -> str:
    """Return the words in which a worker reports why it ends itself: it took this many bytes more than planned."""
    return f"took {num_bytes >> 20} MiB of memory more than planned"


def read_notes(notes: Sequence[str]) -> list[str]:
    """Return the first three of a worker's notes as lines for the log, each shortened by `one_line`."""
    return [one_line(note) for note in notes[:_MAX_NOTES]]


def one_line(text: str) -> str:
    """Return the first 400 characters of a worker's text. Blanks replace line ends and control characters."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_NOTE_CHARS])


def is_from_outside(returncode: int) -> bool:
    """Return whether a process was ended from outside: by a person, a service manager, or the kernel to free memory.

    Always False on Windows. There, the process that ends another one chooses the exit code, so the exit code does not
    show who ended it.
    """
    return returncode in (-_SIGKILL, -_SIGTERM)


def num_oom_kills(counters: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the Linux kernel has ended for lack of memory since it booted; 0 if unknown."""
    try:
        found = re.search(r"^oom_kill (\d+)$", counters.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return 0
    return int(found[1]) if found else 0


def is_out_of_memory(returncode: int, num_oom_kills: int, stderr: str = "") -> bool:
    """Whether a process ended because memory ran out. `stderr` is the end of its error output.

    `num_oom_kills` is how many processes the kernel ended to free memory while this one ran.
    """
    by_kernel = returncode == -_SIGKILL and num_oom_kills > 0
    return by_kernel or (returncode != 0 and any(words in stderr for words in _ALLOCATION_FAILED))


def describe_exit(returncode: int, stderr: str, *, has_seen_prompts: bool, num_oom_kills: int = 0) -> str:
    """Return what ended a process that was not asked to stop, e.g. "SIGSEGV (invalid memory access)".

    With `has_seen_prompts`, the texts of exceptions are left out, since they may quote a prompt. `num_oom_kills` is how
    many processes the kernel ended to free memory while this one ran.
    """
    how = _OUT_OF_MEMORY if is_out_of_memory(returncode, num_oom_kills) else _describe_code(returncode)
    why = _describe_output(stderr, has_seen_prompts)
    return f"{how}: {why}" if why else how


def _describe_code(returncode: int) -> str:
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        words = _SIGNAL_WORDS.get(name)
        return f"{name} ({words})" if words else name
    words = _WINDOWS_CODES.get(returncode)
    if words:
        return f"exit code {returncode:#x} ({words})"
    return f"exit code {returncode}" + (" without being asked to stop" if returncode == 0 else "")


def _describe_output(stderr: str, is_private: bool) -> str:
    # Shorten the lines, since the patterns are slow on a very long line from a broken worker.
    stderr = "\n".join(line[:_MAX_LINE] for line in stderr.splitlines())
    if found := _last(_ASSERTION, stderr):
        return f"{found[1] or ''}{found[2]}"[:_MAX_QUOTE]
    if found := _last(_EXCESS, stderr):
        return found[1]
    for pattern in (_TERMINATE, _LIBCPP):
        if found := _last(pattern, stderr):
            what = f": {found[2].strip()}" if found[2] and not is_private else ""
            return f"C++ exception {found[1] or 'of unknown type'}{what}"[:_MAX_QUOTE]
    return _describe_traceback(stderr, is_private)


def _describe_traceback(stderr: str, is_private: bool) -> str:
    _, header, trace = stderr.rpartition(_TRACEBACK)
    if not header:
        return ""
    frame = _last(_FRAME, trace)
    place = f" at {frame[1]}:{frame[2]}" if frame else ""
    after_frames = trace[frame.end() :] if frame else trace
    for line in after_frames.splitlines():
        # The exception's own line is the first unindented one after the last frame.
        if line and not line[0].isspace() and (found := _EXCEPTION.match(line)):
            text = f": {found[2]}" if found[2] and not is_private else ""
            return f"{found[1]}{text}"[:_MAX_QUOTE] + place
    return ""


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007 - the last match is wanted
        pass
    return found
