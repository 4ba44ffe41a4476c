"""The entry point: which modules each command imports, exit statuses, and one-line errors."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import edgeagent
from edgeagent import __version__
from edgeagent.cli import app, main
from edgeagent.cli.app import build_app
from edgeagent.cli.commands import COMMANDS, Command
from edgeagent.config_sources import declared_options
from edgeagent.errors import BackendUnavailable, ConfigError, InvalidRequest, ModelNotFound

ROOT = Path(edgeagent.__file__).parents[1]
HEAVY = (
    "prompt_toolkit",
    "pydantic",
    "fastapi",
    "uvicorn",
    "httpx2",
    "rich",
    "websockets",
    "psutil",
    "llama_cpp",
    "numpy",
    "asyncio",
)


def _modules_after(*arguments: str) -> set[str]:
    run = f"from edgeagent.cli import main; main({list(arguments)!r})"
    code = f"import sys, json; {run}; print(json.dumps(list(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output.splitlines()[-1]))


# What the first page and the version must not import: each takes longer than Python itself.
SLOW = {*HEAVY, "typer", "msgspec", "inspect", "dataclasses", "json", "shutil", "subprocess", "importlib.metadata"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_the_first_page_imports_nothing_that_is_slow(arguments: list[str]) -> None:
    run = f"from edgeagent.cli import main; main({arguments!r})"
    code = f"import sys; {run}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = output.stdout.splitlines()[-1].split()
    assert not set(loaded) & SLOW
    own = {name for name in loaded if name.startswith("edgeagent")}
    assert own == {"edgeagent", "edgeagent.cli", "edgeagent.cli.streams", "edgeagent.cli.commands"}


@pytest.mark.parametrize("columns", ["80", "200", "56", "20"])
def test_the_first_page_is_what_typer_writes(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["--help"]) == 0
    ours = re.sub(r"^  --version .*\n", "", capsys.readouterr().out, flags=re.MULTILINE)
    build_app(None)(["--help"], prog_name="edgeagent", standalone_mode=False)
    assert ours == capsys.readouterr().out


def test_help_of_a_command_does_not_import_the_daemon() -> None:
    loaded = _modules_after("serve", "--help")
    assert "edgeagent.config" in loaded
    assert not loaded & {"fastapi", "uvicorn", "httpx2", "rich", "llama_cpp", "numpy"}


def test_only_a_chat_imports_what_draws_its_line() -> None:
    loaded = _modules_after("run", "--help")
    assert "websockets" in loaded
    assert "prompt_toolkit" not in loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Usage: edgeagent {name}")
    assert "--help" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_words_in_place_of_python(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = app._resolve(COMMANDS[name].target)
    members = [each.name for each in target.registered_commands] if isinstance(target, typer.Typer) else []
    for arguments in ([name], *([name, member] for member in members if member)):
        assert main([*arguments, "--help"]) == 0
        output = capsys.readouterr().out
        assert not re.search(r"<|{|list\[|\bstr\b|x[<>]=|None|[A-Z]_[A-Z]+ ", output.replace("HF_", "")), output


def test_the_first_page_of_help_has_what_people_change_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    first = capsys.readouterr().out
    assert 10 <= len(re.findall(r"^  --", first, re.MULTILINE)) <= 13
    assert "--ctx" in first and "--itl-budget-ms" not in first
    assert re.findall(r"^(\w.*):$", first, re.MULTILINE) == ["Arguments", "Model", "Network", "Privacy", "Options"]
    assert "more options: edgeagent serve --help-all" in first
    assert main(["serve", "--help-all"]) == 0
    full = capsys.readouterr().out
    assert all(option.flag in full for option in declared_options() if option.name != "model")


@pytest.mark.parametrize("arguments", [["serve", "--help"], ["serve", "m.gguf", "--no-mmap", "--port", "none"]])
def test_options_are_read_without_pydantic(arguments: list[str]) -> None:
    """With it, the first page takes twice as long, and the daemon's worker starts 0.07 s later."""
    assert "pydantic" not in _modules_after(*arguments)


