"""The pages of docs/reference match the code and are complete."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from edgeagent.cli.commands import COMMANDS
from edgeagent.config_sources import declared_options
from edgeagent.daemon.transport import REFUSALS
from edgeagent.errors import EdgeAgentError
from edgeagent.metrics.exposition import Snapshot, exposition

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
_SPEC = importlib.util.spec_from_file_location("reference", ROOT / "packaging" / "reference.py")
assert _SPEC is not None and _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The name and the text of each page, made from the code."""
    pages: dict[str, str] = reference.pages()
    return pages


def test_the_committed_pages_are_up_to_date(made: dict[str, str]) -> None:
    committed = {name: (REFERENCE / name).read_text(encoding="utf-8") for name in made}
    assert committed == made, "run `make documents`"


def test_every_option_is_there(made: dict[str, str]) -> None:
    assert all(f"| `{option.name}` |" in made["options.md"] for option in declared_options())


def test_every_command_is_there(made: dict[str, str]) -> None:
    assert all(f"\n## {name}\n" in made["command-line.md"] for name in COMMANDS)
    assert "\n### remote add\n" in made["command-line.md"]


def test_every_error_is_there_with_its_meaning(made: dict[str, str]) -> None:
    classes = EdgeAgentError.__subclasses__()
    while classes:
        error = classes.pop()
        classes += error.__subclasses__()
        assert error.__doc__, f"{error.__name__} needs a docstring: its meaning in the page"
        assert f"| `{error.code}` |" in made["errors.md"]


def test_the_refusals_before_a_route_are_there(made: dict[str, str]) -> None:
    assert {"bad_request", "request_header_fields_too_large"} < {code for code, _ in REFUSALS.values()}
    for status, (code, _) in REFUSALS.items():
        assert f"| `{code}` | {status.value} |" in made["errors.md"]


def test_json_of_a_list_is_called_an_array(made: dict[str, str]) -> None:
    for heading in ("### cache stats", "### cache list", "### token list"):
        part = made["command-line.md"].partition(f"\n{heading}\n")[2].partition("\n##")[0]
        assert "Print one JSON array." in part, heading


def test_every_metric_is_there(made: dict[str, str]) -> None:
    text = exposition(Snapshot([], 0)).decode()
    exported = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE edgeagent_")}
    assert len(exported) > 30
    assert all(f"| `{name}` |" in made["metrics.md"] for name in exported)


def test_no_page_has_a_path_of_this_machine(made: dict[str, str]) -> None:
    assert not [name for name, text in made.items() if str(Path.home()) in text]


def test_every_type_is_defined(made: dict[str, str]) -> None:
    """A type begins with a capital. It is linked to its table, which is in the same page or in another one."""
    anchors = {
        name: {heading.lower().replace(".", "").replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, re.M)}
        for name, page in made.items()
    }
    types = 0
    for name, page in made.items():
        for cell in re.findall(r"^\| `\w+` \| ([^|]+) \|", page, re.M) if name in ("http.md", "websocket.md") else ():
            for word in re.findall(r"(?<!\[)\b[A-Z]\w+(?!\])\b", re.sub(r'"[^"]*"|\([^)]*\)', "", cell)):
                pytest.fail(f"{name}: {word} is not linked, in {cell!r}")
            for word, target, anchor in re.findall(r"\[(\w+)\]\(([^)#]*)#([^)]+)\)", cell):
                types += 1
                assert anchor in anchors[target or name], f"{name}: {word} is not defined"
    assert types > 100
