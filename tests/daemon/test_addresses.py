"""The URLs that the daemon prints for other machines."""

from __future__ import annotations

import socket
from collections import namedtuple
from contextlib import closing

import psutil
import pytest

from edgeagent.api.gate import security
from edgeagent.config import ServerConfig
from edgeagent.daemon.listeners import external_urls
from tests.daemon.running import has_ipv6_loopback

Entry = namedtuple("Entry", "family address")
State = namedtuple("State", "isup")


@pytest.fixture(autouse=True)
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a cable, a disabled radio, and the addresses that every interface has."""
    found = {
        "lo": [Entry(socket.AF_INET, "127.0.0.1"), Entry(socket.AF_INET6, "::1")],
        "eth0": [
            Entry(socket.AF_INET, "192.0.2.2"),
            Entry(socket.AF_INET6, "fe80::1%eth0"),
            Entry(socket.AF_INET6, "2001:db8::2"),
            Entry(-1, "00:00:5e:00:53:01"),
        ],
        "wlan0": [Entry(socket.AF_INET, "198.51.100.2")],
    }
    states = {"lo": State(True), "eth0": State(True), "wlan0": State(False)}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)


def test_every_address_of_every_interface_that_is_up() -> None:
    with closing(socket.create_server(("0.0.0.0", 0))) as listener:
        port = listener.getsockname()[1]
        assert external_urls(listener, "https") == [f"https://192.0.2.2:{port}"]


@pytest.mark.skipif(not has_ipv6_loopback(), reason="no ::1 here")
@pytest.mark.parametrize("takes_both", [True, False])
def test_ipv6(takes_both: bool) -> None:
    family = socket.AF_INET6
    with closing(socket.create_server(("::", 0), family=family, dualstack_ipv6=takes_both)) as listener:
        port = listener.getsockname()[1]
        first = [f"http://192.0.2.2:{port}"] if takes_both else []
        assert external_urls(listener, "http") == [*first, f"http://[2001:db8::2]:{port}"]


def test_loopback_is_nobody_elses() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        assert external_urls(listener, "http") == []


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_if_addrs", refuse)
    with closing(socket.create_server(("0.0.0.0", 0))) as listener:
        assert external_urls(listener, "http") == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Kiosk", {"kiosk", "kiosk.local"}),
        ("kiosk.shop.example", {"kiosk.shop.example", "kiosk", "kiosk.local"}),
        ("localhost", set()),
        ("localhost.localdomain", set()),
        ("", set()),
        ("a b", set()),
        ("a/b", set()),
    ],
)
def test_the_machines_names(monkeypatch: pytest.MonkeyPatch, name: str, expected: set[str]) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert security.machine_names() == expected


def test_the_full_name_is_asked_for_aside_and_not_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def getfqdn() -> str:
        asked.append(1)
        return "kiosk.shop.example"

    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    scope = {"server": ("192.0.2.2", 8127), "scheme": "http", "type": "http"}
    assert not security.Hosts(ServerConfig()).is_own("kiosk.shop.example:8127", scope)
    assert asked == []
    beyond = security.Hosts(ServerConfig(host="192.0.2.2", plaintext=True))
    beyond.full_name.join()
    assert beyond.is_own("Kiosk.Shop.example:8127", scope)
    assert not beyond.is_own("kiosk.shop.example", scope)
