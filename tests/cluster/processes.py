"""Programs in sessions of their own: with a log, a wait until they answer, and an end that leaves no child behind."""

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
# Linux gives ports from 32768 on to outgoing connections.
_FIRST_PORT, _END_OF_PORTS = 20_000, 32_000


class DidNotStart(Exception):
    """A program ended, or did not answer in time; the message has the end of its log."""


class Program:
    """One program and all of its children."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Start it, with little claim to the CPU: a test of behaviour must not starve what it tests."""
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
        """The process id, which is that of its group too."""
        return self._process.pid

    def wait_for(self, url: str, limit_s: float, verify: str | bool = True) -> float:
        """Wait until `url` answers 200; return how long that took."""
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
        """Kill it with its children, as a power cut would: an engine's children outlive its server otherwise."""
        self._signal(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Let it hang: its sockets stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, and kill what is left of it."""
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
    """Return ports that nothing listens on, from below those that the system gives to outgoing connections.

    Among those, a connection could take a port before the program that it is meant for listens there.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(_FIRST_PORT, _END_OF_PORTS), _END_OF_PORTS - _FIRST_PORT):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports")
