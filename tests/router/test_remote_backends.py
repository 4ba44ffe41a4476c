"""The router with real remotes on loopback ports: it follows the owner's file, and local requests stay local."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent import state_files
from edgeagent.backends.base import Backend
from edgeagent.backends.remote import cluster, transport
from edgeagent.backends.remote.backend import RemoteBackend
from edgeagent.config import Config
from edgeagent.egress.ledger import Ledger
from edgeagent.egress.rows import folder_of
from edgeagent.errors import (
    ContextLengthExceeded,
    EdgeAgentError,
    InternalError,
    ModelNotFound,
    Overloaded,
    RemoteUnavailable,
    WorkerCrashed,
)
from edgeagent.remotes import EndpointConfig, Limits, Remote
from edgeagent.remotes.file import RemotesFile, add_remote, remove_remote
from edgeagent.remotes.keys import KeyFinder
from edgeagent.router import remote_backends
from edgeagent.router.models import NO_MODEL
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.router.remote_backends import RemoteBackends
from edgeagent.router.router import Router
from edgeagent.types import (
    ChatPrompt,
    Delta,
    GenerateRequest,
    Interrupted,
    MediaPlace,
    Message,
    RouteMode,
    Started,
    TextDelta,
    Tier,
    replace,
)
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import Act, faults, half, models, plain, stream
from tests.backends.remote.streams import DONE, ROLE, answer, chunk, usage
from tests.media import RED, data_url, media
from tests.patience import patient
from tests.router.test_routed_request import Answer, Place, run

ASKED = GenerateRequest("r1", "fake", ChatPrompt((Message("user", "canary"),)))
LIMITS = Limits(max_concurrent=8, connect_s=2.0, first_token_s=5.0, idle_s=5.0, total_s=20.0)
PATIENT = Limits(idle_s=60.0, total_s=60.0)
REST = (ROLE, chunk({"content": " two three"}), chunk({"content": " four"}, finish="stop"), usage(output=3), DONE)


def remote(url: str, name: str = "gpu", **fields: Any) -> Remote:
    return Remote(name, (EndpointConfig(url),), **{"limits": LIMITS, "models": {"fake": "far"}, **fields})


async def another_turn() -> None:
    """Let the event loop turn, since the file is read at most once per turn."""
    await asyncio.sleep(0)


@asynccontextmanager
async def router_at(folder: Path, *places: Place, **config: Any) -> AsyncIterator[Router]:
    settings = Config(state_dir=folder, **config)
    made = Router(places, RemoteAccess(settings))
    await made.start()
    await another_turn()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_stream_goes_on_at_a_remote_and_both_are_told(tmp_path: Path) -> None:
    crash = WorkerCrashed("signal 9", served_by="local")
    local = Place("local", (Started(7, 3), TextDelta("one"), crash))
    vllm = {"/v1/models": models("far"), "/version": plain(200, b'{"version": "0.32.0"}')}
    async with faults(stream(*REST), gets=vllm) as far, router_at(tmp_path, local) as router:
        add_remote(tmp_path, remote(far.url))
        answered = await run(router, wanted=ASKED)  # type: ignore[arg-type]
        assert answered.error is None and answered.text == "one two three four"
        (asked,) = far.posts
        assert asked.json["model"] == "far"
        assert asked.json["messages"][-1] == {"role": "assistant", "content": "one"}
        assert asked.json["continue_final_message"] is True and asked.json["add_generation_prompt"] is False
        end = answered.end
        assert (end.timings.route, end.usage.num_output_tokens) == ("remote:gpu", 4)
        assert [(move.target, move.num_tokens) for move in end.timings.handovers] == [("remote:gpu", 1)]
        assert end.timings.placement is not None and end.timings.placement.host == f"127.0.0.1:{far.port}"


@pytest.mark.parametrize("images", [True, False])
async def test_an_answer_about_an_image_goes_on_only_where_images_are_read(tmp_path: Path, images: bool) -> None:
    """It may leave this machine. The image is sent with what was answered."""
    local = Place("local", (Started(7, 3), TextDelta("one"), WorkerCrashed("signal 9", served_by="local")))
    question = ChatPrompt((Message("user", "canary", media=(MediaPlace(0, 0),)),), media=(media(RED),))
    vllm = {"/v1/models": models("far"), "/version": plain(200, b'{"version": "0.32.0"}')}
    async with faults(stream(*REST), gets=vllm) as far, router_at(tmp_path, local) as router:
        add_remote(tmp_path, remote(far.url, images=images))
        answered = await run(router, wanted=replace(ASKED, prompt=question))  # type: ignore[arg-type]
        if not images:
            assert answered.text == "one" and answered.error is not None and not far.posts
            return
        assert answered.error is None and answered.text == "one two three four"
        (asked,) = far.posts
        assert asked.json["messages"][0]["content"][0]["image_url"]["url"] == data_url(RED)
        assert asked.json["messages"][-1] == {"role": "assistant", "content": "one"}


async def test_the_owners_file_is_followed(tmp_path: Path) -> None:
    local = Place("local", knows=False)
    async with faults(stream(answer("hi"))) as far, router_at(tmp_path, local) as router:
        assert (await run(router, wanted=ASKED)).error is not None  # type: ignore[arg-type]
        await another_turn()
        add_remote(tmp_path, remote(far.url))
        answered = await run(router, wanted=ASKED)  # type: ignore[arg-type]
        assert answered.text == "hi" and answered.told[0] is not None
        assert (answered.told[0].served_by, answered.told[0].reason) == ("remote:gpu", "model_unknown")
        assert [status.name for status in router.remotes()] == ["gpu"]
        assert [model.name for model in router.models.statuses()] == ["other", "fake"]
        assert (router.models.default(), router.models.find("fake")) == ("other", "fake")
        remove_remote(tmp_path, "gpu")
        await another_turn()
        assert (await run(router, wanted=ASKED)).error is not None  # type: ignore[arg-type]
        assert router.remotes() == [] and [model.name for model in router.models.statuses()] == ["other"]


async def test_a_remote_that_is_added_again_gets_its_refused_key_once_more(tmp_path: Path) -> None:
    """The owner may have corrected the key at the remote, which changes nothing on this machine."""
    async with faults(plain(401), stream(answer("hi"))) as far, router_at(tmp_path, model=NO_MODEL) as router:
        for text in ("", "hi"):
            add_remote(tmp_path, remote(far.url))
            await another_turn()
            assert (await run(router, wanted=ASKED)).text == text  # type: ignore[arg-type]
            await another_turn()


async def test_a_remote_that_is_withdrawn_is_cut_off_and_the_answer_goes_on_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remote was added while there was none, when the files are seldom read."""
    monkeypatch.setattr(remote_backends, "_IDLE_TICK_S", 3600.0)
    far_stream = half(ROLE, chunk({"content": "one"}), chunk({"content": " two"}), Act.STALL)
    local = Place("local")
    async with faults(far_stream) as far, router_at(tmp_path, local, route="prefer_remote") as router:
        add_remote(tmp_path, remote(far.url, limits=PATIENT))
        answered = Answer()
        async for step in steps_of(router.generate, ASKED):
            answered.deltas += step.deltas
            if answered.text == "one two":
                remove_remote(tmp_path, "gpu")
        assert answered.text == "one two three four"
        assert answered.end.timings.route == "local"
        await asyncio.wait_for(far.posts[0].left.wait(), patient(5))


