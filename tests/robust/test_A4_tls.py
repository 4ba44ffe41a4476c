"""A4: TLS over real connections: the certificates that our clients refuse, and the protocols the daemon refuses."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from edgeagent.bench.client import find_server
from edgeagent.cli.link import ask
from edgeagent.client import Address, connect
from edgeagent.daemon.listeners import server_context, trouble_with
from edgeagent.errors import BackendUnavailable, EdgeAgentError
from tests.patience import patient
from tests.robust.fake_serve import serving

Files = tuple[Path, Path]
Make = Callable[..., Files]
SECRET = "edge_canaryCanaryCanaryCanaryCanary"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate authority for the tests: ca.pem, ca.key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("authority")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *key, "-days", "2", "-subj", "/CN=ours", "-keyout", "ca.key", "-out", "ca.pem")
    return folder


@pytest.fixture(scope="module")
def make(authority: Path) -> Make:
    """Return a function that makes a certificate and its key for names, with openssl's from and to dates."""

    def made(name: str, names: str, dates: tuple[str, str] | None = None) -> Files:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl(authority, "req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (authority / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        (authority / "index.txt").write_text("")
        (authority / "serial").write_text("01\n")
        (authority / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndir={authority}\ndatabase={authority}/index.txt\nserial={authority}/serial\n"
            f"new_certs_dir={authority}\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n"
        )
        valid = ["-startdate", dates[0], "-enddate", dates[1]] if dates else ["-days", "2"]
        files = ["-cert", "ca.pem", "-keyfile", "ca.key", "-in", f"{name}.csr", "-out", f"{name}.pem"]
        openssl(authority, "ca", "-batch", "-notext", "-config", "ca.cnf", *files, "-extfile", f"{name}.ext", *valid)
        return authority / f"{name}.pem", authority / f"{name}.key"

    return made


def openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def good(make: Make) -> Files:
    return make("good", "IP:127.0.0.1,DNS:localhost")


@pytest.fixture(scope="module")
def wrong_name(make: Make) -> Files:
    return make("wrong", "DNS:box.example")


@pytest.fixture(scope="module")
def expired(make: Make) -> Files:
    return make("expired", "IP:127.0.0.1", ("20200101000000Z", "20200201000000Z"))


@contextmanager
def overheard(files: Files) -> Iterator[tuple[str, list[bytes]]]:
    """Serve TLS with a certificate; yield the URL and all data that clients send after accepting it."""
    context, heard = server_context(*files), list[bytes]()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        heard.append(secure.recv(4096))
                except OSError:
                    pass

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", heard
        finally:
            # A blocked accept does not notice that its socket was closed.
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()


async def ask_in_every_way(address: Address) -> None:
    """Connect with each of our clients; each must refuse the certificate."""
    with pytest.raises(BackendUnavailable, match=r"(?i)certificate"):
        ask(address, "/edgeagent/status")
    with pytest.raises(EdgeAgentError):
        async with connect(address.url, address.token):
            pass
    with pytest.raises(EdgeAgentError):
        await find_server(address, "http")


@pytest.mark.parametrize("kind", ["expired", "wrong_name"])
async def test_clients_refuse_it_before_they_say_a_word(
    kind: str, authority: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    with overheard(request.getfixturevalue(kind)) as (url, heard):
        await ask_in_every_way(Address(url, SECRET))
    assert b"".join(heard) == b""


async def test_clients_accept_what_is_right(authority: Path, good: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients accept a sound certificate, so the refusals above concern the certificates."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
    with overheard(good) as (url, heard):
        with pytest.raises(BackendUnavailable):
            ask(Address(url, SECRET), "/edgeagent/status")
        with pytest.raises(EdgeAgentError):
            async with connect(url, SECRET):
                pass
        with pytest.raises(EdgeAgentError):
            await find_server(Address(url, SECRET), "http")
    assert len(heard) >= 3
    assert all(SECRET.encode() in said for said in heard)


async def test_an_expired_certificate_of_our_own(tmp_path: Path, expired: Files) -> None:
    """The daemon reports it at its start, and even a client that pinned it refuses it."""
    tls, key = expired
    with (
        serving(tmp_path / "state", "--tls-certificate", str(tls), "--tls-key", str(key)) as daemon,
        pytest.raises(BackendUnavailable, match="expired"),
    ):
        ask(Address(daemon.runtime.url, SECRET, str(tls)), "/edgeagent/status")
    log = (tmp_path / "state.log").read_text()
    assert f"the certificate {tls} has expired" in log


def test_what_is_wrong_with_a_certificate(make: Make, good: Files, expired: Files, wrong_name: Files) -> None:
    assert trouble_with(good[0]) is None
    assert trouble_with(wrong_name[0]) is None
    assert "has expired" in (trouble_with(expired[0]) or "")
    early = make("early", "IP:127.0.0.1", ("20800101000000Z", "20810101000000Z"))
    assert "is not valid yet" in (trouble_with(early[0]) or "")


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path, good: Files) -> None:
    tls, key = good
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(OSError, match="the key is encrypted"):
        server_context(tls, locked)


def protocol(port: int, version: ssl.TLSVersion) -> str | None:
    """Return the protocol that a client with only this version negotiates."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    # Without this, OpenSSL would not offer such an old version.
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", port), timeout=patient(30)) as plain,
        client.wrap_socket(plain) as secure,
    ):
        return secure.version()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_oldest_protocol(tmp_path: Path, good: Files) -> None:
    tls, key = good
    assert server_context(tls, key).minimum_version is ssl.TLSVersion.TLSv1_2
    with serving(tmp_path / "state", "--tls-certificate", str(tls), "--tls-key", str(key)) as daemon:
        port = daemon.runtime.port
        assert protocol(port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert protocol(port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.raises(ssl.SSLError, match=r"(?i)alert|protocol|version"):
                protocol(port, old)
