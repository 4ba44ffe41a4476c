"""The policy is a function of its inputs; every combination of mode and estimates has its row."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from edgeagent.backends.base import Estimate
from edgeagent.config import Config, TierConfig
from edgeagent.config_sources import table_options
from edgeagent.router.policy import (
    LOCAL_LATE,
    TARGETS,
    Order,
    choose_routes,
    is_sooner,
    probe_permit,
    target_of,
    targets_of,
    why_target_missed,
)
from edgeagent.types import Need, Permit, ProbePermit, RouteMode, Target, TextPrompt, Tier, replace
from tests.worker.support import request

ASKED = replace(request(""), client="app")
TARGET = TARGETS[Tier.INTERACTIVE]
QUICK, SLOW = TARGET.first_token_s / 10, TARGET.first_token_s * 2
LOCAL = Estimate("local", num_live=0, first_token_s=QUICK, token_s=0.01)
REMOTE = Estimate("remote:gpu", num_live=0, first_token_s=QUICK, token_s=0.01)
# Possible places, by what the policy should conclude about each, with the changes to the estimate.
PLACES: dict[str, dict[str, Any] | None] = {
    "good": {},
    "unknown": {"first_token_s": None, "token_s": None},
    "slow": {"first_token_s": SLOW},
    "slower": {"first_token_s": 2 * SLOW},
    "halting": {"token_s": 2 * TARGET.token_s},
    "strained": {"strain": "loading"},
    "full": {"is_full": True},
    "unable": {"obstacle": "quarantined"},
    "absent": None,
}
WHY = {
    "slow": "first_token",
    "slower": "first_token",
    "halting": "tokens",
    "strained": "loading",
    "full": "queue_full",
    "unable": "quarantined",
    "absent": "model_unknown",
}
UNUSABLE = ("full", "unable", "absent")


def place(base: Estimate, kind: str) -> list[Estimate]:
    fields = PLACES[kind]
    return [] if fields is None else [replace(base, **fields)]


def names(order: Order) -> list[tuple[str, str]]:
    return [(route.backend.removeprefix("remote:"), route.reason) for route in order.routes]


def expected(mode: RouteMode, local: str, remote: str) -> list[tuple[str, str]]:
    """Return the result that the policy's docstring promises, computed independently."""
    is_here, can_leave = local != "absent", remote not in UNUSABLE
    can_stay = is_here and (local not in UNUSABLE or not can_leave)

    def remote_routes(reason: str) -> list[tuple[str, str]]:
        return [("gpu", reason)] if can_leave else []

    def local_routes(reason: str) -> list[tuple[str, str]]:
        return [("local", reason)] if can_stay else []

    match mode:
        case RouteMode.LOCAL_ONLY:
            return [("local", "local_only")] if is_here else []
        case RouteMode.REMOTE_ONLY:
            return remote_routes("remote_only")
        case RouteMode.PREFER_REMOTE:
            return remote_routes("prefer_remote") + local_routes(
                "remote_unusable" if remote in ("full", "unable") else "no_remote"
            )
    if local in ("good", "unknown"):
        return local_routes("prefer_local") + remote_routes("local_failed")
    why = WHY[local]
    leaving, staying = remote_routes(why), local_routes(f"{why}_everywhere")
    if remote in ("good", "unknown"):
        return leaving + staying
    seconds = {"slow": SLOW, "slower": 2 * SLOW}
    is_remote_sooner = seconds.get(remote, QUICK) < seconds.get(local, QUICK)
    return leaving + staying if is_remote_sooner else staying + leaving


@pytest.mark.parametrize("mode", RouteMode)
@pytest.mark.parametrize("local", PLACES)
def test_the_table(mode: RouteMode, local: str) -> None:
    for remote in PLACES:
        check_row(mode, local, remote)


def check_row(mode: RouteMode, local: str, remote: str) -> None:
    order = choose_routes(ASKED, mode, place(LOCAL, local) + place(REMOTE, remote))
    assert names(order) == expected(mode, local, remote), remote
    for route in order.routes:
        permit = None if route.is_local else Permit(ASKED.id, "gpu", mode, route.reason, "app")
        assert route.permit == permit
    assert mode is not RouteMode.LOCAL_ONLY or all(route.is_local for route in order.routes)
    is_first_here = bool(order.routes) and order.routes[0].is_local
    is_bounded = mode is RouteMode.PREFER_LOCAL and is_first_here and len(order.routes) > 1
    assert (order.patience_s is not None) == is_bounded


@pytest.mark.parametrize("kind", PLACES)
def test_what_keeps_a_place_from_its_target(kind: str) -> None:
    for estimate in place(LOCAL, kind):
        assert why_target_missed(estimate, TARGET) == WHY.get(kind, "")


def test_of_several_remotes_the_quickest_comes_first_and_the_conversations_own_before() -> None:
    far = replace(REMOTE, backend="remote:far", first_token_s=2 * QUICK)
    new = replace(REMOTE, backend="remote:new", first_token_s=None)
    order = choose_routes(ASKED, RouteMode.REMOTE_ONLY, [far, new, REMOTE])
    assert [route.backend for route in order.routes] == ["remote:gpu", "remote:new", "remote:far"]
    order = choose_routes(ASKED, RouteMode.REMOTE_ONLY, [far, new, REMOTE], "remote:far")
    assert [route.backend for route in order.routes] == ["remote:far", "remote:gpu", "remote:new"]


