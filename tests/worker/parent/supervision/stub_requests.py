"""Submits requests to a supervisor with a stub worker, and kills the worker."""

from __future__ import annotations

import os
import signal

from edgeagent.worker.parent.supervision.supervisor import Supervisor
from tests.worker.support import Record, request


def kill(supervisor: Supervisor, number: int = signal.SIGKILL) -> None:
    pid = supervisor.status().pid
    assert pid is not None
    os.kill(pid, number)


def submit(supervisor: Supervisor, text: str, request_id: str = "r1") -> Record:
    record = Record()
    supervisor.submit(request(text, request_id), record)
    return record
