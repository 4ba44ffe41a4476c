"""The remotes in the status, and the ledger of requests that left the machine, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from edgeagent.config import Config
from edgeagent.remotes import REMOTES_FILE, Budget, EndpointConfig, Key, Price, Remote
from edgeagent.remotes.file import add_remote, remove_remote
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import EndpointStatus, Permit, RemoteStatus, RouteMode
from tests.backends.fake import FakeBackend
from tests.backends.remote.fault_server import faults, models, plain
from tests.daemon.running import Running, running

OWNER = {"Authorization": f"Bearer {'x' * 43}"}


class WithRemotes(FakeBackend):
    """A backend with configured remotes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.remote_access: RemoteAccess = RemoteAccess(config)


@pytest_asyncio.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    config = Config(state_dir=tmp_path)
    service = WithRemotes(config)
    async with running(service, config) as daemon:
        yield daemon
    service.remote_access.close()


def remote_access(daemon: Running) -> RemoteAccess:
    assert daemon.service.remote_access is not None
    return daemon.service.remote_access


async def route(daemon: Running) -> dict[str, Any]:
    reply = await daemon.http.get(f"{daemon.url}/edgeagent/status", headers=OWNER)
    assert reply.status_code == 200, reply.text
    report: dict[str, Any] = reply.json()["route"]
    return report


async def test_the_status_follows_the_file(daemon: Running, tmp_path: Path) -> None:
    assert await route(daemon) == {"mode": "local_only", "trouble": None, "ledger_trouble": None, "remotes": []}
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example", "eu"),), budget=Budget(tokens=100)))
    report = await route(daemon)
    assert report["mode"] == "prefer_local"
    (remote,) = report["remotes"]
    assert (remote["name"], remote["is_used"], remote["trouble"]) == ("gpu", False, None)
    assert remote["endpoints"] == [{"url": "https://gpu.example/v1", "region": "eu"}]
    assert (remote["budget"]["tokens"], remote["budget_trouble"]) == (100, None)
    (tmp_path / REMOTES_FILE).chmod(0o644)
    report = await route(daemon)
    assert (report["mode"], report["remotes"]) == ("local_only", []) and "chmod 600" in report["trouble"]
    (tmp_path / REMOTES_FILE).chmod(0o600)
    remove_remote(tmp_path, "gpu")
    assert (await route(daemon))["mode"] == "local_only"


async def test_the_status_of_a_remote_that_is_used(daemon: Running, tmp_path: Path) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),), price=Price(output=1.0)))
    assert isinstance(daemon.service, FakeBackend)
    endpoint = EndpointStatus("https://gpu.example/v1", breaker="open", cause="connect: refused", num_waiting=3)
    daemon.service.remote_statuses = [RemoteStatus("gpu", "the key was refused", 2, (endpoint,))]
    ledger = remote_access(daemon).ledger
    row = ledger.begin(Permit("r1", "gpu", RouteMode.PREFER_LOCAL, "queue_full"), "gpu.example", "m", 10)
    ledger.end(row, "completed", 10, 1_000_000)
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),), budget=Budget(client_money=0.5)))
    (remote,) = (await route(daemon))["remotes"]
    assert "1 of 0.5 money" in remote["budget_trouble"]
    assert (remote["is_used"], remote["trouble"], remote["num_live"]) == (True, "the key was refused", 2)
    assert (remote["num_tokens_today"], remote["money_today"]) == (1_000_010, 1.0)
    assert remote["endpoints"][0]["breaker"] == "open" and remote["endpoints"][0]["num_waiting"] == 3


async def test_right_after_a_change_what_was_written_is_shown(daemon: Running, tmp_path: Path) -> None:
    assert isinstance(daemon.service, FakeBackend)
    before = EndpointStatus("https://gpu.example/v1", "eu", num_waiting=3)
    daemon.service.remote_statuses = [RemoteStatus("gpu", "", 2, (before,))]
    add_remote(
        tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example", "us"), EndpointConfig("https://new.example")))
    )
    (remote,) = (await route(daemon))["remotes"]
    first, second = remote["endpoints"]
    assert (remote["is_used"], first["region"], first["num_waiting"]) == (True, "us", 3)
    assert second == {"url": "https://new.example/v1", "region": ""}
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://new.example"),)))
    (remote,) = (await route(daemon))["remotes"]
    assert (remote["is_used"], remote["num_live"]) == (False, 0)


async def test_a_ledger_that_cannot_be_kept_is_told(daemon: Running, tmp_path: Path) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    (tmp_path / "egress").write_text("in the way")
    assert remote_access(daemon).ledger.why_blocked("gpu", "") is not None
    assert "cannot be kept" in (await route(daemon))["ledger_trouble"]


async def test_the_ledger_is_shown_and_purged(daemon: Running, tmp_path: Path) -> None:
    ledger = remote_access(daemon).ledger
    for number in range(3):
        permit = Permit(f"r{number}", "gpu", RouteMode.PREFER_LOCAL, "queue_full", "kiosk")
        ledger.end(ledger.begin(permit, "gpu.example", "m", 10), "completed", 4, 5)
    url = f"{daemon.url}/edgeagent/egress"
    rows = (await daemon.http.get(url, headers=OWNER)).json()["rows"]
    assert [row["request"] for row in rows] == ["r0", "r1", "r2"]
    assert rows[0]["outcome"] == "completed" and rows[0]["client"] == "kiosk"
    newest = (await daemon.http.get(url, params={"limit": "1"}, headers=OWNER)).json()["rows"]
    assert [row["request"] for row in newest] == ["r2"]
    assert (await daemon.http.get(url, params={"since_s": "9e9"}, headers=OWNER)).json() == {"rows": []}
    purged = await daemon.http.post(f"{url}/purge", headers=OWNER)
    assert purged.json() == {"status": "purged", "num_days": 1}
    assert (await daemon.http.get(url, headers=OWNER)).json() == {"rows": []}


@pytest.mark.parametrize(("name", "value"), [("limit", "0"), ("limit", "x"), ("since_s", "-1"), ("since_s", "nan")])
async def test_a_wrong_number_is_refused(daemon: Running, name: str, value: str) -> None:
    reply = await daemon.http.get(f"{daemon.url}/edgeagent/egress", params={name: value}, headers=OWNER)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == name


async def test_the_daemon_tests_a_remote_with_its_own_key(
    daemon: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tested(name: str) -> tuple[int, Any]:
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/egress/test?remote={name}", headers=OWNER)
        return reply.status_code, reply.json()

    answer = plain(200, b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}')
    async with faults(answer, gets={"/v1/models": models("big")}) as server:
        add_remote(tmp_path, Remote("gpu", (EndpointConfig(server.url),), Key("env", "GPU_KEY")))
        monkeypatch.delenv("GPU_KEY", raising=False)
        status, said = await tested("gpu")
        assert status == 400 and "GPU_KEY, which is not set" in said["error"]["message"] and server.asked == []
        monkeypatch.setenv("GPU_KEY", "sk-of-the-daemon")
        status, said = await tested("gpu")
        (found,) = said["endpoints"]
        assert (status, said["remote"], found["model"], found["problem"]) == (200, "gpu", "big", "")
        assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sk-of-the-daemon"}
        assert (await tested("other"))[0] == 400
    assert remote_access(daemon).ledger.spent("gpu").num_tokens == 2
