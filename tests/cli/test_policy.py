"""`edgeagent policy show`, and commands that a policy refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cli import main
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.remotes.file import add_remote, load_remotes

Output = pytest.CaptureFixture[str]
POLICY = """
route = "prefer_remote"
remote_hosts = ["gpu.example"]
model_sha256 = []
proxy = "http://proxy.example:3128"
budget = {tokens = 1000}
"""


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def shown(folder: Path, capsys: Output, *flags: str, code: int = 0) -> dict[str, Any]:
    assert main(["policy", "show", "--json", "--state-dir", str(folder), *flags]) == code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_without_a_policy_nothing_is_forbidden(machine_policy: Path, tmp_path: Path, capsys: Output) -> None:
    assert shown(tmp_path, capsys) == {"file": str(machine_policy), "is_there": False, "trouble": None, "policy": {}}
    assert main(["policy", "show", "--state-dir", str(tmp_path)]) == 0
    assert "does not exist: nothing is forbidden" in capsys.readouterr().out


def test_what_holds_is_the_strictest_of_all(machine_policy: Path, tmp_path: Path, capsys: Output) -> None:
    write(machine_policy, POLICY)
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    add_remote(tmp_path, Remote("mine", (EndpointConfig("https://mine.example"),)))
    assert shown(tmp_path, capsys)["policy"] == {
        "route": "prefer_remote",
        "remote_hosts": ["gpu.example"],
        "model_sha256": [],
        "budget": {"tokens": 1000},
        "proxy": "http://proxy.example:3128",
    }
    for flags, mode in (((), "prefer_local"), (("--route", "remote_only"), "prefer_remote")):
        effective = shown(tmp_path, capsys, "--effective", *flags)["effective"]
        assert (effective["route"], effective["pulls"], effective["model_sha256"]) == (mode, True, [])
    gpu, mine = effective["remotes"]
    assert (gpu["trouble"], gpu["proxy"], gpu["budget_trouble"]) == (None, "http://proxy.example:3128", None)
    assert "mine.example is not among its remote_hosts" in mine["trouble"]
    assert main(["policy", "show", "--effective", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gpu: may be used; proxy: http://proxy.example:3128" in lines
    assert ["route", "prefer_local"] in [line.split() for line in lines]
    assert ["budget", "tokens=1000"] in [line.split() for line in lines]


def test_a_policy_that_is_wrong_is_told_and_fails(machine_policy: Path, tmp_path: Path, capsys: Output) -> None:
    write(machine_policy, "pull = false")
    report = shown(tmp_path, capsys, "--effective", code=1)
    assert "unknown field `pull`" in report["trouble"]
    nothing = {"route": "local_only", "remote_hosts": [], "pulls": False, "image_hosts": [], "answers": False}
    assert report["policy"] == nothing
    assert report["effective"]["route"] == "local_only"
    assert main(["policy", "show", "--state-dir", str(tmp_path)]) == 1
    assert "unknown field `pull`" in " ".join(capsys.readouterr().out.split())


def test_what_is_forbidden_is_neither_added_nor_tried_nor_pulled(
    machine_policy: Path, tmp_path: Path, capsys: Output
) -> None:
    folder = ["--state-dir", str(tmp_path)]
    add_remote(tmp_path, Remote("old", (EndpointConfig("https://old.example"),)))
    write(machine_policy, "remote_hosts = []\npulls = false")
    assert main(["remote", "add", "gpu", "https://gpu.example", "--yes", *folder]) == 2
    assert main(["remote", "test", "old", *folder]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    for host in ("gpu.example", "old.example"):
        assert f"({machine_policy}) does not allow it: {host} is not among its remote_hosts" in errors
    assert [each.name for each in load_remotes(tmp_path)] == ["old"]
    assert main(["pull", "org/model", *folder]) == 1
    output = capsys.readouterr()
    assert "says pulls = false" in " ".join((output.out + output.err).split())
    assert main(["remote", "rm", "old", *folder]) == 0
