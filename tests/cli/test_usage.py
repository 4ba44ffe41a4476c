"""The messages for a wrong command line."""

from __future__ import annotations

import re

import pytest

from edgeagent.cli import main
from edgeagent.cli.commands import COMMANDS
from edgeagent.cli.usage import _SAME, ELSEWHERE


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("srve", "there is no command 'srve'; did you mean `edgeagent serve` or `edgeagent service`?"),
        ("xyzzy", "there is no command 'xyzzy' (see `edgeagent --help`)"),
        ("download", "there is no command 'download': it is called `edgeagent pull`"),
        ("config shw", "there is no command 'shw'; did you mean `edgeagent config show`?"),
        ("config ps", "there is no command 'ps' (see `edgeagent config --help`)"),
        ("bench --rounds x", "--rounds: must be a whole number, not 'x' (see `edgeagent bench --help`)"),
        ("bench --rounds=0", "--rounds: must be 1 or more, not '0' (see `edgeagent bench --help`)"),
        ("run --temperature hot", "--temperature: must be a number, not 'hot' (see `edgeagent run --help`)"),
        ("bench --transport x", "--transport: must be one of auto, ws, http, not 'x' (see `edgeagent bench --help`)"),
        ("serve --port", "--port needs a value (see `edgeagent --help`)"),
        ("status --jsn", "there is no option --jsn; did you mean --json or --slo? (see `edgeagent status --help`)"),
        (
            "serve --prot 1",
            "there is no option --prot; did you mean --mmproj, --port or --route? (see `edgeagent serve --help`)",
        ),
        ("run --model x", "there is no option --model (see `edgeagent run --help`)"),
        ("run -p x --max-tokens 0", "--max-tokens: must be 1 or more, not '0' (see `edgeagent run --help`)"),
        ("run -p x --temperature 5", "--temperature: must be 2 or less, not '5' (see `edgeagent run --help`)"),
        (
            "serve --verbose",
            "there is no option --verbose; `serve --log-level debug` logs more (see `edgeagent serve --help`)",
        ),
        ("status --xyzzy", "there is no option --xyzzy (see `edgeagent status --help`)"),
        ("serve a b c", "too many arguments: b c (see `edgeagent serve --help`)"),
        ("rm", "missing argument 'NAME' (see `edgeagent rm --help`)"),
    ],
)
def test_wrong_lines(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("group", ["cache", "token", "config", "service"])
def test_what_lists_commands_cuts_no_sentence(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group, "--help"]) == 0
    assert "...\n" not in capsys.readouterr().out.partition("Commands:")[2]


@pytest.mark.parametrize("name", ["delete", "ls", "copy", "chat", "logs", "restart"])
def test_what_is_called_otherwise_elsewhere_is_pointed_to(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: there is no command '{name}': ")
    assert message.count("\n") == 1


def test_only_commands_that_exist_are_pointed_to() -> None:
    pointed = {name for text in ELSEWHERE.values() for name in re.findall(r"`edgeagent (\w+)", text)}
    assert pointed | set(_SAME.values()) <= {*COMMANDS, *ELSEWHERE}
    assert not (ELSEWHERE.keys() | _SAME.keys()) & COMMANDS.keys()
