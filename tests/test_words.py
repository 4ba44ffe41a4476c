"""Documents, docstrings and help texts avoid confusing words, and are spelt correctly."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("words", ROOT / "packaging" / "words.py")
assert _SPEC is not None and _SPEC.loader is not None
words = importlib.util.module_from_spec(_SPEC)
sys.modules["words"] = words  # dataclasses look up their module there
_SPEC.loader.exec_module(words)

FILES: list[str] = words.checked_files()


def test_no_text_has_a_word_of_the_list() -> None:
    found = [
        str(finding) for name in FILES for finding in words.findings(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_enough_is_checked() -> None:
    assert len(FILES) > 250
    assert {"README.md", "docs/remote.md", "edgeagent/config.py", "edgeagent/cli/serve.py"} <= set(FILES)


@pytest.mark.parametrize(
    "text",
    ["raw text gone on with", "Somebody comes", "what `read` makes of it", "it answers so\nmany requests", "in vain"],
)
def test_a_word_is_found_in_prose_and_in_strings(text: str) -> None:
    for name, content in (("docs/page.md", text), ("edgeagent/x.py", f'"""{text}"""\n')):
        assert [finding.line for finding in words.findings(name, content)] == [1]


def test_code_and_names_are_not_prose() -> None:
    assert not list(words.findings("docs/page.md", "```\nnobody\n```\n"))
    assert not list(words.findings("edgeagent/x.py", "nobody = 1  # in vain\n"))


def test_everything_is_spelt_right() -> None:
    names = ["edgeagent", "docs", "tests", "packaging", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *names],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=patient(60),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_use_declared_tools() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    for tool in ("ruff", "mypy", "codespell"):
        assert f".venv/bin/{tool}" in hooks
        assert any(requirement.startswith(f"{tool}>=") for requirement in extras["test"])
