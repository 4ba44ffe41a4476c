"""Why a worker died, in a few words, from its exit code and the end of what it printed.

After a worker has seen a prompt, the text of an exception may quote it; then only the exception's type and place are
told, so that no cause carries what a user wrote.
"""

from __future__ import annotations

import re
import signal

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
_MAX_QUOTE = 200
_MAX_LINE = 400


def describe_exit(returncode: int, stderr: str, *, has_seen_prompts: bool) -> str:
    """Return what ended a process nobody asked to end, e.g. "SIGSEGV (invalid memory access)"."""
    how = _describe_code(returncode)
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
    # Cut, so that no pattern is tried on a long line of a worker gone mad.
    stderr = "\n".join(line[:_MAX_LINE] for line in stderr.splitlines())
    if found := _last(_ASSERTION, stderr):
        return f"{found[1] or ''}{found[2]}"[:_MAX_QUOTE]
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
