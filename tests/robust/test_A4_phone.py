"""`edgeagent open --phone`: a link is a credential, so it is made for another machine only over TLS."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.runtime_file import find_daemon
from tests.patience import patient


@contextmanager
def serving(state_dir: Path, *flags: str) -> Iterator[None]:
    command = [sys.executable, "-m", "edgeagent", "serve", "--port", "0", "--state-dir", str(state_dir), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        assert daemon.stdout is not None
        try:
            next(line for line in daemon.stdout if " listening on " in line)
            yield
        finally:
            daemon.terminate()
            daemon.communicate()


def test_a_phone_gets_a_link_over_tls_and_its_qr_code(
    certificate: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, key = map(str, certificate)
    with serving(tmp_path, "--host", "0.0.0.0", "--tls-certificate", tls, "--tls-key", key):
        found = find_daemon(tmp_path)
        assert found is not None
        if not found.network_urls:
            pytest.skip("this machine has no address that others could reach")
        assert main(["open", "--phone", "--state-dir", str(tmp_path)]) == 0
        url, *code = capsys.readouterr().out.splitlines()
        assert url.startswith(f"{found.network_urls[0]}/#") and found.network_urls[0].startswith("https://")
        assert len(code) > 10 and len({len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in code}) == 1, "a square"
        trusting = ssl.create_default_context(cafile=tls)
        trusting.check_hostname = False
        request = urllib.request.Request(url, headers={"Accept": "text/html"})
        with urllib.request.urlopen(request, timeout=patient(30), context=trusting) as page:
            assert b"<title>edgeagent" in page.read()


@pytest.mark.parametrize(
    ("flags", "said"),
    [((), "from this machine only"), (("--host", "0.0.0.0", "--plaintext"), "without TLS")],
)
def test_a_phone_gets_no_link_otherwise(
    flags: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, *flags):
        found = find_daemon(tmp_path)
        if flags and not (found and found.network_urls):
            pytest.skip("this machine has no address that others could reach")
        assert main(["open", "--phone", "--state-dir", str(tmp_path)]) != 0
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""
