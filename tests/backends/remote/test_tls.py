"""Row F12 f: a remote that cannot prove its identity gets no byte of a request, and no key."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from edgeagent.errors import RemoteUnavailable
from edgeagent.remotes import Tls
from tests.backends.remote.certificates import Authority, Certificate, server_context
from tests.backends.remote.fault_server import FaultServer, faults, stream
from tests.backends.remote.streams import answer
from tests.backends.remote.support import Answer, Rows, ask, backend


def refused(got: Answer, server: FaultServer, said: str) -> None:
    """Check that the remote was not trusted and received nothing."""
    assert isinstance(got.error, RemoteUnavailable), got
    assert said in got.error.message.lower()
    assert server.asked == []


async def test_a_certificate_of_our_own_authority(authority: Authority, good: Certificate) -> None:
    async with (
        faults(stream(answer("a")), tls=server_context(good)) as server,
        backend(server.url, tls=Tls(ca_file=str(authority.own.path))) as remote,
    ):
        assert (await ask(remote)).text == "a"


@pytest.mark.parametrize("kind", ["expired", "wrong name", "self-signed", "another authority"])
async def test_certificates_that_prove_nothing(kind: str, authority: Authority, tmp_path: Path) -> None:
    match kind:
        case "expired":
            shown, said = authority.signed("expired", days=-1), "expired"
        case "wrong name":
            shown, said = authority.signed("wrong", "DNS:box.example,IP:127.0.0.2"), "mismatch"
        case "self-signed":
            shown, said = authority.self_signed("alone"), "self-signed"
        case _:
            shown, said = Authority(tmp_path, "theirs").signed("theirs-good"), "local issuer"
    rows = Rows()
    async with (
        faults(stream(answer("a")), tls=server_context(shown)) as server,
        backend(server.url, tls=Tls(ca_file=str(authority.own.path)), ledger=rows) as remote,
    ):
        refused(await ask(remote), server, said)
    assert set(rows.outcomes) == {"untrusted"}


async def test_the_system_does_not_know_our_authority(good: Certificate) -> None:
    async with faults(stream(answer("a")), tls=server_context(good)) as server, backend(server.url) as remote:
        refused(await ask(remote), server, "not trusted")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_old_protocol(authority: Authority, good: Certificate) -> None:
    context = server_context(good)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with (
        faults(stream(answer("a")), tls=context) as server,
        backend(server.url, tls=Tls(ca_file=str(authority.own.path))) as remote,
    ):
        refused(await ask(remote), server, "tls")


async def test_plain_http_on_the_port(authority: Authority) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(4096))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with backend(f"https://127.0.0.1:{port}/v1", tls=Tls(ca_file=str(authority.own.path))) as remote:
            got = await ask(remote)
    assert isinstance(got.error, RemoteUnavailable) and "TLS" in got.error.message
    assert heard[:1] == b"\x16", "a TLS handshake, and nothing else"
    assert b"canary" not in heard


async def test_a_pin(authority: Authority, good: Certificate) -> None:
    """The pinned certificate is accepted and any other is refused. Their issuers do not matter."""
    alone = authority.self_signed("pinned")
    for shown, pin, ca_file, is_right in (
        (alone, alone.pin, None, True),
        (good, good.pin, authority.own.path, True),
        (good, alone.pin, authority.own.path, False),
        (good, alone.pin, None, False),
        (alone, alone.pin, authority.own.path, False),
    ):
        tls = Tls(ca_file=str(ca_file) if ca_file else None, pin=pin)
        async with (
            faults(stream(answer("a")), tls=server_context(shown)) as server,
            backend(server.url, tls=tls) as remote,
        ):
            got = await ask(remote)
            assert (got.text == "a") is is_right is bool(server.asked)


async def test_a_client_certificate(authority: Authority, good: Certificate) -> None:
    ours = authority.signed("client")
    context = server_context(good, wants=authority)
    ca_file = str(authority.own.path)
    async with faults(stream(answer("a")), tls=context) as server:
        known = Tls(ca_file=ca_file, client_certificate=str(ours.path), client_key=str(ours.key))
        async with backend(server.url, tls=known) as remote:
            assert (await ask(remote)).text == "a"
        server.asked.clear()
        async with backend(server.url, tls=Tls(ca_file=ca_file)) as remote:
            got = await ask(remote)
            assert isinstance(got.error, RemoteUnavailable)
            assert server.asked == []
