"""A4: the daemon listens on loopback alone; other addresses need a flag, a token and TLS."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from edgeagent.bench.client import BenchRequest, Trace, Transport, connection_to, find_server
from edgeagent.cli.link import ask
from edgeagent.client import Address, connect
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon.listeners import listening
from edgeagent.daemon.state import StartError
from edgeagent.errors import BackendUnavailable
from tests.backends.fake import FakeBackend
from tests.daemon.running import TOKEN, running
from tests.robust.fake_serve import Process, serving
from tests.robust.raw import get

TRANSPORTS: tuple[Transport, ...] = ("ws", "http")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.53", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("*", False),
        ("", False),
        ("192.168.1.2", False),
        ("localhost.evil.example", False),
        ("example.com", False),
    ],
)
def test_what_counts_as_loopback(host: str, expected: bool) -> None:
    assert ServerConfig(host=host).is_loopback is expected
    assert ServerConfig(host=host).is_token_needed is not expected


def test_other_addresses_need_tls_or_a_word(certificate: tuple[Path, Path]) -> None:
    with pytest.raises(StartError, match="--plaintext"), listening(ServerConfig(host="0.0.0.0", port=0)):
        pass
    with listening(ServerConfig(host="0.0.0.0", port=0, plaintext=True)):
        pass
    tls, key = certificate
    with listening(ServerConfig(host="0.0.0.0", port=0, tls_certificate=tls, tls_key=key)):
        pass
    with pytest.raises(StartError, match="go together"), listening(ServerConfig(port=0, tls_certificate=tls)):
        pass
    wrong = ServerConfig(port=0, tls_certificate=key, tls_key=tls)
    with pytest.raises(StartError, match="certificate"), listening(wrong):
        pass


def test_wyoming_has_no_token_so_its_host_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with listening(ServerConfig(port=0)) as found:
        assert found.wyoming is None
    with listening(ServerConfig(port=0, host="0.0.0.0", plaintext=True, wyoming=0)) as found:
        assert found.wyoming is not None
        assert found.wyoming.getsockname()[0] == "127.0.0.1"
    assert not caplog.records
    with listening(ServerConfig(port=0, wyoming=0, wyoming_host="0.0.0.0")):
        assert "Wyoming has neither passwords nor encryption: whoever reaches 0.0.0.0" in caplog.text
    refused = ServerConfig(port=0, wyoming=0, token_required=True)
    with pytest.raises(StartError, match="token_required wants a token of every client"), listening(refused):
        pass
    with listening(ServerConfig(port=0, wyoming=0)) as found, pytest.raises(StartError, match="port with --wyoming"):
        assert found.wyoming is not None
        taken = ServerConfig(port=0, wyoming=found.wyoming.getsockname()[1])
        with listening(taken):
            pass


async def test_other_machines_always_need_the_token() -> None:
    server = ServerConfig(host="0.0.0.0", allowed_hosts=("box.example",), plaintext=True)
    async with running(FakeBackend(), Config(server=server)) as daemon:
        assert (await get(daemon, "Host: box.example")).status == 401
        assert (await get(daemon, "Host: box.example", f"Authorization: Bearer {TOKEN}")).status == 200
        assert (await get(daemon, "Host: 0.0.0.0:{port}", f"Authorization: Bearer {TOKEN}")).status == 403


async def test_tls_from_end_to_end(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    tls, key = certificate
    flags = ["--host", "0.0.0.0", "--tls-certificate", str(tls), "--tls-key", str(key)]
    with serving(tmp_path / "state", *flags, "--allowed-hosts", "box.example") as daemon:
        found = daemon.runtime
        assert found.url == f"https://127.0.0.1:{found.port}"
        address = Address(found.url, found.token, found.certificate)
        assert ask(address, "/edgeagent/status")["default_model"] == "fake"
        async with connect(state_dir=daemon.state_dir) as client:
            assert (await client.respond("one two").finish()).text == "one two"
        for transport in TRANSPORTS:
            server = await find_server(Address(found.url, found.token, found.certificate), transport)
            async with connection_to(server) as connection:
                trace = Trace()
                await connection.ask(BenchRequest("one two", max_tokens=4), trace)
            assert len(trace.texts) == 2
        # Clients trust no other certificate, nor this one unless they were told of it; nothing is sent to either.
        with pytest.raises(BackendUnavailable, match="certificate"):
            ask(Address(found.url, found.token), "/edgeagent/status")
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{found.port}/v1/models")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A daemon without flags."""
    with serving(tmp_path_factory.mktemp("plain") / "state") as daemon:
        yield daemon


