"""How llguidance is imported: without its package, and without harm to those who want the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import patient


def told_by(code: str, path: Path | None = None) -> str:
    """Return what a new interpreter prints. It looks for modules at `path` first."""
    paths = os.pathsep.join(map(str, filter(None, (path, os.environ.get("PYTHONPATH")))))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    return done.stdout.strip()


def test_the_package_can_be_imported_later() -> None:
    code = (
        "import sys; from edgeagent.text.grammar.library import LLMatcher; print('llguidance' in sys.modules)\n"
        "import llguidance; print(llguidance.LLMatcher is LLMatcher, bool(llguidance.__version__))"
    )
    assert told_by(code).splitlines() == ["False", "True True"]


def test_a_package_without_the_private_module_is_imported_itself(tmp_path: Path) -> None:
    package = tmp_path / "llguidance"
    package.mkdir()
    (package / "__init__.py").write_text("LLMatcher, LLParserLimits, LLTokenizer = 'its own', 2, 3\n")
    assert told_by("from edgeagent.text.grammar.library import LLMatcher; print(LLMatcher)", tmp_path) == "its own"
