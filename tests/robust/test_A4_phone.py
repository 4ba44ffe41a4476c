"""`edgeagent open --phone`: a link is a credential, so it is made for another machine only over TLS."""

from __future__ import annotations

import re
import ssl
import urllib.request
from pathlib import Path

import pytest

from edgeagent.cli import main
from tests.patience import patient
from tests.robust.fake_serve import serving


def test_a_phone_gets_a_link_over_tls_and_its_qr_code(
    certificate: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, key = map(str, certificate)
    with serving(tmp_path / "s", "--host", "0.0.0.0", "--tls-certificate", tls, "--tls-key", key) as daemon:
        found = daemon.runtime
        if not found.network_urls:
            pytest.skip("this machine has no address that others could reach")
        assert main(["open", "--phone", "--state-dir", str(daemon.state_dir)]) == 0
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
    with serving(tmp_path / "s", *flags) as daemon:
        if flags and not daemon.runtime.network_urls:
            pytest.skip("this machine has no address that others could reach")
        assert main(["open", "--phone", "--state-dir", str(daemon.state_dir)]) != 0
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""
