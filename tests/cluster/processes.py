"""Programs in sessions of their own: with a log, a wait until they answer, and an end that includes all children."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

STOP_TIMEOUT_S = 20.0
# Linux assigns ports from 32768 up to outgoing connections.
_FIRST_PORT, _END_OF_PORTS = 20_000, 32_000


class DidNotStart(Exception):
    """A program ended, or did not answer in time; the message holds the end of its log."""


class Program:
    """One program and all its children."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Start it with low CPU priority: a test of behaviour must not starve what it tests."""
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["nice", "-n", "5", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also its group's id."""
        return self._process.pid

    def wait_for(self, url: str, limit_s: float, verify: str | bool = True) -> float:
        """Wait until `url` answers 200; return how many seconds that took."""
        began = time.monotonic()
        with httpx.Client(trust_env=False, timeout=2.0, verify=verify) as client:
            while True:
                if self._process.poll() is not None:
                    raise DidNotStart(f"{self.name} ended with {self._process.returncode}:\n{self._tail()}")
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(url).status_code == 200:
                        return time.monotonic() - began
                if time.monotonic() - began > limit_s:
                    raise DidNotStart(f"{self.name} does not answer after {limit_s:.0f} s:\n{self._tail()}")
                time.sleep(0.1)

    def kill(self) -> None:
        """Kill it with its children, as a power failure would; otherwise an engine's children outlive its server."""
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Suspend it, so that it hangs: its sockets stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, and kill what has not ended."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


def free_ports(count: int) -> list[int]:
    """Return unused ports below the range that the system assigns to outgoing connections.

    From that range, a connection could take a port before the program for which it was chosen listens there.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(_FIRST_PORT, _END_OF_PORTS), _END_OF_PORTS - _FIRST_PORT):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")