async def test_an_answer_that_lost_its_network_goes_on_here_though_nothing_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_backends, "_TICK_S", 0.01)
    monkeypatch.setattr(remote_backends, "_IDLE_TICK_S", 3600.0)
    monkeypatch.setattr(cluster, "_NETWORK_CHECK_S", 0.0)
    far_stream = half(ROLE, chunk({"content": "one"}), chunk({"content": " two"}), Act.STALL)
    local = Place("local")
    async with faults(far_stream) as far, router_at(tmp_path, local, route="prefer_remote") as router:
        add_remote(tmp_path, remote(far.url, limits=PATIENT))
        answered = Answer()
        async with asyncio.timeout(patient(20)):
            async for step in steps_of(router.generate, ASKED):
                answered.deltas += step.deltas
                if answered.text == "one two":
                    monkeypatch.setattr(transport, "source_of", lambda peer: "")
                    monkeypatch.setattr(transport, "is_ours", lambda address: False)
        assert answered.text == "one two three four"
        assert answered.end.timings.route == "local"


async def test_a_daemon_may_serve_remote_models_alone(tmp_path: Path) -> None:
    async with faults(stream(answer("hi"))) as far, router_at(tmp_path, model=NO_MODEL) as router:
        assert router.models.default() == NO_MODEL and router.models.statuses() == []
        with pytest.raises(ModelNotFound):
            router.models.reload("fake")
        await another_turn()
        add_remote(tmp_path, remote(far.url))
        assert (await run(router, wanted=replace(ASKED, model="fake"))).text == "hi"  # type: ignore[arg-type]
        assert router.models.default() == "fake"


