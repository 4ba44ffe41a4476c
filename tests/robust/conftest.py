"""A certificate that several rows use."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for box.example and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    arguments += ["-subj", "/CN=box.example", "-addext", "subjectAltName=DNS:box.example"]
    subprocess.run(
        [openssl, *arguments, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return certificate, key
