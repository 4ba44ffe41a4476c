"""The policy and admission are functions of what they are told."""

from __future__ import annotations

from edgeagent.backends.base import Estimate
from edgeagent.router.admission import Admitted, Refused, admit
from edgeagent.router.policy import Route, choose_routes
from tests.worker.support import request

LOCAL = Estimate("local", is_local=True, num_live=0, max_live=2)
REMOTE = Estimate("remote:gpu", is_local=False, num_live=0, max_live=100)


def test_only_this_machine_is_ever_chosen() -> None:
    assert choose_routes(request(""), [REMOTE, LOCAL]) == (Route("local", "local_only"),)
    assert choose_routes(request(""), [REMOTE]) == ()


def test_a_route_with_room_is_admitted_up_to_the_last_place() -> None:
    route = Route("local", "local_only")
    for num_live in (0, 1):
        assert admit([route], [Estimate("local", True, num_live, 2)]) == Admitted(route)
    full = Estimate("local", True, 2, 2, retry_after_s=3.0)
    assert admit([route], [full]) == Refused(3.0, 2)


def test_a_full_route_gives_way_to_the_next() -> None:
    routes = [Route("one", "x"), Route("two", "y")]
    full, free = Estimate("one", True, 2, 2, 9.0), Estimate("two", True, 1, 2, 4.0)
    assert admit(routes, [free, full]) == Admitted(routes[1])
    assert admit(routes, [full, Estimate("two", True, 2, 2, 4.0)]) == Refused(4.0, 4)