async def test_a_daemon_without_a_model_of_its_own_asks_its_remotes_what_they_serve(tmp_path: Path) -> None:
    """Until the remotes have answered, the daemon serves no model, and says so instead of failing."""
    add_remote(tmp_path, remote("http://127.0.0.1:1", models={}))
    async with router_at(tmp_path, model=NO_MODEL) as router:
        assert router.models.default() == NO_MODEL and router.models.statuses() == []
        async with faults(stream(answer("hi")), gets={"/v1/models": models("fake")}) as far:
            add_remote(tmp_path, remote(far.url, models={}))
            async with asyncio.timeout(patient(10)):
                while router.models.default() != "fake":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await run(router, wanted=ASKED)).text == "hi"  # type: ignore[arg-type]


FAILURES: list[Callable[[], EdgeAgentError]] = [
    lambda: Overloaded("full"),
    lambda: WorkerCrashed("signal 9"),
    lambda: ContextLengthExceeded("long"),
    lambda: ModelNotFound("none"),
    lambda: InternalError("out of memory"),
    lambda: RemoteUnavailable("a remote's word"),
]
PLACES: list[Sequence[Delta]] = [
    (),
    (Started(7, 3),),
    (Started(7, 3), TextDelta("one")),
    (Started(7, 3), TextDelta("one"), Interrupted("worker_killed")),
]


