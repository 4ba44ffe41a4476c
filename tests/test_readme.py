"""README says what is so: its options, its modules, its dependencies."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from edgeagent.cli import main
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


def test_lines_of_prose_fit_a_window() -> None:
    long = [line for line in README.splitlines() if len(line) > 122 and not line.startswith("|")]
    assert not long, long


COMMANDS = sorted(set(re.findall(r"^edgeagent ([^#\n]+?) *(?:#.*)?$", README, re.MULTILINE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_line_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    assert main([words[0], "--help"]) == 0
    options = capsys.readouterr().out.split()
    assert {word for word in words if word.startswith("--")} <= set(options)


def test_enough_command_lines_are_checked() -> None:
    assert len(COMMANDS) >= 10


FIGURES = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")


def test_figures_name_their_commands_and_bars() -> None:
    for command in re.findall(r"`python -m (tests\.[\w.]+)", FIGURES):
        assert (ROOT / f"{command.replace('.', '/')}.py").exists(), command
    for part in FIGURES.split("\n## ")[1:]:
        assert re.search(r"Machine [A-C]\.", part) and "Command" in part, part.splitlines()[0]
    assert re.search(r"commit [0-9a-f]{7}", FIGURES)


def test_what_is_said_to_meet_its_bar_meets_it() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in FIGURES.splitlines() if line.startswith("| ")]
    compared = 0
    for row in rows:
        bar = re.fullmatch(r"([≤≥]) ([\d.]+)(?: ms)?", row[-2])
        value = re.match(r"[\d.]+", row[-3] or row[1])
        if bar is None or value is None:
            continue
        is_met = float(value[0]) <= float(bar[2]) if bar[1] == "≤" else float(value[0]) >= float(bar[2])
        assert row[-1] == ("met" if is_met else "**missed**"), row
        compared += 1
    assert compared > 15


def test_the_readme_keeps_a_few_figures_and_says_where_the_others_are() -> None:
    text = section("Figures")
    assert len(text.strip().splitlines()) <= 9 and "docs/figures.md" in text
