"""The strictest mode applies, for every combination of the machine's, the credential's and the request's."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from edgeagent.config import Config
from edgeagent.remotes import REMOTES_FILE, EndpointConfig, Remote
from edgeagent.remotes.file import RemotesFile, add_remote
from edgeagent.router.policy import machine_mode, strictest
from edgeagent.types import RouteMode

MODES = [RouteMode.LOCAL_ONLY, RouteMode.PREFER_LOCAL, RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY]


@pytest.mark.parametrize(("machine", "credential", "asked"), list(product(MODES, MODES, MODES)))
def test_the_strictest_of_three_holds(machine: RouteMode, credential: RouteMode, asked: RouteMode) -> None:
    effective = strictest(machine, credential, asked)
    assert effective is MODES[min(map(MODES.index, (machine, credential, asked)))]
    # A request and a credential can only tighten the mode.
    assert MODES.index(effective) <= MODES.index(machine)


@pytest.mark.parametrize("mode", MODES)
def test_who_says_nothing_changes_nothing(mode: RouteMode) -> None:
    assert strictest(mode, None, None) is strictest(None, mode) is mode
    assert strictest(None, None) is None


def test_the_declared_order_is_the_order_of_strictness() -> None:
    assert list(RouteMode) == MODES


@pytest.mark.parametrize(
    ("route", "with_remote"),
    [
        ("auto", RouteMode.PREFER_LOCAL),
        ("local_only", RouteMode.LOCAL_ONLY),
        ("prefer_local", RouteMode.PREFER_LOCAL),
        ("prefer_remote", RouteMode.PREFER_REMOTE),
        ("remote_only", RouteMode.REMOTE_ONLY),
    ],
)
def test_the_machines_mode(
    route: Literal["auto", "local_only", "prefer_local", "prefer_remote", "remote_only"],
    with_remote: RouteMode,
    tmp_path: Path,
) -> None:
    config, remotes = Config(state_dir=tmp_path, route=route), RemotesFile(tmp_path)
    assert machine_mode(config, remotes.remotes, None) is RouteMode.LOCAL_ONLY, "no remote was added"
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    assert machine_mode(config, remotes.remotes, None) is with_remote
    (tmp_path / REMOTES_FILE).chmod(0o644)
    assert machine_mode(config, remotes.remotes, None) is RouteMode.LOCAL_ONLY, "the file cannot be trusted"