@pytest.mark.parametrize("tier", Tier)
async def test_nothing_of_a_local_only_request_reaches_the_network(
    tmp_path: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No packet and no DNS query, whatever fails at any time; the same requests leave if they are allowed to."""
    asked: list[object] = []
    loop = asyncio.get_running_loop()
    for owner, name in ((socket, "getaddrinfo"), (loop, "getaddrinfo"), (loop, "sock_connect")):
        real = getattr(owner, name)

        def note(*args: object, real: Callable[..., object] = real, **fields: object) -> object:
            asked.append(args)
            return real(*args, **fields)

        monkeypatch.setattr(owner, name, note, raising=False)
    wanted = replace(ASKED, tier=tier, route=RouteMode.LOCAL_ONLY)
    async with faults(stream(answer("far"))) as far, router_at(tmp_path, local := Place("local")) as router:
        add_remote(tmp_path, remote(far.url))
        add_remote(tmp_path, remote("https://gpu.invalid/v1", "named"))
        for make in FAILURES:
            for before in PLACES:
                for estimate in ({}, {"obstacle": "quarantined"}, {"strain": "loading"}, {"is_full": True}):
                    local.expects = replace(
                        local.expects, **{"obstacle": "", "strain": "", "is_full": False} | estimate
                    )
                    local.acts = [(*before, make())]
                    answered = await run(router, wanted=wanted)  # type: ignore[arg-type]
                    assert answered.error is not None
        await asyncio.sleep(0)
        assert (far.num_connections, asked) == (0, [])
        local.acts = [[Overloaded("full")]]
        local.expects = replace(local.expects, is_full=False)
        open_to_all = replace(wanted, route=None)
        assert (await run(router, wanted=open_to_all)).text == "far"  # type: ignore[arg-type]
        assert far.num_connections > 0


def noting(looks: list[Path], look: Callable[[Path], object]) -> Callable[[Path], object]:
    def noted(path: Path) -> object:
        looks.append(path)
        return look(path)

    return noted


async def test_a_turn_looks_at_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(state_files, "file_stamp", noting(looks, state_files.file_stamp))
    monkeypatch.setattr(RemoteBackend, "_probe", lambda *_: None)  # a probe's row looks at the file too
    async with router_at(tmp_path, Place("local"), route="prefer_remote") as router:
        add_remote(tmp_path, remote("http://127.0.0.1:9/v1"))
        add_remote(tmp_path, remote("http://127.0.0.1:9/v1", "other"))
        router._chooser.choose(ASKED)
        await another_turn()
        looks.clear()
        for _ in range(3):
            assert len(router._chooser.choose(ASKED).routes) == 3
            assert router.mode() is RouteMode.PREFER_REMOTE
        assert len(looks) == len(set(looks)) == 2
        remove_remote(tmp_path, "other")
        await another_turn()
        assert len(router._chooser.choose(ASKED).routes) == 2, "the next one looks again"


class Owner:
    """The owner's file and mode, as `RemoteAccess` has them."""

    def __init__(self, folder: Path, *remotes: Remote, mode: RouteMode = RouteMode.PREFER_REMOTE) -> None:
        self.mode, self.remotes, self.revision = mode, remotes, 1
        self.file, self.keys = self, KeyFinder(waits=False)
        self.ledger = Ledger(folder, RemotesFile(folder).find)


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The remotes whose streams were ended."""
    names: list[str] = []

    async def close_streams(backend: RemoteBackend, reason: str) -> None:
        names.append(f"{backend.name}: {reason}")

    monkeypatch.setattr(RemoteBackend, "close_streams", close_streams)
    return names


async def test_streams_are_cut_off_at_once_where_the_mode_becomes_local_only_and_by_no_other_change(
    tmp_path: Path, cut_off: list[str]
) -> None:
    owner = Owner(tmp_path, remote("http://127.0.0.1:1/v1"))
    backends: dict[str, Backend] = {}
    followed = RemoteBackends(owner, backends)  # type: ignore[arg-type]
    for mode in (RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY, RouteMode.PREFER_LOCAL):
        owner.mode = mode
        followed.refresh()
        await asyncio.sleep(0)
    assert cut_off == [] and list(backends) == ["remote:gpu"]
    owner.mode = RouteMode.LOCAL_ONLY
    for _ in range(3):
        followed.refresh()
        await asyncio.sleep(0)
        assert cut_off == ["remote:gpu: the machine's mode is local_only"], "once"


async def test_the_removal_of_the_only_remote_ends_its_streams_once(tmp_path: Path, cut_off: list[str]) -> None:
    owner = Owner(tmp_path, remote("http://127.0.0.1:1/v1"))
    backends: dict[str, Backend] = {}
    followed = RemoteBackends(owner, backends)  # type: ignore[arg-type]
    followed.refresh()
    # Without a remote, the machine's mode is local_only.
    owner.remotes, owner.revision, owner.mode = (), 2, RouteMode.LOCAL_ONLY
    followed.refresh()
    await asyncio.sleep(0)
    assert len(cut_off) == 1 and "removed this remote" in cut_off[0]
    assert backends == {}


async def test_a_change_of_one_remote_leaves_the_streams_of_the_others(tmp_path: Path, cut_off: list[str]) -> None:
    kept, changed = remote("http://127.0.0.1:1/v1", "kept"), remote("http://127.0.0.1:1/v1", "changed")
    owner = Owner(tmp_path, kept, changed)
    backends: dict[str, Backend] = {}
    followed = RemoteBackends(owner, backends)  # type: ignore[arg-type]
    followed.refresh()
    before = dict(backends)
    owner.remotes, owner.revision = (kept, remote("http://127.0.0.1:2/v1", "changed")), 2
    followed.refresh()
    await asyncio.sleep(0)
    assert cut_off == ["remote:changed: the owner changed or removed this remote, or the machine's policy forbids it"]
    assert backends["remote:kept"] is before["remote:kept"]
    assert backends["remote:changed"] is not before["remote:changed"]


async def test_a_stopped_router_follows_the_owners_file_no_longer(tmp_path: Path) -> None:
    def num_following() -> int:
        return sum(task.get_name() == "remotes" for task in asyncio.all_tasks())

    async with router_at(tmp_path) as router:
        assert num_following() == 1
        await router.stop()
        assert num_following() == 0


async def test_a_stopped_router_holds_no_file_of_the_ledger(tmp_path: Path) -> None:
    async with faults(stream(answer("hi"))) as far, router_at(tmp_path) as router:
        add_remote(tmp_path, remote(far.url))
        assert (await run(router, wanted=ASKED)).text == "hi"  # type: ignore[arg-type]
        (rows,) = folder_of(tmp_path).iterdir()

        def held() -> list[str]:
            return [file.path for file in psutil.Process().open_files()]

        assert str(rows) in held()
        await router.stop()
        assert str(rows) not in held()
