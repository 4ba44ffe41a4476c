"""Where a decision sends a request, and which remotes it warms."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from edgeagent.config import Config, TierConfig
from edgeagent.errors import DeadlineUnreachable, EdgeAgentError, TokenBudgetExceeded
from edgeagent.router import build
from edgeagent.router.models import NO_MODEL
from edgeagent.router.remote_backends import RemoteBackends
from edgeagent.router.route_chooser import RouteChooser
from edgeagent.types import Need, RouteMode, TextPrompt, replace
from tests.router.test_routed_request import Place
from tests.worker.support import request


class Remotes:
    """Records which remotes are warmed."""

    def __init__(self) -> None:
        self.warmed: list[str] = []
        self.standing_by: list[str] = []

    def refresh(self) -> None:
        """Do nothing, since the remotes are fixed."""

    def stand_by(self, name: str) -> None:
        """Record a name."""
        self.standing_by.append(name)

    def warm(self, name: str) -> None:
        """Record a name."""
        self.warmed.append(name)


@pytest.mark.parametrize(
    ("mode", "local", "is_probed"),
    [
        (RouteMode.PREFER_LOCAL, {}, False),
        (RouteMode.PREFER_LOCAL, {"strain": "memory"}, True),
        (RouteMode.PREFER_REMOTE, {}, True),
        (RouteMode.REMOTE_ONLY, {}, True),
        (RouteMode.LOCAL_ONLY, {}, False),
    ],
)
def test_a_remote_that_is_missed_is_probed(mode: RouteMode, local: dict[str, Any], is_probed: bool) -> None:
    remotes = Remotes()
    places = [Place("local", **local), Place("remote:gpu", obstacle="unreachable"), Place("remote:far", obstacle="key")]
    chooser = RouteChooser({place.name: place for place in places}, lambda: mode, cast(RemoteBackends, remotes))
    try:
        chooser.choose(request("", model="fake"))
    except EdgeAgentError:
        assert mode is RouteMode.REMOTE_ONLY
    assert remotes.warmed == ["remote:gpu", "remote:far"] * is_probed


@pytest.mark.parametrize("mode", RouteMode)
def test_remotes_are_probed_before_they_are_needed(mode: RouteMode) -> None:
    remotes = Remotes()
    places = [Place("local"), Place("remote:gpu"), Place("remote:far")]
    chooser = RouteChooser({place.name: place for place in places}, lambda: mode, cast(RemoteBackends, remotes))
    chooser.choose(request("", model="fake"))
    assert remotes.standing_by == (["remote:gpu", "remote:far"] if mode is RouteMode.PREFER_LOCAL else [])


@pytest.mark.parametrize(
    ("remotes", "code", "told"),
    [
        (["context"], "context_length_exceeded", "does not fit"),
        (["unreachable"], "backend_unavailable", "now (remote:0: unreachable)"),
        ([], "backend_unavailable", "there is no remote"),
    ],
)
def test_of_a_request_for_remotes_alone_only_these_are_told(remotes: list[str], code: str, told: str) -> None:
    away = [Place(f"remote:{number}", obstacle=obstacle) for number, obstacle in enumerate(remotes)]
    places = [Place("local"), *away]
    places[0].expects = replace(places[0].expects, is_full=True)
    chooser = RouteChooser({place.name: place for place in places}, lambda: RouteMode.REMOTE_ONLY)
    with pytest.raises(EdgeAgentError) as caught:
        chooser.choose(request("", model="fake"))
    assert caught.value.code == code and told in caught.value.message


def test_what_no_remote_can_keep_is_refused_with_the_best_estimate() -> None:
    away = [Place(f"remote:{seconds}", first_token_s=seconds) for seconds in (4.0, 3.0)]
    chooser = RouteChooser({place.name: place for place in away}, lambda: RouteMode.REMOTE_ONLY)
    with pytest.raises(DeadlineUnreachable, match="in 3000 ms and must come within 1000 ms") as caught:
        chooser.choose(replace(request("", model="fake"), need=Need(first_token_s=1.0)))
    assert (caught.value.expected_s, caught.value.retry_after_s) == (3.0, 2.0)


def test_of_a_prompt_over_its_budget_its_length_is_told() -> None:
    away = Place("remote:gpu")
    chooser = RouteChooser({away.name: away}, lambda: RouteMode.PREFER_LOCAL)
    long = replace(request("", model="fake"), prompt=TextPrompt("x" * 404), max_prompt_tokens=100)
    with pytest.raises(TokenBudgetExceeded, match="about 101 tokens and may have 100"):
        chooser.choose(long)


def test_a_client_is_told_what_the_owner_has_to_change() -> None:
    away = Place("remote:gpu", obstacle="budget", trouble="the day's budget is used up")
    chooser = RouteChooser({away.name: away}, lambda: RouteMode.PREFER_LOCAL)
    with pytest.raises(EdgeAgentError, match=r"now \(remote:gpu: the day's budget is used up\)"):
        chooser.choose(request("", model="fake"))


@pytest.mark.parametrize(
    ("places", "told"),
    [([], "`edgeagent serve MODEL`.*`edgeagent remote add`"), ([Place("remote:gpu")], "no model of its own, and")],
)
def test_a_daemon_without_a_model_says_so(places: list[Place], told: str) -> None:
    chooser = RouteChooser({place.name: place for place in places}, lambda: RouteMode.LOCAL_ONLY)
    with pytest.raises(EdgeAgentError, match=told):
        chooser.choose(request("", model="fake"))


def test_the_options_of_targets_decide(tmp_path: Path) -> None:
    wanted = request("", model="fake")
    for seconds, first in ((0.5, "remote:gpu"), (2.0, "local")):
        tiers = {"interactive": TierConfig(first_token_s=seconds)}
        router = build(Config(model=NO_MODEL, state_dir=tmp_path, tiers=tiers))
        places = [Place("local", first_token_s=1.0), Place("remote:gpu", first_token_s=0.1)]
        router._backends.update({place.name: place for place in places})
        router._chooser._machine_mode = lambda: RouteMode.PREFER_LOCAL
        router._chooser._remotes = None
        assert router._chooser.choose(wanted).routes[0].backend == first