@pytest.mark.parametrize(
    ("local", "first"),
    [
        ({"first_token_s": 0.8 * TARGET.first_token_s}, ("gpu", "conversation")),
        ({"token_s": 0.8 * TARGET.token_s}, ("gpu", "conversation")),
        ({"first_token_s": None, "strain": "loading"}, ("gpu", "loading")),
        ({"strain": "memory"}, ("gpu", "memory")),
        # A ready model that has computed only short prompts knows no rate; unknown counts as met.
        ({"first_token_s": None}, ("local", "prefer_local")),
        ({}, ("local", "prefer_local")),
    ],
)
def test_a_conversation_comes_back_when_its_reason_has_gone_for_good(
    local: dict[str, object], first: tuple[str, str]
) -> None:
    estimates = [replace(LOCAL, **local), REMOTE]
    assert names(choose_routes(ASKED, RouteMode.PREFER_LOCAL, estimates, "remote:gpu"))[0] == first
    if first[1] == "conversation":
        assert names(choose_routes(ASKED, RouteMode.PREFER_LOCAL, estimates, "local"))[0][0] == "local"
        unreachable = replace(REMOTE, obstacle="unreachable")
        assert (
            names(choose_routes(ASKED, RouteMode.PREFER_LOCAL, [estimates[0], unreachable], "remote:gpu"))[0][0]
            == "local"
        )


@pytest.mark.parametrize("tier", Tier)
def test_this_machine_has_the_time_of_its_target_or_twice_the_predicted_one(tier: Tier) -> None:
    target = TARGETS[tier].first_token_s
    wanted = replace(ASKED, tier=tier)
    for predicted_s, remote_s in ((0.1 * target, 0.1 * target), (0.9 * target, 0.1 * target), (2 * target, 5 * target)):
        places = [replace(LOCAL, first_token_s=predicted_s), replace(REMOTE, first_token_s=remote_s)]
        order = choose_routes(wanted, RouteMode.PREFER_LOCAL, places)
        assert order.routes[0].is_local
        assert order.patience_s == pytest.approx(max(target, 2 * predicted_s))
    alone = choose_routes(wanted, RouteMode.PREFER_LOCAL, [LOCAL])
    assert alone.patience_s is None, "there is no other place"


def test_a_dead_worker_is_waited_for_only_where_that_is_sooner() -> None:
    assert is_sooner(replace(REMOTE, first_token_s=0.1), replace(LOCAL, first_token_s=0.2))
    assert not is_sooner(replace(REMOTE, first_token_s=0.3), replace(LOCAL, first_token_s=0.2))
    assert not is_sooner(replace(REMOTE, first_token_s=0.1, obstacle="budget"), replace(LOCAL, first_token_s=0.2))
    assert is_sooner(REMOTE, replace(LOCAL, first_token_s=None))
    assert is_sooner(replace(REMOTE, first_token_s=9.0), replace(LOCAL, obstacle="quarantined"))


def test_a_place_that_needs_just_its_target_meets_it_and_one_without_a_seat_is_full() -> None:
    just = replace(LOCAL, first_token_s=TARGET.first_token_s, token_s=TARGET.token_s)
    assert why_target_missed(just, TARGET) == ""
    assert why_target_missed(replace(just, is_full=True), TARGET) == "queue_full"
    assert not is_sooner(replace(REMOTE, first_token_s=0.2), replace(LOCAL, first_token_s=0.2)), "it stays here"


@pytest.mark.parametrize("mode", RouteMode)
def test_no_probe_leaves_a_machine_that_keeps_all_to_itself(mode: RouteMode) -> None:
    permit = probe_permit("gpu", mode)
    assert permit == (None if mode is RouteMode.LOCAL_ONLY else ProbePermit("gpu", mode))


@pytest.mark.parametrize("mode", RouteMode)
@pytest.mark.parametrize("local", PLACES)
def test_where_nothing_can_serve_a_request_a_remote_is_tried_that_may_have_come_back(
    mode: RouteMode, local: str
) -> None:
    down = replace(REMOTE, obstacle="unreachable", is_last_resort=True)
    order = choose_routes(ASKED, mode, [*place(LOCAL, local), down])
    is_served_here = local not in UNUSABLE and mode is not RouteMode.REMOTE_ONLY
    is_tried = mode is not RouteMode.LOCAL_ONLY and not is_served_here
    assert [route.backend for route in order.routes if not route.is_local] == ["remote:gpu"] * is_tried
    full = replace(down, is_full=True)
    assert all(route.is_local for route in choose_routes(ASKED, mode, [*place(LOCAL, local), full]).routes)


