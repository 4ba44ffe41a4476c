"""The pressure on the machine, from scripted sensors, and what the workers may then use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from edgeagent.usable import UsableMemory
from edgeagent.worker.parent.pool import memory
from edgeagent.worker.parent.pool.memory import UNPLUGGED, power_under, read_pressure
from edgeagent.worker.protocol import FULL_POWER

PLENTY, LITTLE = UsableMemory(8 << 30, 4 << 30), UsableMemory(8 << 30, 100 << 20)


def battery(percent: float, *, is_plugged: bool | None = False) -> Any:
    return SimpleNamespace(percent=percent, power_plugged=is_plugged)


@pytest.mark.parametrize(
    ("usable", "celsius", "charge", "expected"),
    [
        (PLENTY, 60.0, None, ""),
        (PLENTY, 60.0, battery(80), UNPLUGGED),
        (PLENTY, 60.0, battery(20), "battery"),
        (PLENTY, 60.0, battery(5, is_plugged=True), ""),
        (PLENTY, 60.0, battery(5, is_plugged=None), ""),
        (PLENTY, 97.0, battery(5), "thermal"),
        (LITTLE, 97.0, battery(5), "memory"),
    ],
)
def test_the_first_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usable: UsableMemory, celsius: float, charge: Any, expected: str
) -> None:
    sensors = {"cpu": [SimpleNamespace(current=celsius, critical=100.0), SimpleNamespace(current=200.0, critical=None)]}
    monkeypatch.setattr(memory, "usable_memory", lambda: usable)
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: charge, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert read_pressure(tmp_path) == expected


@pytest.mark.parametrize(
    ("kind", "state", "expected"),
    [
        ("Processor", "3", "thermal"),
        ("cpufreq-cpu0", "1", "thermal"),
        ("thermal-cpufreq-0", "2", "thermal"),
        ("thermal-cpufreq-0", "0", ""),
        ("pwm-fan", "4", ""),
        ("intel_powerclamp", "-1", ""),
        ("Processor", "", ""),
        ("Processor", None, ""),
    ],
)
def test_a_processor_that_linux_slows_down_is_too_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, state: str | None, expected: str
) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: PLENTY)
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    for number, (name, value) in enumerate((("Processor", "0"), (kind, state))):
        device = tmp_path / f"cooling_device{number}"
        device.mkdir()
        (device / "type").write_text(f"{name}\n")
        if value is not None:
            (device / "cur_state").write_text(f"{value}\n")
    assert read_pressure(tmp_path) == expected


def test_sensors_that_cannot_be_read_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError

    monkeypatch.setattr(memory, "usable_memory", lambda: PLENTY)
    monkeypatch.setattr(psutil, "sensors_temperatures", fail, raising=False)
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert read_pressure(tmp_path) == ""


def test_heat_and_a_nearly_empty_battery_leave_half_of_the_threads() -> None:
    shares = {pressure: power_under(pressure).thread_share for pressure in ("", "memory", "thermal", "battery")}
    assert shares == {"": 1.0, "memory": 1.0, "thermal": 0.5, "battery": 0.5}
    assert all(bool(power_under(name).why) == (share < 1) for name, share in shares.items())


def test_the_owner_may_save_a_battery_that_is_not_low() -> None:
    assert power_under(UNPLUGGED, "full") == FULL_POWER
    saving = power_under(UNPLUGGED, "half")
    assert saving.thread_share == 0.5 and "load.on_battery" in saving.why
