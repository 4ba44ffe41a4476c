"""docs/cluster.md and the READMEs of packaging/cluster are right: their commands, files, overlays and targets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from edgeagent.cli import main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "packaging/cluster"
GUIDE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
READMES = {path: path.read_text(encoding="utf-8") for path in sorted(CLUSTER.rglob("README.md"))}
TEXT = "\n".join([GUIDE, *READMES.values()])
GROUPS = ("remote", "token")
COMMANDS = {
    *re.findall(r"^    edgeagent ([a-z].+)$", TEXT, re.MULTILINE),
    *re.findall(r"`edgeagent ([a-z][^`]*)`", TEXT),
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    page = "--help-all" if words[0] == "serve" else "--help"
    assert main([*words[: 2 if words[0] in GROUPS else 1], page]) == 0
    options = capsys.readouterr().out.split()
    assert {word for word in words if word.startswith("--")} <= set(options)


def test_every_link_and_folder_exists() -> None:
    for path, text in {ROOT / "docs/cluster.md": GUIDE, **READMES}.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
    for folder in re.findall(r"`(packaging/cluster/[\w/.-]+)`", TEXT):
        assert (ROOT / folder).exists(), folder


def test_every_overlay_is_explained() -> None:
    overlays = {path.name for path in (CLUSTER / "k8s/overlays").iterdir()}
    for text in (GUIDE, READMES[CLUSTER / "k8s/README.md"]):
        assert overlays <= set(re.findall(r"`([a-z-]+)`", text))


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)`", TEXT))
    assert {"cluster-demo", "check-cluster"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_enough_is_checked() -> None:
    assert len(COMMANDS) >= 5
