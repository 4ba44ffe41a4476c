"""`edgeagent bench ab` and `edgeagent tune` with real daemons and the bundled model, as short as they can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeagent.cli import main


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    # One thread, since two wait for each other by spinning, which takes long beside other tests.
    config = tmp_path / "config.toml"
    config.write_text("[engine]\nthreads = 1\n", encoding="utf-8")
    return ["--config", str(config), "--state-dir", str(tmp_path / "state")]


@pytest.mark.slow(seconds=5)
def test_two_values_are_compared_in_turns(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    length = ["--rounds", "2", "--prompt-tokens", "64", "--max-tokens", "8", "--json"]
    assert main(["bench", "ab", "batch=512,64", "builtin", *length, *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["values"] == ["512", "64"]
    overall = report["figures"][-1]
    assert overall["low"] <= overall["ratio"] <= overall["high"]


def test_a_profile_is_found_and_shown(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "builtin", "--only", "kv-type", "--seconds", "5", "--json", *flags]) == 0
    (profile,) = json.loads(capsys.readouterr().out)
    assert [(trial["setting"], trial["value"]) for trial in profile["trials"]] == [("kv-type", "q8_0")]
    assert profile["own"] == {"threads": "1"}
    assert bool(profile["options"]) == profile["trials"][0]["is_taken"]
    assert main(["tune", "--show", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == [profile]
