"""`edgeagent token`: what it prints and creates, and its errors. tests/robust covers what tokens give access to."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cli import main
from edgeagent.credentials.keys import Scope, add_browser
from edgeagent.runtime_file import TOKEN_FILE

Output = pytest.CaptureFixture[str]


def test_a_client_comes_and_goes(tmp_path: Path, capsys: Output) -> None:
    folder = ["--state-dir", str(tmp_path / "state")]
    assert main(["token", "add", "kiosk", "--scope", "infer", "--scope", "models", *folder]) == 0
    token = capsys.readouterr().out.strip()
    assert re.fullmatch(r"edge_[\w-]{43}", token)
    assert main(["token", "list", *folder]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "client  scopes         route            highest tier  expires",
        "kiosk   infer, models  as the daemon's  any           never",
    ]
    assert main(["token", "list", "--json", *folder]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "kiosk",
            "scopes": ["infer", "models"],
            "route": None,
            "tier": None,
            "answers": True,
            "is_browser": False,
            "expires_on": None,
        }
    ]
    assert main(["token", "remove", "kiosk", *folder]) == 0
    assert capsys.readouterr().out == "Removed the token of kiosk.\n"
    assert main(["token", "remove", "kiosk", *folder]) == 2
    assert "no client is named 'kiosk'" in capsys.readouterr().err


def test_a_client_may_have_a_route_and_a_highest_tier_of_its_own(tmp_path: Path, capsys: Output) -> None:
    folder = ["--state-dir", str(tmp_path)]
    assert main(["token", "add", "kiosk", "--route", "local_only", "--tier", "batch", *folder]) == 0
    capsys.readouterr()
    assert main(["token", "list", *folder]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "client  scopes  route       highest tier  expires",
        "kiosk   infer   local_only  batch         never",
    ]
    assert main(["token", "list", "--json", *folder]) == 0
    listed = json.loads(capsys.readouterr().out)[0]
    assert (listed["route"], listed["tier"]) == ("local_only", "batch")
    assert main(["token", "add", "kiosk", "--tier", "fast", *folder]) == 2
    assert "realtime" in capsys.readouterr().err
    assert main(["token", "add", "kiosk", "--route", "anywhere", *folder]) == 2
    assert "local_only" in capsys.readouterr().err


def test_a_browser_s_token_is_listed_with_its_last_day(tmp_path: Path, capsys: Output) -> None:
    add_browser(tmp_path, [Scope.INFER])
    expires_on = str(datetime.now(UTC).date() + timedelta(31))
    assert main(["token", "list", "--json", "--state-dir", str(tmp_path)]) == 0
    [browser] = json.loads(capsys.readouterr().out)
    assert (browser["is_browser"], browser["expires_on"]) == (True, expires_on)
    assert main(["token", "list", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(expires_on)


def test_a_token_that_is_replaced_is_told(tmp_path: Path, capsys: Output) -> None:
    add = ["token", "add", "kiosk", "--state-dir", str(tmp_path)]
    assert main(add) == 0
    assert capsys.readouterr().err == ""
    assert main(add) == 0
    output = capsys.readouterr()
    assert re.fullmatch(r"edge_[\w-]{43}\n", output.out)
    assert output.err == "kiosk had a token, which is refused from now on; this one replaces it.\n"


def test_each_command_can_answer_in_json(tmp_path: Path, capsys: Output) -> None:
    def output(*words: str) -> Any:
        assert main(["token", *words, "--json", "--state-dir", str(tmp_path)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return json.loads(captured.out)

    token = output("add", "kiosk").pop("token")
    replaced = output("add", "kiosk")
    assert replaced.pop("token") != token
    assert replaced == {"name": "kiosk", "is_replaced": True}
    assert output("remove", "kiosk") == {"name": "kiosk"}
    assert output("rotate") == {"file": str(tmp_path / TOKEN_FILE)}


def test_a_folder_that_cannot_be_created_is_told(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "state"
    assert main(["token", "add", "kiosk", "--state-dir", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: cannot create the state folder {folder}: "), error


def test_looking_makes_no_folder(tmp_path: Path, capsys: Output) -> None:
    assert main(["token", "list", "--state-dir", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "No client has a token of its own.\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", [["rotate"], ["add", "kiosk"], ["list"]])
def test_a_folder_that_cannot_be_used_is_told(command: list[str], tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["token", *command, "--state-dir", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_rotate_names_the_file(tmp_path: Path, capsys: Output) -> None:
    assert main(["token", "rotate", "--state-dir", str(tmp_path)]) == 0
    assert str(tmp_path / TOKEN_FILE) in capsys.readouterr().out
