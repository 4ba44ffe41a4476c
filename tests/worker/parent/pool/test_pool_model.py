"""What the daemon tells a worker about its load: whether a request waits for it, and whether it replaces another."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from edgeagent.config import EngineConfig
from edgeagent.worker.parent.pool.loading import LoadPreparation
from edgeagent.worker.parent.pool.pool_model import PoolModel, Workers
from edgeagent.worker.parent.supervision.load_time import LoadTime
from edgeagent.worker.parent.supervision.supervisor import Supervisor
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits
from edgeagent.worker.protocol import Load


def make_model(engine: EngineConfig) -> PoolModel:
    load = Load("m", "m.gguf", None, engine)
    parts = {"load": lambda: load, "omit_part": lambda *_: False, "disk_share": lambda: None}
    preparation = cast(LoadPreparation, SimpleNamespace(name="m", engine=engine, **parts))

    async def make_room(_: PoolModel) -> None:
        pass

    workers = Workers((), SupervisionLimits(), time.monotonic, make_room, lambda *_: None)
    return PoolModel(preparation, workers, LoadTime(time.monotonic), is_pinned=False, keep_alive_s=1.0)


@pytest.mark.parametrize(
    ("is_busy", "asked_s", "measured_s"), [(False, 2.0, 2.0), (True, 2.0, 0.8), (True, 0.5, 0.5), (True, 0.0, 0.0)]
)
async def test_a_load_that_a_request_waits_for_measures_less(
    monkeypatch: pytest.MonkeyPatch, is_busy: bool, asked_s: float, measured_s: float
) -> None:
    monkeypatch.setattr(Supervisor, "is_busy", is_busy)
    engine = EngineConfig(calibration_s=asked_s, parallel=7)
    model = make_model(engine)
    sent = (await model._prepare()).engine_config
    assert (sent.calibration_s, sent.parallel) == (measured_s, 7)


async def test_only_a_worker_that_goes_on_with_requests_replaces_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model, replacing = make_model(EngineConfig(calibration_s=0.0)), list[bool]()
    for is_busy in (True, True, False):
        monkeypatch.setattr(Supervisor, "is_busy", is_busy)
        replacing.append((await model._prepare()).is_replacing)
    assert replacing == [False, True, False]
    await model.renew().stop()
    monkeypatch.setattr(Supervisor, "is_busy", True)
    assert not (await model._prepare()).is_replacing, "the earlier worker was unloaded"
