"""What the daemon logs about a worker's disk cache."""

from __future__ import annotations

import logging

import pytest

from edgeagent.types import CacheStatus, WorkerStatus
from edgeagent.worker.parent.supervision.worker_run import TroubleLog


def test_a_trouble_is_told_once_and_another_soon(caplog: pytest.LogCaptureFixture) -> None:
    log = TroubleLog("m")
    full, broken = "the disk has {} MiB free\n", "the disk reports an error"
    caplog.set_level(logging.WARNING)
    for at_s, trouble in (
        (0.0, None),
        (1.0, full.format(9.5)),
        (2.0, full.format("1,024")),
        (3.0, None),
        (4.0, full.format(1)),
        (59.0, broken),
        (61.0, broken),
        (3660.0, broken),
        (3661.0, broken),
    ):
        log.note(WorkerStatus(disk_cache=CacheStatus(trouble=trouble)), at_s)
    log.note(WorkerStatus(), 9999.0)
    assert [record.getMessage() for record in caplog.records] == [
        "m: disk cache: the disk has 9.5 MiB free ",
        "m: disk cache: the disk reports an error",
        "m: disk cache: the disk reports an error",
    ]
