"""What keeps something beyond a request: started, told of the drain and closed by the daemon, which knows no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.api.frontend import Frontend, Frontends
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.routers import FRONTENDS, make_frontends
from edgeagent.config import Config
from edgeagent.conversation.store import FILE
from tests.backends.fake import FakeBackend
from tests.daemon.running import running

LOG: list[str] = []


class Noting(Frontend):
    """Notes what the daemon asks of it."""

    async def start(self) -> None:
        LOG.append("start")

    def stop_accepting(self) -> None:
        LOG.append("stop accepting")

    async def close(self) -> None:
        LOG.append("close")


class Failing(Frontend):
    """Cannot keep what it has, nor let go of it."""

    @property
    def trouble(self) -> str | None:
        return "the disk is full"

    async def close(self) -> None:
        raise OSError("the disk is full")


async def test_each_is_asked_in_turn_and_found_by_its_class() -> None:
    LOG.clear()
    noting = Noting()
    frontends = Frontends([noting])
    assert frontends.get(Noting) is noting
    await frontends.start()
    frontends.stop_accepting()
    await frontends.close()
    assert (LOG, frontends.trouble) == (["start", "stop accepting", "close"], None)


async def test_all_are_closed_where_one_fails() -> None:
    LOG.clear()
    frontends = Frontends([Failing(), Noting()])
    assert frontends.trouble == "the disk is full"
    with pytest.raises(OSError, match="the disk is full"):
        await frontends.close()
    assert LOG == ["close"]


async def test_the_daemon_tells_them_when_it_drains() -> None:
    LOG.clear()
    frontends = Frontends([Noting(), *(kind.of(Config(), None) for kind in FRONTENDS)])
    async with running(FakeBackend(), frontends=frontends) as daemon:
        daemon.stop.request()
        await daemon.serving
    assert LOG == ["stop accepting"]  # who makes frontends starts and closes them


async def test_files_are_in_the_daemons_folder_if_there_may_be_any(tmp_path: Path) -> None:
    for is_wanted in (True, False):
        config = Config(forget=not is_wanted)
        frontends = make_frontends(config, tmp_path)
        assert await frontends.get(Responses).store.body("resp_gone", "") is None
        assert (tmp_path / FILE).exists() is is_wanted
        await frontends.close()
        (tmp_path / FILE).unlink(missing_ok=True)
