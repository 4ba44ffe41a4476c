"""README says what is so: its options, its modules, its dependencies."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from edgeagent.cli.config import options_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under a heading."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"README has no section {title!r}"
    return match[1]


def test_the_table_of_options_is_the_declaration() -> None:
    assert options_table() in section("Options"), "replace it with the output of: edgeagent config options"


NAMES = sorted(
    set(re.findall(r"`((?:api|router|backends|worker|engine|text|types)\.[\w.]+)`", section("The life of a request")))
)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_life_of_a_request_names_exists(name: str) -> None:
    parts = f"edgeagent.{name}".split(".")
    for split in range(len(parts), 1, -1):
        module = ".".join(parts[:split])
        if importlib.util.find_spec(".".join(parts[: split - 1])) and _exists(module):
            thing: object = importlib.import_module(module)
            for attribute in parts[split:]:
                thing = getattr(thing, attribute)
            return
    pytest.fail(f"{name} does not exist")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_enough_names_are_checked() -> None:
    assert len(NAMES) > 15


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0] for line in project["dependencies"]}
    rows = re.findall(r"^\| ([^|]+) \|", section("Dependencies"), re.MULTILINE)
    named = {name.strip() for row in rows for name in row.split(",")} - {"package"}
    assert declared <= named, f"without a reason: {sorted(declared - named)}"
    assert named - {"---"} <= declared, f"not a dependency: {sorted(named - declared)}"


def test_the_commands_on_the_first_screen_are_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z][\w-]*)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