def test_the_owner_sets_what_each_tier_asks_for() -> None:
    slow = replace(LOCAL, first_token_s=1.0, token_s=0.15)
    wanted = replace(ASKED, tier=Tier.INTERACTIVE)
    for own, first in (
        (TierConfig(), "local"),
        (TierConfig(first_token_s=0.9), "gpu"),
        (TierConfig(token_s=0.1), "gpu"),
    ):
        config = Config(tiers={"interactive": own, "batch": TierConfig(first_token_s=0.1)})
        order = choose_routes(wanted, RouteMode.PREFER_LOCAL, [slow, REMOTE], targets=targets_of(config))
        assert names(order)[0][0] == first


def test_the_reference_names_the_default_targets() -> None:
    for option in table_options("tiers"):
        name = option.name.rpartition(".")[2]
        if name in Target.__struct_fields__:
            listed = ", ".join(f"{tier} {getattr(TARGETS[tier], name):g}" for tier in Tier)
            assert f"(default: {listed})" in option.help


def explained() -> set[str]:
    """Return the reasons that docs/remote.md explains."""
    page = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
    table = page.split("## Why a request ran where it did")[1].split("\n## ")[0]
    return {word for row in table.splitlines() if row.startswith("| `") for word in row.split("|")[1].split("`")[1::2]}


@pytest.mark.parametrize("mode", RouteMode)
@pytest.mark.parametrize("left_out", [{}, {"local": "failed"}, {"local": LOCAL_LATE}, {"remote:gpu": "failed"}])
@pytest.mark.parametrize("placed", [None, "remote:gpu"])
def test_every_reason_is_explained(mode: RouteMode, left_out: dict[str, str], placed: str | None) -> None:
    for local, remote in itertools.product(PLACES, PLACES):
        estimates = [each for each in place(LOCAL, local) + place(REMOTE, remote) if each.backend not in left_out]
        order = choose_routes(ASKED, mode, estimates, placed, left_out=left_out)
        assert {reason.removesuffix("_everywhere") for _, reason in names(order)} <= explained()


def test_a_route_says_what_came_before_it() -> None:
    tried: dict[str, tuple[RouteMode, list[Estimate], dict[str, str]]] = {
        "local_failed": (RouteMode.PREFER_LOCAL, [REMOTE], {"local": "failed"}),
        "local_late": (RouteMode.PREFER_LOCAL, [REMOTE], {"local": LOCAL_LATE}),
        "model_unknown": (RouteMode.PREFER_LOCAL, [REMOTE], {}),
        "remote_failed": (RouteMode.PREFER_REMOTE, [LOCAL], {"remote:gpu": "failed"}),
        "remote_unusable": (RouteMode.PREFER_REMOTE, [LOCAL, replace(REMOTE, obstacle="budget")], {}),
        "no_remote": (RouteMode.PREFER_REMOTE, [LOCAL], {}),
    }
    for reason, (mode, estimates, left_out) in tried.items():
        assert names(choose_routes(ASKED, mode, estimates, left_out=left_out))[0][1] == reason


def test_remotes_that_would_miss_a_request_s_own_limit_are_left_out() -> None:
    limited = replace(ASKED, need=Need(first_token_s=1.0))
    late, in_time = replace(REMOTE, first_token_s=1.5), replace(REMOTE, first_token_s=0.9)
    for mode in RouteMode:
        assert all(route.is_local for route in choose_routes(limited, mode, [LOCAL, late]).routes)
    order = choose_routes(limited, RouteMode.PREFER_LOCAL, [replace(LOCAL, first_token_s=2.0), in_time])
    assert names(order)[0] == ("gpu", "first_token"), "the limit is also the target"


@pytest.mark.parametrize(
    ("first_token_s", "timeout_s", "target_s"),
    [(None, None, 3.0), (None, 1.0, 1.0), (None, 9.0, 3.0), (0.5, 1.0, 0.5), (2.0, 1.0, 1.0), (5.0, 9.0, 5.0)],
)
def test_no_target_is_behind_the_deadline(
    first_token_s: float | None, timeout_s: float | None, target_s: float
) -> None:
    asked = replace(ASKED, tier=Tier.INTERACTIVE, timeout_s=timeout_s, need=Need(first_token_s=first_token_s))
    assert target_of(asked, TARGETS) == Target(target_s, TARGET.token_s)


def test_no_remote_gets_a_prompt_over_its_budget() -> None:
    asked = replace(ASKED, prompt=TextPrompt("x" * 404), max_prompt_tokens=100)
    slow = replace(LOCAL, first_token_s=SLOW)
    for limited in (asked, replace(asked, max_prompt_tokens=None, need=Need(max_prompt_tokens=100))):
        for mode in RouteMode:
            assert all(route.is_local for route in choose_routes(limited, mode, [slow, REMOTE]).routes)
    allowed = replace(asked, max_prompt_tokens=101)
    assert not choose_routes(allowed, RouteMode.PREFER_LOCAL, [slow, REMOTE]).routes[0].is_local


def test_a_place_that_was_idle_may_have_become_faster() -> None:
    slow = replace(LOCAL, first_token_s=SLOW, token_s=2 * TARGET.token_s)
    assert why_target_missed(slow, TARGET) == "first_token"
    assert why_target_missed(replace(slow, doubt=4.0), TARGET) == ""
