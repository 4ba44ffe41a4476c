"""Which addresses are fetched, from a real server, and what may go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.backends.remote import image_fetcher as module
from edgeagent.backends.remote.image_fetcher import ImageFetcher, _is_public
from edgeagent.egress import FETCH
from edgeagent.egress.ledger import Ledger
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.machine_policy import PolicyFile
from tests.backends.remote.certificates import Authority, Certificate, server_context
from tests.image_site import Site, site_of_images
from tests.media import RED
from tests.worker.support import eventually


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_of_images(tmp_path) as site:
        yield site


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path)
    yield ledger
    ledger.close()


def fetcher(ledger: Ledger, *hosts: str) -> ImageFetcher:
    return ImageFetcher(hosts, PolicyFile(), ledger)


def uncounted(url: str, num_bytes: int) -> None:
    pass


async def test_an_image_is_fetched_once_and_has_its_row_before(site: Site, ledger: Ledger, tmp_path: Path) -> None:
    own, url = fetcher(ledger, site.host), f"http://{site.host}/red.png?size=1#part"
    assert own.why_not(url) == ""
    assert await own.fetch([url, url], "kiosk", uncounted) == {url: RED}
    assert site.paths == ["/red.png?size=1"] and site.num_open == [1]
    (headers,) = site.headers
    assert headers.keys() == {"Host", "User-Agent", "Accept", "Accept-Encoding"}
    (row,) = read_rows(folder_of(tmp_path))
    assert (row.reason, row.host, row.client, row.outcome) == (FETCH, site.host, "kiosk", "completed")
    assert row.num_bytes == len(url)
    assert await own.fetch([url], "kiosk", uncounted) == {url: RED}
    assert len(site.paths) == 1, "the next question of a conversation has the address again"
    await own.fetch([url], "other", uncounted)
    assert len(site.paths) == 2, "another client cannot see by its speed what was fetched"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/moved", "redirects are not followed"),
        ("/none", "the status 404"),
        ("/large", "larger than"),
        ("/packed", "compressed"),
    ],
)
async def test_other_answers_are_no_image(site: Site, ledger: Ledger, tmp_path: Path, path: str, why: str) -> None:
    url = f"http://{site.host}{path}"
    found = (await fetcher(ledger, site.host).fetch([url], "", uncounted))[url]
    assert isinstance(found, str) and why in found
    assert [row.outcome for row in read_rows(folder_of(tmp_path))] == ["failed"]
    assert len(site.paths) == 1


async def test_a_slow_server_has_a_limit(site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOTAL_S", 0.1)
    url = f"http://{site.host}/slow"
    found = await fetcher(ledger, site.host).fetch([url], "", uncounted)
    assert found == {url: "cannot be fetched: it took more than 0.1 s, with the wait for its turn"}


async def test_a_slow_server_holds_up_its_own_client_alone(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = fetcher(ledger, site.host)
    many = asyncio.create_task(
        own.fetch([f"http://{site.host}/slow?{number}" for number in range(16)], "slow", uncounted)
    )
    await eventually(lambda: len(site.paths) == module.MAX_OF_CLIENT)
    url = f"http://{site.host}/red.png"
    assert await own.fetch([url], "other", uncounted) == {url: RED}
    assert not many.done() and len(site.paths) == module.MAX_OF_CLIENT + 1
    many.cancel()
    await asyncio.wait([many])
    monkeypatch.setattr(module, "TOTAL_S", 0.1)
    found = await own.fetch([f"http://{site.host}/slow?{number}" for number in range(16)], "slow", uncounted)
    assert set(found.values()) == {"cannot be fetched: it took more than 0.1 s, with the wait for its turn"}
    assert len(site.paths) < module.MAX_OF_CLIENT + 1 + 16, "the wait for a turn counts too"


async def test_nothing_is_sent_without_a_row(site: Site, tmp_path: Path) -> None:
    (tmp_path / "egress").write_text("not a folder")
    url = f"http://{site.host}/red.png"
    found = (await fetcher(Ledger(tmp_path), site.host).fetch([url], "", uncounted))[url]
    assert isinstance(found, str) and "the egress ledger" in found
    assert site.paths == []


async def test_a_server_without_a_trusted_certificate_gets_nothing(
    site: Site, ledger: Ledger, machine_policy: Path, authority: Authority, good: Certificate
) -> None:
    site.socket = server_context(good).wrap_socket(site.socket, server_side=True)
    url = f"https://{site.host}/red.png"
    found = (await fetcher(ledger, site.host).fetch([url], "", uncounted))[url]
    assert isinstance(found, str) and "its certificate is not trusted" in found
    assert site.paths == []
    await asyncio.to_thread(machine_policy.write_text, f"ca_file = '{authority.own.path}'")
    assert (await fetcher(ledger, site.host).fetch([url], "", uncounted))[url] == RED


@pytest.mark.parametrize(
    ("url", "hosts", "is_allowed"),
    [
        ("https://a.example/x", ["a.example"], True),
        ("HTTPS://A.example/x", ["a.example"], True),
        ("https://a.example./x", ["a.example"], True),
        ("https://a.example:443/x", ["a.example"], True),
        ("http://a.example/x", ["a.example"], True),
        ("https://a.example:8443/x", ["a.example"], False),
        ("https://a.example:8443/x", ["a.example:8443"], True),
        ("https://a.example/x", ["a.example:8443"], False),
        ("https://b.a.example/x", ["a.example"], False),
        ("https://b.a.example/x", ["*.a.example"], True),
        ("https://ba.example/x", ["*.a.example"], False),
        ("https://any.example/x", ["*"], True),
        ("https://any.example:22/x", ["*"], False),
        ("https://8.8.8.8/x", ["*"], False),
        ("https://[2001:db8::1]/x", ["*"], False),
        ("https://[::1]/x", ["[::1]"], True),
        ("http://192.168.1.5/x", ["192.168.1.5"], True),
        ("https://a.example/x", [], False),
        ("https://user@a.example/x", ["a.example"], False),
        ("https://a.example@evil.example/x", ["a.example"], False),
        ("https://evil.example\\@a.example/x", ["a.example"], False),
        ("https://a.example\n.evil.example/x", ["a.example"], False),
        ("https://a.example:99999/x", ["*"], False),
        ("ftp://a.example/x", ["*"], False),
        ("https:///x", ["*"], False),
        ("https://é.example/x", ["*"], False),
        ("https://a.example/" + "x" * 3000, ["*"], False),
    ],
)
def test_which_addresses_are_allowed(ledger: Ledger, url: str, hosts: list[str], *, is_allowed: bool) -> None:
    assert (fetcher(ledger, *hosts).why_not(url) == "") == is_allowed


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        *((address, False) for address in ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1")),
        *((address, False) for address in ("169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255")),
        *((address, False) for address in ("::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1")),
        *((address, False) for address in ("2002:a00:1::", "ff02::1", "::")),
    ],
)
def test_a_host_of_a_pattern_has_a_public_address(address: str, *, is_public: bool) -> None:
    assert _is_public("any.example", address) == is_public


async def test_a_pattern_does_not_lead_to_this_machine(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may have any address, so the address is looked at, too. `localhost` stands for such a name."""
    url = f"http://localhost:{site.server_port}/red.png"
    own = fetcher(ledger, f"*:{site.server_port}")
    assert own.why_not(url) == ""
    found = (await own.fetch([url], "", uncounted))[url]
    assert isinstance(found, str) and "resolves to an address that" in found
    assert site.paths == []
    named = fetcher(ledger, f"localhost:{site.server_port}")
    assert (await asyncio.wait_for(named.fetch([url], "", uncounted), 10))[url] == RED


def test_the_machines_policy_allows_less(machine_policy: Path, ledger: Ledger) -> None:
    url = "https://a.example/x"
    for text, why in (
        ("image_hosts = ['b.example']", "the machine's policy does not allow"),
        ("image_hosts = []", "the machine's policy does not allow"),
        ("route = 'local_only'", "nothing may leave this machine"),
        ("proxy = 'http://proxy.example:3128'", "through the proxy"),
        ("?", "nothing may leave this machine"),
    ):
        machine_policy.write_text(text)
        assert why in ImageFetcher(("*",), PolicyFile(), ledger).why_not(url)
    machine_policy.write_text("image_hosts = ['*.example']")
    assert ImageFetcher(("*",), PolicyFile(), ledger).why_not(url) == ""
