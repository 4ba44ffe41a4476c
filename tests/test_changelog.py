"""The changelog and the version agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import edgeagent

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_said_once_and_the_changelog_knows_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == edgeagent.__version__
    assert project.get("version", edgeagent.__version__) == edgeagent.__version__
    assert len(set(headings)) == len(headings)


def test_no_entry_stands_twice() -> None:
    entries = re.split(r"^- ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    firsts = [entry.strip().splitlines()[0] for entry in entries]
    assert len(set(firsts)) == len(firsts)
