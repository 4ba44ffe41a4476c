"""What LocalBackend accepts by predicted times: a forecast beside a scripted engine, with noisy steps, a fake clock."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import pytest

from edgeagent.backends.forecast import Forecast, Rates
from edgeagent.serving_order import by_share
from edgeagent.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    Started,
    Target,
    Timings,
    TokenPrompt,
    Usage,
    replace,
)
from tests.fakes import FakeClock

PARALLEL = 4
PING_S = 1.0
STEP_S, TOKEN_S, ITL_S, MAX_BATCH = 0.02, 0.004, 0.1, 512


class Machine:
    """An engine like the worker's, and the daemon's forecast of it.

    A step takes STEP_S, and TOKEN_S for each token. It has a token of each stream. Prompts fill it in the engine's
    order, with streams up to ITL_S. `noise`: by how much the times vary. The daemon learns the rates once a
    second.
    """

    def __init__(self, seed: str, *, noise: float = 0.1) -> None:
        self.clock, self.chance, self._noise = FakeClock(), random.Random(seed), noise
        self.forecast = Forecast()
        self.asked: list[Asked] = []
        self.running: list[Asked] = []
        self.waiting: list[Asked] = []
        self._pinged_s = -PING_S

    @property
    def num_live(self) -> int:
        return len(self.running) + len(self.waiting)

    def submit(self, num_prompt: int, num_output: int, target_s: float, *, limit_s: float | None = None) -> Asked:
        """Send a request. With `limit_s`, refuse it if it is predicted to miss that."""
        name, now_s = str(len(self.asked)), self.clock()
        tokens = (len(self.asked), *([1] * (num_prompt - 1)))
        request = GenerateRequest(name, "", TokenPrompt(tokens), max_tokens=num_output, target=Target(target_s, 1.0))
        self._ping()
        prediction = self.forecast.predict(request, PARALLEL, now_s)
        asked = Asked(request, num_prompt, num_output, now_s, prediction.first_token_s)
        self.asked.append(asked)
        asked.is_refused = limit_s is not None and (prediction.latest_s or 0.0) > limit_s
        if not asked.is_refused:
            if prediction.is_late:
                request = asked.request = replace(request, target=Target(math.inf, 1.0))
            self.forecast.accept(request, now_s, prediction)
            self.waiting.append(asked)
        return asked

    def run_until(self, at_s: float) -> None:
        """Compute until a time, or until there is nothing to compute."""
        while self.num_live and self.clock() < at_s:
            self._step()
        self.clock.advance(max(0.0, at_s - self.clock()))

    def drain(self) -> None:
        """Compute all answers to their end."""
        while self.num_live:
            self._step()

    def _step(self) -> None:
        self._ping()
        now_s = self.clock()
        self.waiting = by_share(self.waiting, self.running)
        while self.waiting and len(self.running) < PARALLEL:
            asked = self.waiting.pop(0)
            self.running.append(asked)
            self.forecast.start(asked.request, Started(asked.num_prompt, 0), now_s)
        streams = [asked for asked in self.running if asked.token_s]
        room = self._room(len(streams))
        num_tokens, news = len(streams), [*streams]
        for asked in by_share(asked for asked in self.running if not asked.token_s):
            chunk = min(room, asked.num_left)
            asked.num_left -= chunk
            room -= chunk
            num_tokens += chunk
            if not asked.num_left:
                news.append(asked)
        self.clock.advance((STEP_S + TOKEN_S * num_tokens) * self.chance.uniform(1 - self._noise, 1 + self._noise))
        for asked in news:
            self._add_token(asked)

    def _add_token(self, asked: Asked) -> None:
        now_s = self.clock()
        asked.token_s.append(now_s)
        self.forecast.add_tokens(asked.request.id, 1, now_s)
        if len(asked.token_s) == asked.num_output:
            self.running.remove(asked)
            self.forecast.end(
                asked.request.id, now_s, Finished(FinishReason.LENGTH, Usage(0, 0, asked.num_output), Timings())
            )

    def _ping(self) -> None:
        if self.clock() - self._pinged_s < PING_S:
            return
        self._pinged_s = self.clock()
        num_streams = sum(bool(asked.token_s) for asked in self.running)
        beside = self._room(max(1, num_streams))
        rates = MAX_BATCH / (STEP_S + TOKEN_S * MAX_BATCH), beside / ITL_S, STEP_S + TOKEN_S * (num_streams + 1)
        self.forecast.note_rates(Rates(*rates))

    def _room(self, num_streams: int) -> int:
        return int((ITL_S - STEP_S) / TOKEN_S) - num_streams if num_streams else MAX_BATCH


@dataclass(slots=True)
class Asked:
    """A request, and when its tokens came."""

    request: GenerateRequest
    num_prompt: int
    num_output: int
    at_s: float
    predicted_s: float | None
    is_refused: bool = False
    token_s: list[float] = field(default_factory=list)
    num_left: int = field(init=False)
    rank: int = 0
    client: str = ""

    @property
    def order(self) -> float:
        return self.at_s

    def __post_init__(self) -> None:
        self.num_left = self.num_prompt

    @property
    def due_s(self) -> float:
        assert self.request.target is not None
        return self.at_s + self.request.target.first_token_s

    @property
    def first_token_s(self) -> float:
        return self.token_s[0] - self.at_s


def share_predicted(asked: Items[Asked], *, after: int = 50) -> float:
    """Return the share of requests whose first token came within 20 % of what was predicted, after the first ones."""
    off = [abs((each.predicted_s or 0.0) / each.first_token_s - 1) for each in asked[after:]]
    return sum(each <= 0.2 for each in off) / len(off)


def test_predictions_for_one_request_at_a_time() -> None:
    machine = Machine("alone")
    for _ in range(120):
        machine.submit(machine.chance.choice((20, 60, 200, 600, 1500)), 4, 3.0)
        machine.drain()
        machine.run_until(machine.clock() + machine.chance.uniform(0.0, 3.0))
    assert share_predicted(machine.asked) >= 0.9


def test_predictions_beside_streams() -> None:
    machine = Machine("beside")
    measured = list[Asked]()
    while len(measured) < 120:
        while machine.num_live < PARALLEL - 1:
            machine.submit(30, 200, 3.0)
            machine.run_until(machine.clock() + 0.5)
        measured.append(machine.submit(machine.chance.choice((60, 200, 600)), 2, 3.0))
        while not measured[-1].token_s:
            machine.run_until(machine.clock() + 0.01)
        machine.run_until(machine.clock() + machine.chance.uniform(0.1, 1.0))
    assert share_predicted(measured) >= 0.9


def test_predictions_of_requests_that_wait_for_others() -> None:
    machine = Machine("full")
    for _ in range(20):
        for _ in range(9):
            machine.submit(machine.chance.randrange(100, 300), machine.chance.randrange(20, 60), 100.0)
            machine.run_until(machine.clock() + machine.chance.uniform(0.0, 0.3))
        machine.drain()
    assert share_predicted(machine.asked) >= 0.9


def overload(
    *, limit_s: float | None = None, target_s: float = 3.0, seed: str, load: float = 2.0, window_s: float = 100.0
) -> list[Asked]:
    """Let `load` times as many requests arrive at random as can be answered. Return those that were accepted.

    They have `limit_s`, or none beyond `target_s`.
    """
    machine = Machine(seed)
    for _ in range(24):
        machine.submit(150, 30, 100.0)
    machine.drain()
    capacity, began_s = 24 / machine.clock(), machine.clock()
    arrived = []
    at_s = began_s
    while (at_s := at_s + machine.chance.expovariate(load * capacity)) < began_s + window_s:
        machine.run_until(at_s)
        num_output = machine.chance.randrange(10, 50)
        arrived.append(
            machine.submit(machine.chance.randrange(50, 250), num_output, limit_s or target_s, limit_s=limit_s)
        )
    machine.run_until(began_s + window_s + 2.0)
    return [each for each in arrived if not each.is_refused]


def num_within(asked: Items[Asked], limit_s: float) -> int:
    return sum(bool(each.token_s) and each.first_token_s <= limit_s for each in asked)


def test_at_twice_the_capacity_accepted_requests_keep_their_limit() -> None:
    """In order of arrival, few would."""
    with_admission = [overload(limit_s=2.0, seed=f"load {number}") for number in range(2)]
    in_order = [overload(target_s=math.inf, seed=f"load {number}") for number in range(2)]
    kept = sum(num_within(each, 2.0) for each in with_admission)
    assert kept / sum(map(len, with_admission)) >= 0.95
    assert kept >= 3 * sum(num_within(each, 2.0) for each in in_order)


@pytest.mark.parametrize(("load", "least"), [(0.8, 0.9), (1.2, 0.75), (2.0, 0.9)])
def test_without_limits_those_that_can_be_in_time_are_and_all_are_predicted(load: float, least: float) -> None:
    """The others wait until fewer arrive. `least`: the share of right predictions, of all that got a token."""
    arrived, in_order = (
        [overload(seed=f"wave {number}", load=load, target_s=target_s) for number in range(6)]
        for target_s in (3.0, math.inf)
    )
    got = [each for wave in arrived for each in wave[20:] if each.token_s]
    due = [each for each in got if each.due_s < math.inf]
    assert num_within(due, 3.3) >= 0.97 * len(due)
    assert share_predicted(due, after=0) >= 0.9
    assert share_predicted(got, after=0) >= least
    num_in_time, num_in_order = (sum(num_within(wave, 3.0) for wave in waves) for waves in (arrived, in_order))
    assert num_in_time >= (3 * num_in_order if load > 1 else num_in_order)
