"""One word or text after `edgeagent run`: a model, or a question."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from edgeagent.cli.model_or_prompt import is_model

KNOWN = ("builtin", "org/repo")


@pytest.mark.parametrize("text", ["builtin", "org/other", "name:Q4_0", "x.gguf"])
def test_models(text: str) -> None:
    assert is_model(text, KNOWN)


def test_a_file_is_a_model(tmp_path: Path) -> None:
    assert is_model(str(tmp_path), KNOWN)


@pytest.mark.parametrize("text", ["hello", "what is the time?", "why " * 200, "x" * 300, "null\0byte and more"])
def test_questions_of_any_length(text: str) -> None:
    assert not is_model(text, KNOWN)


def test_a_slip_is_named() -> None:
    with pytest.raises(typer.BadParameter, match="builtin"):
        is_model("biultin", KNOWN)
