"""The machine's policy takes precedence: a table of modes, hosts, models, budgets, and the texts for clients."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import Config
from edgeagent.errors import LocalUnavailable, ModelLoadFailed, Overloaded, RemoteUnavailable
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.remotes.file import add_remote
from edgeagent.router import build
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.router.route_chooser import RouteChooser
from edgeagent.store.file_records import sha256_of
from edgeagent.types import RouteMode, TextDelta, replace
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import Act, faults, half, stream
from tests.backends.remote.streams import ROLE, answer, chunk
from tests.router.test_remote_backends import ASKED, PATIENT, another_turn, remote, router_at
from tests.router.test_routed_request import Answer, Place, run
from tests.store.gguf_bytes import small_model

MODES = [RouteMode.LOCAL_ONLY, RouteMode.PREFER_LOCAL, RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY]
BROKEN = "?"
OPTIONS = {"auto": RouteMode.PREFER_LOCAL} | {str(mode): mode for mode in MODES}


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


@pytest.mark.parametrize("policy", [None, "", *MODES, BROKEN])
@pytest.mark.parametrize("option", OPTIONS)
def test_the_strictest_of_policy_option_credential_and_request_holds(
    tmp_path: Path, machine_policy: Path, policy: str | None, option: Any
) -> None:
    if policy is not None:
        write(machine_policy, policy if policy in ("", BROKEN) else f"route = '{policy}'")
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    remote_access = RemoteAccess(Config(state_dir=tmp_path, route=option))
    chooser = RouteChooser({}, lambda: remote_access.mode, why_local=lambda: remote_access.why_local)
    said = {None: [], "": [], BROKEN: [RouteMode.LOCAL_ONLY]}.get(policy, [policy])
    for credential, asked in product([None, *MODES], repeat=2):
        # The wire passes on the stricter of the credential's and the request's mode.
        both = [mode for mode in (credential, asked) if mode is not None]
        request = replace(ASKED, route=min(both, key=MODES.index, default=None))
        expected = MODES[min(map(MODES.index, [OPTIONS[option], *said, *both]))]
        assert chooser.mode(request) is expected
    assert bool(remote_access.why_local) == (policy in (RouteMode.LOCAL_ONLY, BROKEN))
    remote_access.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("route = 'local_only'", "says route = local_only"),
        ("remote_hosts = ['gpu.example']", "is not among its remote_hosts"),
        ("remote_hosts = []", "is not among its remote_hosts"),
        ("remote_host = ['127.0.0.1']", "unknown field `remote_host`"),
    ],
)
async def test_what_the_policy_forbids_opens_no_connection_and_the_client_reads_why(
    tmp_path: Path, machine_policy: Path, text: str, why: str
) -> None:
    write(machine_policy, text)
    async with faults(stream(answer("far"))) as far:
        add_remote(tmp_path, remote(far.url))
        for place in (Place("local", knows=False), Place("local", [Overloaded("full")])):
            async with router_at(tmp_path, place, route="prefer_remote") as router:
                error = (await run(router, wanted=ASKED)).error  # type: ignore[arg-type]
                assert isinstance(error, LocalUnavailable)
                assert why in error.message and str(machine_policy) in error.message
                assert "canary" not in error.message
        assert far.num_connections == 0


@pytest.mark.parametrize("text", ["route = 'local_only'", "remote_hosts = ['gpu.example']", BROKEN])
async def test_a_policy_that_comes_while_a_stream_runs_cuts_it_off(
    tmp_path: Path, machine_policy: Path, text: str
) -> None:
    far_stream = half(ROLE, chunk({"content": "one"}), chunk({"content": " two"}), Act.STALL)
    async with faults(far_stream) as far, router_at(tmp_path, Place("local"), route="prefer_remote") as router:
        add_remote(tmp_path, remote(far.url, limits=PATIENT))
        answered = Answer()
        async for step in steps_of(router.generate, ASKED):
            answered.deltas += step.deltas
            if answered.deltas[-1] == TextDelta(" two"):
                write(machine_policy, text)
        assert answered.text == "one two three four" and answered.end.timings.route == "local"
        assert router.mode() is RouteMode.LOCAL_ONLY


async def test_of_several_remotes_those_of_the_list_are_used(tmp_path: Path, machine_policy: Path) -> None:
    async with faults(stream(answer("right"))) as right, faults(stream(answer("wrong"))) as wrong:
        write(machine_policy, f"remote_hosts = ['127.0.0.1:{right.port}']")
        add_remote(tmp_path, remote(wrong.url, "wrong"))
        add_remote(tmp_path, remote(right.url, "right"))
        async with router_at(tmp_path, Place("local", knows=False), route="prefer_remote") as router:
            assert (await run(router, wanted=ASKED)).text == "right"  # type: ignore[arg-type]
            assert [status.name for status in router.remotes()] == ["right"]
            write(machine_policy, "")
            await another_turn()
            assert {status.name for status in _refreshed(router)} == {"right", "wrong"}
        assert wrong.num_connections == 0


def _refreshed(router: Any) -> Any:
    router._remotes.refresh()
    return router.remotes()


async def test_the_policys_ceiling_holds_over_all_remotes(tmp_path: Path, machine_policy: Path) -> None:
    write(machine_policy, "budget = {client_tokens = 16}")  # an answer takes 7 + 1
    async with faults(stream(answer("far"))) as far:
        for name in ("a", "b"):
            add_remote(tmp_path, remote(far.url, name))
        async with router_at(tmp_path, Place("local", knows=False)) as router:
            for client in ("app", "kiosk"):
                wanted = [replace(ASKED, id=f"{client}{index}", client=client) for index in range(3)]
                answers = [await run(router, wanted=each) for each in wanted]  # type: ignore[arg-type]
                assert [each.text for each in answers[:2]] == ["far", "far"]
                assert answers[2].error is not None and "budget" in answers[2].error.message
            assert router.remote_access is not None
            why = router.remote_access.ledger.why_blocked("a", "app")
            assert why is not None and "of the client 'app' at all remotes, by the machine's policy," in why
        assert len(far.posts) == 4


async def test_the_policys_ca_and_proxy_are_used(tmp_path: Path, machine_policy: Path) -> None:
    """A missing CA file makes the remote unusable; a missing proxy makes it unreachable."""
    add_remote(tmp_path, remote("https://gpu.invalid"))
    write(machine_policy, f"ca_file = '{(tmp_path / 'none.pem').as_posix()}'")
    async with router_at(tmp_path, Place("local", knows=False), route="prefer_remote") as router:
        (status,) = router.remotes()
        assert "none.pem cannot be used" in status.trouble
    async with faults() as proxy:
        write(machine_policy, f"proxy = 'http://127.0.0.1:{proxy.port}'")
        async with router_at(tmp_path, Place("local", knows=False), route="prefer_remote") as router:
            error = (await run(router, wanted=ASKED)).error  # type: ignore[arg-type]
            assert isinstance(error, RemoteUnavailable)
        assert proxy.num_connections > 0


async def test_only_listed_models_are_loaded(tmp_path: Path, machine_policy: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(small_model(1, 1000))
    write(machine_policy, f"model_sha256 = ['{sha256_of(model)}']")
    router = build(Config(state_dir=tmp_path, model=str(model)))
    validate = router._backends["local"].models._source.validate  # type: ignore[attr-defined]
    validate(model)
    model.write_bytes(small_model(2, 1000))
    with pytest.raises(ModelLoadFailed, match="not among model_sha256"):
        validate(model)
    write(machine_policy, "")
    await another_turn()
    validate(model)
