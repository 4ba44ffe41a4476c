"""docs/remote.md is right: its commands, options, metrics, modes and routes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from edgeagent.api.routes import NEEDS
from edgeagent.cli import main
from edgeagent.machine_policy import MachinePolicy, described, load_policy
from edgeagent.metrics.exposition import Snapshot, exposition
from edgeagent.remotes import Budget
from edgeagent.types import RouteMode

GUIDE = (Path(__file__).parents[1] / "docs" / "remote.md").read_text(encoding="utf-8")
BLOCKS = "".join(re.findall(r"^```\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
IN_BLOCKS = re.findall(r"^edgeagent (.+)$", BLOCKS, re.MULTILINE)
IN_PROSE = re.findall(r"`edgeagent ([a-z][^`]*)`", GUIDE)
GROUPS = ("remote", "token", "cache", "config", "policy")


@pytest.mark.parametrize("command", sorted({*IN_BLOCKS, *IN_PROSE}))
def test_every_command_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    name = words[:2] if words[0] in GROUPS else words[:1]
    assert main([*name, "--help"]) == 0
    options = capsys.readouterr().out.split()
    assert {word for word in words if word.startswith("--")} <= set(options)


def test_every_option_that_is_named_is_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    known: set[str] = set()
    for command in (["remote", "add"], ["serve"], ["token", "add"], ["egress"]):
        assert main([*command, "--help"]) == 0
        known |= {word.rstrip(",") for word in capsys.readouterr().out.split() if word.startswith("--")}
    assert set(re.findall(r"`(--[a-z-]+)", GUIDE)) <= known


def test_every_metric_and_route_exists() -> None:
    exported = set(re.findall(r"^# TYPE (\S+)", exposition(Snapshot([], 0)).decode(), re.MULTILINE))
    assert set(re.findall(r"`(edgeagent_[a-z_]+)`", GUIDE)) <= exported
    assert set(re.findall(r"`GET (/[a-z/]+)`", GUIDE)) <= set(NEEDS)


def test_the_table_of_modes_is_whole_and_in_order() -> None:
    section = GUIDE.split("## Where a request may run")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [mode.value for mode in RouteMode]


def test_the_policy_is_whole_and_right(machine_policy: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    machine_policy.write_text(example, encoding="utf-8")
    machine_policy.chmod(0o644)
    policy = load_policy(machine_policy)
    assert policy is not None and set(described(policy)) == set(MachinePolicy.__struct_fields__)
    assert set(described(policy)["budget"]) == set(Budget.__struct_fields__)


def test_enough_is_checked() -> None:
    assert len(IN_BLOCKS) >= 9
