"""`edgeagent pull`, as a user runs it, against a local hub."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from edgeagent.cli import main
from edgeagent.cli.display import size_text
from edgeagent.cli.progress import progress
from edgeagent.cli.pull import JsonReport, TextReport
from edgeagent.errors import StoreError
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.hub.pull import Progress, PulledModel
from tests.hub_server import HubServer, hub_server, sha256
from tests.patience import patient
from tests.store.gguf_bytes import small_model

REPO = "org/model-GGUF"
SMALL = small_model(3, 300_000)
HELD = 131_072


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.add(REPO, {"model-Q4_0.gguf": SMALL})
        yield server


class Shell:
    """Runs the command with its own cache, state folder and hub: in this process, or in one that can be killed."""

    def __init__(self, folder: Path, url: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.cache = HubCache(folder / "cache")
        self._folders = ("--models-dir", str(self.cache.root), "--state-dir", str(folder / "state"))
        self._capsys = capsys
        for name in os.environ:
            if name.startswith(("HF_", "EDGEAGENT_")):
                patch.delenv(name)
        for name, value in {
            "HF_ENDPOINT": url,
            "HF_HOME": str(folder / "hf"),
            "NO_PROXY": "127.0.0.1",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }.items():
            patch.setenv(name, value)
        # huggingface_hub has read the environment already.
        patch.setattr(constants, "ENDPOINT", url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "hf" / "token"))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "edgeagent", *arguments, *self._folders]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        return main([*arguments, *self._folders]), *self._capsys.readouterr()

    def wait_for_partial(self, process: subprocess.Popen[str], num_bytes: int) -> Path:
        partial = self.cache.partial(REPO, sha256(SMALL))
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size >= num_bytes):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return partial


@pytest.fixture
def shell(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, hub.url, monkeypatch, capsys)


def test_pull_then_list(shell: Shell, hub: HubServer) -> None:
    status, out, err = shell.run("pull", REPO)
    assert (status, out) == (0, f"{REPO}:Q4_0 is here: 300.7 kB, downloaded 300.7 kB.\n")
    assert "downloading model-Q4_0.gguf: 100%" in err and "Traceback" not in err
    status, out, _ = shell.run("pull", REPO)
    assert (status, out) == (0, f"{REPO}:Q4_0 is here: 300.7 kB, nothing to download.\n")
    status, out, _ = shell.run("list")
    row = next(line for line in out.splitlines() if line.startswith(REPO))
    assert status == 0 and row.split()[1:6] == ["llama", "Q8_0", "300.7", "kB", "512"]


def test_pull_json(shell: Shell) -> None:
    status, out, _ = shell.run("pull", "--json", REPO, "org/none")
    events = [json.loads(line) for line in out.splitlines()]
    assert status == 2, "the name of the second model must be corrected"
    assert {event["event"] for event in events} == {"progress", "done", "error"}
    done = next(event for event in events if event["event"] == "done")
    assert (done["model"], done["name"], done["downloaded_bytes"]) == (REPO, f"{REPO}:Q4_0", len(SMALL))
    assert Path(done["paths"][0]).read_bytes() == SMALL
    assert (events[-1]["model"], events[-1]["code"]) == ("org/none", "model_not_found")


def test_pull_that_fails(shell: Shell, hub: HubServer) -> None:
    hub.faults.corrupt = True
    status, out, err = shell.run("pull", REPO)
    assert (status, out) == (1, "")
    assert "error: model-Q4_0.gguf of org/model-GGUF arrived with another sha256" in err
    assert shell.run("pull", "not a name")[0] == 2
    assert shell.run("pull", REPO, "not a name")[0] == 1, "for one of them a retry may help"


def test_pull_without_a_network(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    status, out, err = shell.run("pull", REPO)
    assert (status, out) == (1, "")
    assert "cannot be reached" in err and "Traceback" not in err


def test_an_error_is_said_once(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "egress").write_text("in the way")
    # In a process of its own, where nothing has set up the log.
    process = shell.start("pull", REPO)
    out, err = process.communicate(timeout=patient(60))
    assert (process.returncode, out) == (1, "")
    assert err.count("cannot be kept") == 1 and err.count("\n") == 1, err


DRAFT_REPO, TARGET_REPO = "Qwen/Qwen3-0.6B-GGUF", "Qwen/Qwen3-1.7B-GGUF"


def test_a_target_comes_with_its_draft(shell: Shell, hub: HubServer) -> None:
    hub.add(TARGET_REPO, {"Qwen3-1.7B-Q8_0.gguf": SMALL})
    hub.add(DRAFT_REPO, {"Qwen3-0.6B-Q8_0.gguf": small_model(4)})
    assert shell.run("pull", "--no-draft", "qwen3:1.7b")[1] == "qwen3-1.7b is here: 300.7 kB, downloaded 300.7 kB.\n"
    assert not shell.cache.files(DRAFT_REPO)
    status, out, _ = shell.run("pull", "qwen3:1.7b")
    assert (status, out.splitlines()[1][:18]) == (0, "qwen3-0.6b is here")
    assert shell.cache.files(DRAFT_REPO)


def test_pull_offline(shell: Shell, hub: HubServer) -> None:
    status, _, err = shell.run("pull", "--offline", REPO)
    assert status == 1 and "with --offline the hub is not asked" in err and hub.requests == []


def test_the_hub_s_token_is_never_shown(shell: Shell, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    status, out, err = shell.run("pull", REPO)
    assert status == 1 and "`hf auth login`" in err and "hf_secret" not in out + err
    assert "Bearer hf_secret" in {request.authorization for request in hub.requests}


def test_pull_killed_at_once_is_resumed(shell: Shell, hub: HubServer) -> None:
    hub.faults.hold_after = HELD
    process = shell.start("pull", REPO)
    partial = shell.wait_for_partial(process, HELD)
    process.kill()
    process.communicate()
    assert not shell.cache.files(REPO)
    hub.faults.hold_after = None
    hub.release.set()
    kept, before = partial.stat().st_size, hub.sent_bytes
    status, _, _ = shell.run("pull", REPO)
    assert status == 0 and kept >= HELD
    assert shell.cache.files(REPO)["model-Q4_0.gguf"].read_bytes() == SMALL
    assert hub.asked("GET", "storage")[-1].byte_range == f"bytes={kept}-"
    assert hub.sent_bytes >= before + len(SMALL) - kept


@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C to a whole console, not to a process")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_pull_interrupted_says_what_is_kept(shell: Shell, hub: HubServer, options: tuple[str, ...]) -> None:
    hub.faults.hold_after = HELD
    process = shell.start("pull", *options, REPO)
    partial = shell.wait_for_partial(process, HELD)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=patient(60))
    assert process.returncode == 130
    assert "Traceback" not in err and not shell.cache.files(REPO)
    if options:
        last = json.loads(out.splitlines()[-1])
        assert (last["event"], last["done_bytes"], last["total_bytes"]) == ("interrupted", HELD, len(SMALL))
    else:
        assert f"131.1 kB of 300.7 kB are kept. To continue: edgeagent pull {REPO}" in err
    assert partial.stat().st_size == HELD
    hub.faults.hold_after = None
    hub.release.set()
    assert shell.run("pull", REPO)[0] == 0


def test_two_pulls_at_once_download_once(shell: Shell, hub: HubServer) -> None:
    hub.faults.hold_after = HELD
    first = shell.start("pull", REPO)
    shell.wait_for_partial(first, HELD)
    second = shell.start("pull", "--json", REPO)
    assert second.stdout is not None
    waiting = json.loads(second.stdout.readline())
    assert waiting["stage"] == "waiting"
    hub.faults.hold_after = None
    hub.release.set()
    assert "downloaded 300.7 kB" in first.communicate(timeout=patient(60))[0]
    assert json.loads(second.communicate(timeout=patient(60))[0].splitlines()[-1])["downloaded_bytes"] == 0
    assert (first.returncode, second.returncode) == (0, 0)
    # On a slow machine, the pause may be too long for the first: it then goes on where it was, by a range of bytes.
    assert [request.byte_range for request in hub.asked("GET", "storage")].count(None) == 1


def steps(total: int, *done: int) -> list[Progress]:
    return [Progress("downloading", "m.gguf", num_bytes, total, 0) for num_bytes in done]


def test_the_bar_is_drawn_and_goes_away(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    report = TextReport("m")
    with progress("bytes") as show:
        for step in [*steps(100, 10, 50), Progress("verifying", "m.gguf", 100, 100, 0)]:
            report.progress(show, step)
    report.done(PulledModel("o/m:Q4_0", (), 100, 100, is_current=False, draft="small"))
    out, err = capsys.readouterr()
    assert out == "o/m:Q4_0 is here: 100 B, downloaded 100 B.\n"
    assert "edgeagent run o/m:Q4_0" in err and "newer one" in err


def test_the_bar_fits_80_columns_whatever_the_file_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with progress("bytes") as show:
        step = Progress("downloading", f"{'long' * 20}.gguf", 50_000_000, 100_000_000, 0)
        TextReport("m").progress(show, step)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()]
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("downloading longlong") and "…" in line and "50.0/100.0 MB" in line for line in lines)


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    report = TextReport("m")
    with progress("bytes") as show:
        for step in steps(1000, *range(0, 1001, 5)):
            report.progress(show, step)
    report.interrupted()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[-1] == "error: interrupted. 1.0 kB of 1.0 kB are kept. To continue: edgeagent pull m"


def test_an_interrupt_before_the_first_byte(capsys: pytest.CaptureFixture[str]) -> None:
    TextReport("m").interrupted()
    JsonReport("m").interrupted()
    JsonReport("m").failed(StoreError("no"))
    out, err = capsys.readouterr()
    assert err == "error: interrupted. To continue: edgeagent pull m\n"
    assert json.loads(out.splitlines()[1]) == {"event": "error", "model": "m", "code": "store_error", "message": "no"}


@pytest.mark.parametrize("num_bytes, text", [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (5_300_000_000, "5.3 GB")])
def test_sizes(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def test_the_module_imports_nothing_heavy() -> None:
    heavy = ("rich.progress", "huggingface_hub", "pydantic")
    code = f"import sys, edgeagent.cli.pull; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
