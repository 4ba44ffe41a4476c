"""`edgeagent remote`: what it writes, what it asks, and the remedies that its errors name."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgeagent.cli import main, remote
from edgeagent.cli.remote import consent_text
from edgeagent.client import Address
from edgeagent.remotes import Budget, EndpointConfig, Key, Limits, Price, Remote, Terms, Tls
from edgeagent.remotes.file import add_remote, load_remotes
from edgeagent.runtime_file import write_private

Output = pytest.CaptureFixture[str]
SECRET = "sk-hush-0123456789"


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.delenv("GPU_KEY", raising=False)


def test_what_is_said_is_written(tmp_path: Path, capsys: Output) -> None:
    state = tmp_path / "state"
    command = (
        "remote add gpu https://a.example https://b.example:8443/llm --key-env GPU_KEY --region eu --region us "
        "--model builtin=meta/llama --model small=tiny --ctx 131072 --continues no --proxy http://p:3128 "
        f"--ca /etc/ca.pem --client-cert /c.pem --client-key /k.pem --pin {'AB' * 32} --price 0.5,1.5 "
        "--budget tokens=1000000 --budget client-money=2.5 --limit max_concurrent=8 --limit first_token_s=5 --yes"
    )
    assert main([*command.split(), "--state-dir", str(state)]) == 0
    output = capsys.readouterr()
    assert output.out == "Added gpu. Try it with `edgeagent remote test gpu`.\n"
    assert "GPU_KEY, which is not set" in output.err
    assert load_remotes(state) == (
        Remote(
            "gpu",
            (EndpointConfig("https://a.example/v1", "eu"), EndpointConfig("https://b.example:8443/llm/v1", "us")),
            key=Key("env", "GPU_KEY"),
            models={"builtin": "meta/llama", "small": "tiny"},
            context_length=131072,
            continues="no",
            tls=Tls("/etc/ca.pem", "ab" * 32, "/c.pem", "/k.pem"),
            proxy="http://p:3128",
            price=Price(0.5, 1.5),
            budget=Budget(tokens=1_000_000, client_money=2.5),
            limits=Limits(max_concurrent=8, first_token_s=5.0),
        ),
    )


def test_it_is_listed_and_removed(tmp_path: Path, capsys: Output) -> None:
    folder = ["--state-dir", str(tmp_path)]
    assert main(["remote", "list", *folder]) == 0
    assert "every request runs on this machine" in capsys.readouterr().out
    write_private(tmp_path / "key", SECRET.encode())
    add = ["remote", "add", "gpu", "https://gpu.example", "--key-file", str(tmp_path / "key"), "--budget", "tokens=9"]
    assert main([*add, "--region", "eu", "--yes", *folder]) == 0
    assert SECRET not in "".join(capsys.readouterr())
    assert main(["remote", "list", *folder]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["remote", "hosts", "models", "key", "budget"]
    assert row.split("  ")[0] == "gpu" and "gpu.example (eu)" in row and "tokens=9" in row and "any" in row
    assert main(["remote", "list", "--json", *folder]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["remotes"]
    assert listed["endpoints"] == [{"url": "https://gpu.example/v1", "region": "eu"}]
    assert listed["key"] == {"source": "file", "name": str(tmp_path / "key")}
    assert main(["remote", "rm", "gpu", *folder]) == 0
    assert main(["remote", "rm", "gpu", *folder]) == 2
    assert "no remote is named 'gpu'; there is none: add one with" in capsys.readouterr().err


def test_without_a_terminal_a_yes_must_be_said(tmp_path: Path, capsys: Output) -> None:
    assert main(["remote", "add", "gpu", "https://gpu.example", "--state-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "gpu is at gpu.example." in error and "repeat with --yes" in error
    assert load_remotes(tmp_path) == ()


@pytest.mark.parametrize(("typed", "is_added"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_at_a_terminal_it_asks(
    typed: str, is_added: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    status = main(["remote", "add", "gpu", "https://gpu.example", "--state-dir", str(tmp_path)])
    assert (status == 0, len(load_remotes(tmp_path)) == 1) == (is_added, is_added)
    assert "Let requests go there?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--key-env A --key-file b", "give one of --key-env, --key-file and --key-keyring"),
        ("--key-env sk-hush-123", "must be the name of an environment variable (not the key itself)"),
        ("--model builtin", "--model: must be LOCAL=REMOTE, e.g."),
        ("--region a --region b", "once for each of the 1 URLs"),
        ("--price 1", "--price: must be PROMPT,OUTPUT"),
        ("--price 1,x", "--price: must be PROMPT,OUTPUT"),
        ("--budget 100", "--budget: must be KIND=N, with KIND one of tokens, client_tokens, money, client_money"),
        ("--budget tokens=1.5", "--budget: must be tokens=N, N a whole number, not '1.5'"),
        ("--budget euros=1", "--budget: must be KIND=N"),
        ("--limit connect_s=x", "--limit: must be connect_s=N, N a number, not 'x'"),
        ("--limit connect_s=0", "limits.connect_s: must be more than 0"),
        ("--pin abc", "tls.pin: must be the SHA-256"),
        ("--proxy socks5://x", "proxy: must begin with https://"),
    ],
)
def test_wrong_options_are_told(options: str, message: str, tmp_path: Path, capsys: Output) -> None:
    add = ["remote", "add", "gpu", "https://gpu.example", "--yes", "--state-dir", str(tmp_path)]
    assert main([*add, *options.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and "hush" not in error
    assert not (tmp_path / "remotes.json").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://gpu.example", "--plaintext"),
        ("gpu.example", "must begin with https://"),
        ("https://ann:hush@gpu.example", "a URL must have no user name or password"),
    ],
)
def test_wrong_urls_are_told(url: str, message: str, tmp_path: Path, capsys: Output) -> None:
    assert main(["remote", "add", "gpu", url, "--yes", "--state-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error and "hush" not in error


def test_a_key_in_the_keyring_needs_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    add = ["remote", "add", "gpu", "https://gpu.example", "--key-keyring", "--yes", "--state-dir", str(tmp_path)]
    assert main(add) == 0
    assert "pip install 'edgeagent[keyring]'" in capsys.readouterr().err


def test_a_file_that_cannot_be_trusted_stops_every_command(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "remotes.json").write_text("{}")
    (tmp_path / "remotes.json").chmod(0o600)
    for command in (["list"], ["rm", "gpu"], ["add", "gpu", "https://gpu.example", "--yes"]):
        assert main(["remote", *command, "--state-dir", str(tmp_path)]) == 2
        assert "object missing required field `remotes`; fix it, or delete the file" in capsys.readouterr().err


def test_the_consent_says_what_leaves_and_what_changes() -> None:
    before = Remote("gpu", (EndpointConfig("https://old.example/v1"),))
    after = Remote("gpu", (EndpointConfig("http://10.0.0.7:8000/v1", "lab"), EndpointConfig("http://10.0.0.8:8000/v1")))
    text = consent_text(after, before, "auto")
    assert "gpu is at 10.0.0.7:8000 (lab), 10.0.0.8:8000." in text
    assert "It replaces gpu at old.example." in text
    assert "each request that this machine cannot serve, or not in time: its whole conversation" in text
    assert "the operator of 10.0.0.7:8000 and 10.0.0.8:8000" in text
    assert "Not encrypted" in text
    assert "Key: none is sent. Price and budget: no price, no daily budget." in text
    text = consent_text(
        Remote("gpu", before.endpoints, key=Key("file", "/k"), price=Price(1.0, 2.0)), None, "local_only"
    )
    assert "nothing while the daemon's route is local_only" in text and "It replaces" not in text
    assert "Key: in /k. Price and budget: 1 and 2 for a million tokens, no daily budget." in text
    assert "Not encrypted" not in text


def test_the_consent_names_the_operator_and_what_is_still_unknown() -> None:
    remote = Remote("gpu", (EndpointConfig("https://gpu.example/v1"),))
    assert (
        "Who can read it: the operator of gpu.example. Find out for how long it is kept (--retention) and whether "
        "models are trained on it (--training)."
    ) in consent_text(remote, None, "auto")
    known = replace(remote, terms=Terms("Example Ltd", "30 days", "no"))
    assert (
        "Who can read it: Example Ltd, the operator of gpu.example. As you were told, the operator keeps it for 30 "
        "days and does not train models on it."
    ) in consent_text(known, None, "auto")
    half = consent_text(replace(remote, terms=Terms(training="yes")), None, "auto")
    assert "the operator trains models on it. Find out for how long it is kept (--retention)." in half


def test_the_terms_are_kept(tmp_path: Path, capsys: Output) -> None:
    terms = ["--operator", "Example Ltd", "--retention", "30 days", "--training", "no"]
    add = ["remote", "add", "gpu", "https://gpu.example", *terms, "--yes", "--state-dir", str(tmp_path)]
    assert main(add) == 0
    capsys.readouterr()
    assert main(["remote", "list", "--json", "--state-dir", str(tmp_path)]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["remotes"]
    assert listed["terms"] == {"operator": "Example Ltd", "retention": "30 days", "training": "no"}
    add[add.index("30 days")] = "a\nb"
    assert main(add) == 2
    assert "terms.retention: must be printable" in capsys.readouterr().err


ROUTE: dict[str, Any] = {
    "mode": "prefer_local",
    "trouble": None,
    "ledger_trouble": "the egress ledger cannot be kept (No space left on device), so nothing is sent to remotes",
    "remotes": [
        {
            "name": "gpu",
            "trouble": None,
            "is_used": True,
            "num_live": 2,
            "num_tokens_today": 12345,
            "money_today": 0.25,
            "budget_trouble": None,
            "budget": {"tokens": 1_000_000, "money": None, "client_tokens": None, "client_money": None},
            "endpoints": [
                {
                    "url": "https://a.example/v1",
                    "region": "eu",
                    "breaker": "closed",
                    "cause": "",
                    "num_live": 2,
                    "first_token_s": 0.1234,
                    "token_s": 0.0085,
                    "num_waiting": 3,
                    "kv_usage": 0.5,
                },
                {"url": "https://b.example/v1", "region": "", "breaker": "open", "cause": "connect: timed out"},
            ],
        },
        {
            "name": "other",
            "trouble": "its key was refused (401)",
            "is_used": True,
            "num_live": 0,
            "num_tokens_today": 0,
            "money_today": 0.0,
            "budget_trouble": "the day's budget of the owner at the remote 'other' is used up",
            "budget": {"tokens": None, "money": None, "client_tokens": None, "client_money": None},
            "endpoints": [{"url": "https://c.example/v1", "region": ""}],
        },
    ],
}


def test_the_status_is_the_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    assert main(["remote", "status", "--state-dir", str(tmp_path)]) == 1
    assert "no daemon runs" in capsys.readouterr().err
    monkeypatch.setattr(remote, "daemon_of", lambda _: Address("http://127.0.0.1:1"))
    monkeypatch.setattr(remote, "ask", lambda address, path: {"route": ROUTE})
    assert main(["remote", "status", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "route: prefer_local"
    assert lines[1].startswith("the egress ledger cannot be kept")
    assert lines[3].split() == ["gpu", "a.example", "(eu)", "in", "use", "2", "123", "ms", "8.5", "ms", "3"]
    assert lines[4].split() == ["gpu", "b.example", "resting", "-", "-", "-", "-"]
    assert lines[5].split() == ["other", "c.example", "not", "used", "-", "-", "-", "-"]
    assert lines[6:] == [
        "gpu: https://b.example/v1: connect: timed out",
        "gpu: today (UTC): 12,345 of 1,000,000 tokens, 0.25 money",
        "other: its key was refused (401)",
        "other: the day's budget of the owner at the remote 'other' is used up",
    ]
    assert main(["remote", "status", "--json", "--state-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == ROUTE


def test_a_remote_that_is_added_again_is_replaced(tmp_path: Path, capsys: Output) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://old.example"),)))
    assert main(["remote", "add", "gpu", "https://new.example", "--yes", "--state-dir", str(tmp_path)]) == 0
    assert "It replaces gpu at old.example." in capsys.readouterr().err
    assert [each.endpoints[0].url for each in load_remotes(tmp_path)] == ["https://new.example/v1"]
