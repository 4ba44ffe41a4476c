"""Certificates for servers on loopback, and the TLS context of such a server."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as files."""

    path: Path
    key: Path

    @property
    def pin(self) -> str:
        """The SHA-256 digest of the certificate."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.path.read_text())).hexdigest()


class Authority:
    """A test certificate authority (CA) in a folder."""

    def __init__(self, folder: Path, name: str = "ours") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make certificates with")
        self._folder = folder
        self.own = self.self_signed(name)

    def self_signed(self, name: str) -> Certificate:
        """Return a self-signed certificate."""
        self._openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )  # fmt: skip
        return self._made(name)

    def signed(self, name: str, names: str = "IP:127.0.0.1", days: int = 2) -> Certificate:
        """Return a certificate for these names; with negative `days` it has expired."""
        (self._folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self._openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", self.own.path.name, "-CAkey", self.own.key.name,
            "-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
        return self._made(name)

    def _made(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self._folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def server_context(certificate: Certificate, *, wants: Authority | None = None) -> ssl.SSLContext:
    """Return a server's TLS context. With `wants`, the server requires a client certificate of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key)
    if wants is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(wants.own.path)
    return context
