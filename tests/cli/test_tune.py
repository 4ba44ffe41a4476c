"""`edgeagent bench ab` and `edgeagent tune`: what is compared, which flags that needs, and the saved profiles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeagent.bench.measure import Measurement, speeds
from edgeagent.bench.scenarios import ALL_RATE, BEHIND, COLD, SCENARIOS, WARM
from edgeagent.bench.stats import paired_change
from edgeagent.cli import main
from edgeagent.cli.tune import _MIN_GAIN, SettingName, _search, flags_of, is_possible, settings_to_tune
from edgeagent.config import Config
from edgeagent.errors import ConfigError
from edgeagent.types.choices import Profile, Trial, TunedOptions
from edgeagent.worker.parent.pool.profile_store import ProfileStore


@pytest.mark.parametrize(
    ("option", "value", "flags"),
    [
        ("threads", "2", ["--threads", "2"]),
        ("engine.flash_attention", "off", ["--flash-attention", "off"]),
        ("kv_type_k", "q8_0", ["--kv-type-k", "q8_0"]),
        ("mmap", "off", ["--no-mmap"]),
        ("mlock", "on", ["--mlock"]),
        ("draft", "none", ["--draft", "none"]),
    ],
)
def test_an_option_is_named_as_in_the_config_or_as_a_flag(option: str, value: str, flags: list[str]) -> None:
    assert flags_of(option, value) == flags


@pytest.mark.parametrize(("option", "value"), [("port", "1"), ("speed", "1"), ("mmap", "2"), ("threads", "x")])
def test_what_cannot_be_compared_is_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError):
        flags_of(option, value)


@pytest.mark.parametrize("option", ["threads", "threads=1", "threads=1,1", "threads=1,2,3", "port=1,2"])
def test_a_wrong_comparison_is_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ab", option]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_defaults_come_first_and_each_value_once() -> None:
    settings = {each.name: each.values for each in settings_to_tune(4, 8, is_on_gpu=False)}
    assert list(settings) == list(SettingName), "attention first, since others follow it"
    assert all(not dict(values[0][1]) for values in settings.values()), "the first value is the default"
    assert [value for value, _ in settings[SettingName.THREADS]] == ["4", "2", "3", "8"]
    plain = {each.name: each.values for each in settings_to_tune(4, 8, is_on_gpu=False, is_plain=True)}
    assert plain[SettingName.ATTENTION] == (("plain", {}), ("flash", {"flash_attention": "on"}))
    alone = {each.name: each.values for each in settings_to_tune(1, 1, is_on_gpu=False)}
    assert [value for value, _ in alone[SettingName.THREADS]] == ["1"]
    on_gpu = [each.name for each in settings_to_tune(4, 8, is_on_gpu=True)]
    assert on_gpu == [SettingName.KV_TYPE, SettingName.BATCH], "llama.cpp chooses the others"


class Machine:
    """A machine on which a daemon's start takes 2 s and a round 1 s; see `_Measuring`."""

    model, settings = "m", Config()

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        info = {"num_gpu_layers": 0, "can_generate": True, "conditions": {"cores": "4"}, "path": "m.gguf"}
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr("edgeagent.cli.link.ask", lambda *_: {"models": [{"info": info}]})

    def show(self, *_: object) -> None: ...

    def start(self, _: object) -> Any:
        self.now_s += 2.0
        return SimpleNamespace(server=SimpleNamespace(address=None))

    def stop(self, *_: object) -> None: ...

    def rounds(self, pair: Any, scenario: str, _: object, is_enough: Callable[[int], bool]) -> Measurement:
        number = 0
        while not is_enough(number):
            self.now_s, number = self.now_s + len(pair), number + 1
        return Measurement(SCENARIOS[scenario], [[{ALL_RATE: [1.0]}] * number for _ in pair])


def test_a_search_takes_its_time_and_at_most_one_comparison_more(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    profile = _search(machine, 20, None)  # type: ignore[arg-type]
    assert machine.now_s <= 20 + 2 + 3 * 2
    assert 1 <= len(profile.trials) < 8


def test_a_value_that_is_better_for_warm_turns_only_is_taken() -> None:
    """Behind a cached prompt plain attention took 146 ms instead of 210, and a little more elsewhere."""
    flash = [{COLD: [1000.0], WARM: [210.0], BEHIND: [27.0], ALL_RATE: [60.0 + number]} for number in range(5)]
    plain = [{COLD: [1010.0], WARM: [146.0], BEHIND: [27.0], ALL_RATE: [58.0 + number]} for number in range(5)]
    change = paired_change(speeds(Measurement(SCENARIOS["turn"], [list(flash), list(plain)])))
    assert change is not None and change.is_better("higher") and change.ratio >= _MIN_GAIN


def test_plain_attention_has_no_quantized_cells() -> None:
    plain, quantized = {"flash_attention": "off"}, {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}
    assert is_possible(plain) and is_possible(quantized) and not is_possible(plain | quantized)


def test_a_profile_that_cannot_be_saved_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile("a", "/m/a.gguf", {}, TunedOptions(threads=1), "2026-01-01T00:00:00")
    monkeypatch.setattr("edgeagent.cli.tune._search", lambda *_: profile)
    ProfileStore(tmp_path).folder.write_bytes(b"")
    assert main(["tune", "--state-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "a, 2026-01-01T00:00: threads 1" in printed.out and "next load" not in printed.out
    assert "could not be saved" in printed.err


def test_profiles_are_shown_and_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state-dir", str(tmp_path)]
    assert main(["tune", "--show", *state]) == 0
    assert "There is no profile" in capsys.readouterr().out
    store = ProfileStore(tmp_path)
    for name in ("a", "b"):
        trial = Trial("threads", "1", "2", 1.2, 1.1, 1.3, is_taken=True)
        profile = Profile(name, f"/m/{name}.gguf", {}, TunedOptions(threads=1), "2026-01-01T00:00:00", trials=(trial,))
        store.save(profile)
    (store.folder / "bad.json").write_bytes(b"{")
    assert main(["tune", "--show", "a", *state]) == 0
    shown = capsys.readouterr().out
    assert "a, 2026-01-01T00:00: threads 1" in shown and "1.200 times the speed (1.100 to 1.300)" in shown
    assert main(["tune", "a", "--forget", *state]) == 0
    assert "It is deleted" in capsys.readouterr().out
    assert main(["tune", "--show", "--json", *state]) == 0
    assert [each["model"] for each in json.loads(capsys.readouterr().out)] == ["b"]
    assert main(["tune", "a", "--forget", *state]) == 1
    assert "there is no profile of a" in capsys.readouterr().err
    assert main(["tune", "--forget", *state]) == 2
