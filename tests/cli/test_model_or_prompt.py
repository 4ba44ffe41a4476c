"""The arguments of `edgeagent run`: a model, a question, or both."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from edgeagent.cli.run import check_model, split_arguments

KNOWN = ("builtin", "org/repo", "qwen3-0.6b", "qwen3-1.7b")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, None)),
        (["builtin"], ("builtin", None)),
        (["hello"], ("hello", None)),
        (["why?"], (None, "why?")),
        (["Hello!"], (None, "Hello!")),
        (["你好"], (None, "你好")),
        (["modèle.gguf"], ("modèle.gguf", None)),
        (["~/models/a+b@c-1.5_q4"], ("~/models/a+b@c-1.5_q4", None)),
        (["mistral:7b"], ("mistral:7b", None)),
        (["what is the time?"], (None, "what is the time?")),
        (["two\nlines"], (None, "two\nlines")),
        (["why " * 2000], (None, "why " * 2000)),
        (["null\0byte and more"], (None, "null\0byte and more")),
        ([""], (None, "")),
        (["builtin", "hi"], ("builtin", "hi")),
        (["builtin", "what", "is", "it"], ("builtin", "what is it")),
        (["what is", "it"], ("what is", "it")),
    ],
)
def test_one_argument_is_a_name_or_a_question(arguments: list[str], expected: tuple[str | None, str | None]) -> None:
    assert split_arguments(arguments) == expected


def test_a_file_with_blanks_in_its_name_is_a_model(tmp_path: Path) -> None:
    file = tmp_path / "my model.gguf"
    file.touch()
    assert split_arguments([str(file)]) == (str(file), None)
    check_model(str(file), None, KNOWN)


@pytest.mark.parametrize(
    "name", ["builtin", "org/other", "org/other:Q4_0", "qwen3-0.6b:Q4_0", "x.gguf", "./x", "~/m.gguf"]
)
def test_names_and_paths_are_models(name: str) -> None:
    check_model(name, None, KNOWN)


@pytest.mark.parametrize("name", ["llama3.2", "mistral:7b", "hello", "what is", "x" * 300, "null\0byte"])
def test_anything_else_is_refused_with_names_and_the_way_to_ask_it(name: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        check_model(name, None, KNOWN)
    assert f"there is no model {name!r:.80}; known names: builtin, org/repo, qwen3-0.6b" in refused.value.message
    assert 'edgeagent run -p "' in refused.value.message


def test_the_advice_holds_all_that_was_typed() -> None:
    with pytest.raises(typer.BadParameter, match=r'edgeagent run -p "What is a \'daemon\'\?"'):
        check_model("What", 'is a "daemon"?', KNOWN)


def test_no_control_character_of_a_name_reaches_the_terminal() -> None:
    with pytest.raises(typer.BadParameter) as refused:
        check_model("bad\x1b[31m:na\x07me", "a\x9b\udcff?", KNOWN)
    assert refused.value.message.isprintable()


@pytest.mark.parametrize(
    ("name", "near"), [("biultin", "builtin"), ("qwen3", "qwen3-1.7b, qwen3-0.6b"), ("Builtin", "builtin")]
)
def test_near_names_are_told(name: str, near: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"near names: {near}"):
        check_model(name, None, KNOWN)
