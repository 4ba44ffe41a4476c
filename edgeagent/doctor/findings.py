"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `remedy` says what to do; it is empty if nothing needs to be done."""

    name: str
    severity: Severity
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> list[Finding]:
    """Return a list with one finding, which reports no problem."""
    return [Finding(name, "ok", text)]


def warn(name: str, text: str, remedy: str) -> list[Finding]:
    """Return a list with one finding about a problem that makes edgeagent slower or less convenient."""
    return [Finding(name, "warn", text, remedy)]


def fail(name: str, text: str, remedy: str) -> list[Finding]:
    """Return a list with one finding about a problem that prevents edgeagent from working."""
    return [Finding(name, "fail", text, remedy)]
