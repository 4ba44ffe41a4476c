"""Planning takes a small share of the time while drafts do not pay, and is not limited while they do."""

from __future__ import annotations

import pytest

from edgeagent.engine.speculation.planning_time import PlanningTime


def num_plans(planning: PlanningTime, plan_s: float, step_s: float, num_steps: int, *, pays: bool = False) -> int:
    """Run steps, and plan whenever it is allowed. Return how many plans there were."""
    number = 0
    for _ in range(num_steps):
        if planning.allows():
            planning.note(plan_s, step_s, pays=pays)
            number += 1
    return number


@pytest.mark.parametrize(("plan_s", "step_s", "expected"), [(0.0004, 0.0005, 25), (0.0004, 0.05, 1000)])
def test_planning_takes_its_share_of_the_time(plan_s: float, step_s: float, expected: int) -> None:
    assert num_plans(PlanningTime(0.02), plan_s, step_s, 1000) == pytest.approx(expected, abs=2)


def test_all_steps_are_planned_while_drafts_pay() -> None:
    assert num_plans(PlanningTime(0.02), 0.0004, 0.0005, 100, pays=True) == 100


def test_the_average_follows_the_plans_but_not_one_slow_plan() -> None:
    planning = PlanningTime(0.02)
    num_plans(planning, 0.001, 0.5, 3)
    planning.note(5.0, 0.5, pays=False)
    assert planning.plan_s < 0.0015
    num_plans(planning, 0.0001, 0.5, 100)
    assert planning.plan_s == pytest.approx(0.0001, rel=0.1)


def test_no_more_than_a_few_plans_are_saved_up() -> None:
    planning = PlanningTime(0.02)
    planning.note(0.001, 0.5, pays=False)
    for _ in range(100):
        assert planning.allows()
    planning.note(0.001, 1e-6, pays=False)
    assert num_plans(planning, 0.001, 1e-6, 100) == 3