def test_help_tells_choices_and_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    bench = " ".join(capsys.readouterr().out.split())
    assert "--transport auto|ws|http " in bench
    assert "[default: 4; 2 or more]" in bench
    assert main(["run", "--help"]) == 0
    run = " ".join(capsys.readouterr().out.split())
    assert "[0 to 2]" in run
    assert "Arguments: MODEL As for serve" in run
    assert main(["pull", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: edgeagent pull [OPTIONS] [NAME]...\n")


@pytest.mark.parametrize("arguments", [["-h"], ["list", "-h"], ["cache", "-h"], ["cache", "stats", "-h"]])
def test_help_as_people_ask_for_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: edgeagent")


def test_the_version_as_people_ask_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"edgeagent {__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_closed_streams_lead_nowhere(tmp_path: Path) -> None:
    code = (
        "import os, sys; from edgeagent.cli import main; status = main(['version']); print('a', file=sys.stderr);"
        f"rows = [os.path.sameopenfile(number, os.open(os.devnull, os.O_RDWR)) for number in range(3)];"
        f"open({str(tmp_path / 'rows')!r}, 'w').write(repr((status, rows, sys.stdin.read())))"
    )
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], check=True)
    assert (tmp_path / "rows").read_text() == repr((0, [True, True, True], ""))


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe of POSIX")
def test_a_reader_that_has_left_is_no_failure() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-m", "edgeagent", "version"], stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffering", ["", "1"])
@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["config", "show", "--json"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str], buffering: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edgeagent", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env=_environment() | {"PYTHONUNBUFFERED": buffering},
        )
    assert (done.returncode, done.stderr) == (1, b"error: cannot write the output: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["typer", "msgspec"])
def test_an_interrupt_during_the_imports_is_quiet(module: str, tmp_path: Path) -> None:
    """The module that is being imported interrupts the process, and loses the exception as compiled code may."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(10)\n"
        "except KeyboardInterrupt:\n    raise RuntimeError('interrupted here') from None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "edgeagent", "config", "path"],
        capture_output=True,
        env=_environment() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(edgeagent.__file__).parents[1]}"},
    )
    # A shell shows the end by this signal as status 130.
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name} " in output and command.summary in output for name, command in COMMANDS.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "there is no command 'srve'; did you mean `edgeagent serve` or `edgeagent service`?"),
        (["config", "show", "--prot", "1"], "--port"),
        (
            ["config", "show", "--flash-attention", "maybe"],
            "--flash-attention: must be one of auto, on, off, not 'maybe' (see `edgeagent config show --help`)",
        ),
        (["config", "show", "--port", "99999"], "error: --port: must be a whole number from 0 to 65535, not '99999'\n"),
        (["config", "show", "--config", "/no/such/file.toml"], "no such config file"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "status", "printed"),
    [
        (BackendUnavailable("no daemon runs"), 1, "error: no daemon runs\n"),
        (ConfigError("bad option"), 2, "error: bad option\n"),
        (InvalidRequest("bad name"), 2, "error: bad name\n"),
        (ModelNotFound("no such model"), 2, "error: no such model\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(7), 7, ""),
    ],
)
def test_expected_errors_have_no_traceback(
    raised: BaseException,
    status: int,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise raised

    monkeypatch.setitem(COMMANDS, "fail", Command("x:y", "Fail."))
    monkeypatch.setattr(app, "_resolve", lambda target: fail)
    assert main(["fail"]) == status
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "nosuch"],
        ["serve", "--host", "0.0.0.0"],
        ["serve", "--tls-certificate", "x"],
        ["serve", "--tls-certificate", "x", "--tls-key", "y"],
        ["run", "nosuch", "-p", "hi"],
        ["run", "org/nosuch", "-p", "hi"],
        ["show", "nosuch"],
        ["fit", "nosuch"],
        ["rm", "nosuch"],
        ["cp", "builtin", "/x"],
        ["cp", "nosuch", "x"],
        ["quantize", "nosuch", "q4_0"],
        ["pull", "nosuch"],
    ],
)
def test_what_must_be_corrected_has_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEAGENT_SERVER__PORT", "0")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(arguments) == 2
    assert "error: " in capsys.readouterr().err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(COMMANDS, "fail", Command("x:y", "Fail."))
    monkeypatch.setattr(app, "_resolve", lambda target: fail)
    with pytest.raises(ZeroDivisionError):
        main(["fail"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("edgeagent ser", {"serve", "service"}),
        ("edgeagent serve --flash-att", {"--flash-attention"}),
        ("edgeagent serve --flash-attention o", {"on", "off"}),
        ("edgeagent config sh", {"show"}),
        ("edgeagent run bui", {"builtin"}),
        ("edgeagent serve bui", {"builtin"}),
    ],
)
def test_the_shell_completes(
    words: str, expected: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"_EDGEAGENT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):
        main([])
    assert set(capsys.readouterr().out.split()) == expected


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}


WITHOUT_A_DAEMON = [
    ["health"],
    ["ps"],
    ["load", "builtin"],
    ["unload", "builtin"],
    ["reload"],
    ["cache", "answers", "stats"],
    ["cache", "answers", "list"],
    ["remote", "status"],
    ["remote", "test", "nowhere"],
    ["show", "./none.gguf"],
    ["fit", "./none.gguf"],
]


@pytest.mark.parametrize("command", WITHOUT_A_DAEMON, ids=" ".join)
def test_an_error_is_json_too_if_that_is_asked_for(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command, "--state-dir", str(tmp_path)]
    status = main(words)
    plain = capsys.readouterr()
    assert status in (1, 2) and not plain.out
    assert main([*words, "--json"]) == status
    told = capsys.readouterr()
    error = json.loads(told.out)["error"]
    assert told.err == plain.err and error["code"]
    assert error["message"].split() == plain.err.removeprefix("error: ").split()
