"""README states the truth: its dependencies, commands, links and figures. docs/figures.md follows its own rules."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from edgeagent.cli import main
from tests.peer.shelf import SHAPES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 200


def section(title: str) -> str:
    """Return the text under a heading."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"README has no section {title!r}"
    return match[1]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables in a text."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def test_its_sections_are_in_a_visitors_order() -> None:
    assert re.findall(r"^## (.+)", README, re.MULTILINE) == [
        "Why rather than Ollama or llama-server",
        "Install",
        "Five minutes",
        "Which model for which machine",
        "Documentation",
        "Dependencies",
        "Working on it",
    ]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_link_leads_to_a_file(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert len(links) >= 3
    assert not [link for link in links if not (ROOT / link).exists()]


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["voice"], *extras["webp"], *extras["redis"]]
    declared = {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0] for line in lines}
    rows = re.findall(r"^\| ([^|]+) \|", section("Dependencies"), re.MULTILINE)
    named = {name.strip() for row in rows for name in row.split(",")} - {"package"}
    assert declared <= named, f"without a reason: {sorted(declared - named)}"
    assert named - {"---"} <= declared, f"not a dependency: {sorted(named - declared)}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_targets_are_in_the_makefile(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make ([a-z][\w-]*)", (ROOT / name).read_text(encoding="utf-8"))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_lines_of_prose_fit_a_window(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > 122 and not line.startswith("|")]
    assert not long, long


BLOCKS = "".join(re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
COMMANDS = sorted(set(re.findall(r"^(?:\$ )?edgeagent ([^#\n]+?) *(?:#.*)?$", BLOCKS, re.MULTILINE)))


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
        path = ROOT / command.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), command
    machines = "".join(re.findall(r"^- Machine ([A-Z]):", FIGURES, re.MULTILINE))
    for part in FIGURES.split("\n## ")[1:]:
        assert re.search(rf"Machine [{machines}]\.", part) and "Command" in part, part.splitlines()[0]
    assert re.search(r"commit [0-9a-f]{7}", FIGURES)


def test_what_is_said_to_meet_its_bar_meets_it() -> None:
    compared = 0
    for row in rows_of(FIGURES):
        if len(row) < 3:
            continue
        bar = re.fullmatch(r"([≤≥]) ([\d.]+)(?: ms)?", row[-2])
        value = re.match(r"[\d.]+", row[-3] or row[1])
        if bar is None or value is None:
            continue
        is_met = float(value[0]) <= float(bar[2]) if bar[1] == "≤" else float(value[0]) >= float(bar[2])
        assert row[-1] == ("met" if is_met else "**missed**"), row
        compared += 1
    assert compared > 15


def test_the_readme_s_figures_are_those_of_the_document() -> None:
    shown = [
        row
        for row in rows_of(section("Why rather than Ollama or llama-server"))
        if re.search(r"\d ms|tokens/s", row[1])
    ]
    assert 5 <= len(shown) <= 8
    known = {tuple(row[:3]): row[3] for row in rows_of(FIGURES) if len(row) > 3}
    for what, ours, theirs, ratio in shown:
        assert known[what, ours, theirs].split(" ")[0] == ratio, what
    assert "docs/figures.md" in section("Why rather than Ollama or llama-server")


def test_the_readme_s_ratios_of_shapes_are_those_of_the_document() -> None:
    tables = FIGURES.partition("<!-- shapes: begin -->")[2].partition("<!-- shapes: end -->")[0]
    columns = (
        "one stream, tokens/s",
        "8 streams together, while all run, tokens/s",
        "first token, 1,400 tokens, cold, ms",
        "first token, 1,400 tokens, all but the end cached, ms",
        "next turn of each of 8 conversations, cells for 4, ms",
    )
    known: dict[tuple[str, str], str] = {}
    titles: list[str] = []
    for first, *cells in rows_of(tables):
        if not first:
            titles = cells
        known |= {(first.removesuffix(", Q4_0"), title): cell for title, cell in zip(titles, cells, strict=True)}
    shown = [row for row in rows_of(section("Why rather than Ollama or llama-server")) if row[0] in SHAPES]
    assert [row[0] for row in shown] == list(SHAPES)
    for shape, *ratios in shown:
        assert ratios == [known[shape, title].split(" ")[0].strip("*") for title in columns], shape