@LINUX
def test_only_the_port_is_open(plain: Process) -> None:
    parent = psutil.Process(plain.process.pid)
    sockets = [
        connection.laddr
        for process in [parent, *parent.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    ]
    assert sockets == [("127.0.0.1", plain.runtime.port)]


@LINUX
def test_other_addresses_of_this_machine_refuse(plain: Process) -> None:
    found = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    addresses = {entry.address for entry in found if entry.family == socket.AF_INET} - {"127.0.0.1"}
    for address in addresses | {"127.0.0.2"}:
        with socket.socket() as probe:
            probe.settimeout(5)
            assert probe.connect_ex((address, plain.runtime.port)) != 0, address


@LINUX
def test_another_network_namespace_does_not_reach_it(plain: Process) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    attempt = f"import socket; raise SystemExit(socket.socket().connect_ex(('127.0.0.1', {plain.runtime.port})))"
    assert subprocess.run([sys.executable, "-c", attempt]).returncode == 0
    # Nothing listens in there, even though the namespace has a loopback interface of its own.
    code = f"import subprocess; subprocess.run(['ip', 'link', 'set', 'lo', 'up']); {attempt}"
    inside = subprocess.run([unshare, "-rn", sys.executable, "-c", code], capture_output=True)
    assert inside.returncode not in (0, 1), inside.stderr


@LINUX
def test_its_own_hosts_beyond_loopback(tmp_path: Path) -> None:
    """The address at which a connection arrived and the machine's names are accepted; no other host is."""
    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == 2]
    name = socket.gethostname().lower()
    short = name.partition(".")[0]
    with serving(tmp_path / "state", "--host", "0.0.0.0", "--plaintext", "--allowed-hosts", "box.example") as daemon:
        port, token = daemon.runtime.port, daemon.runtime.token

        def status(address: str, host: str, key: str | None) -> int:
            headers = {"Host": host} | ({"Authorization": f"Bearer {key}"} if key else {})
            return httpx.get(f"http://{address}:{port}/v1/models", headers=headers).status_code

        for address in {*found, "127.0.0.1", "127.0.0.2"}:
            for host in (address, "127.0.0.1", "localhost", name, short, f"{short}.local", "box.example"):
                assert status(address, f"{host}:{port}", token) == 200, (address, host)
                # A token is required, even from this machine.
                assert status(address, f"{host}:{port}", None) == 401
            assert status(address, "box.example", token) == 200
            for host in ("127.0.0.3", "0.0.0.0", "192.0.2.77", "evil.example", f"{short}.evil.example", f"x{short}"):
                assert status(address, f"{host}:{port}", token) == 403, (address, host)
            assert status(address, f"{address}:{port + 1}", token) == 403
        others = [address for address in found if not address.startswith("127.")]
    log = (tmp_path / "state.log").read_text()
    for address in others:
        assert f"http://{address}:{port}" in log
    assert str(daemon.state_dir / "token") in log and str(token) not in log


@LINUX
def test_its_own_hosts_on_ipv6(tmp_path: Path) -> None:
    found = [entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == 10]
    if "::1" not in found:
        pytest.skip("no IPv6 here")
    with serving(tmp_path / "state", "--host", "::", "--plaintext") as daemon:
        port, headers = daemon.runtime.port, {"Authorization": f"Bearer {daemon.runtime.token}"}
        # A link-local address has a zone, which httpx's URLs cannot express.
        for address in [address for address in found if "%" not in address]:
            assert httpx.get(f"http://[{address}]:{port}/v1/models", headers=headers).status_code == 200
            other = headers | {"Host": f"[2001:db8::7]:{port}"}
            assert httpx.get(f"http://[{address}]:{port}/v1/models", headers=other).status_code == 403
        # A socket for both families shows an IPv4 client with an IPv6 address.
        with socket.socket() as probe:
            takes_both = probe.connect_ex(("127.0.0.1", port)) == 0
        if takes_both:
            assert httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers).status_code == 200


def test_loopback_alone_has_no_other_hosts(plain: Process) -> None:
    for host in (socket.gethostname(), f"{socket.gethostname()}.local", "127.0.0.2", "192.0.2.2"):
        headers = {"Host": f"{host}:{plain.runtime.port}"}
        assert httpx.get(f"{plain.runtime.url}/health", headers=headers).status_code == 403
    assert "other machines" not in plain.state_dir.with_suffix(".log").read_text()
