"""The tokens and the money that were spent in a day, as sums for each remote and client, and the check of budgets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgeagent.egress import Carried, Line, RowEnd, RowStart
from edgeagent.remotes import Budget, Price
from edgeagent.types import Usage

ALL = ""
"""Stands for all remotes together, in place of a remote's name."""
_PER_MILLION = 1e-6
# Sums of money that reservations were added to and taken from are not exact.
_ROUNDING = 1e-9


@dataclass(slots=True)
class Spent:
    """Tokens and money spent. A request that has not ended counts with what is reserved for it.

    That is the estimated number of its prompt tokens, and the most that its answer may have.
    """

    num_tokens: int = 0
    money: float = 0.0


NOTHING = Spent()


def cost(price: Price, num_prompt_tokens: int, num_output_tokens: int) -> float:
    return _PER_MILLION * (price.prompt * num_prompt_tokens + price.output * num_output_tokens)


def need_of(price: Price, num_prompt_tokens: int, max_tokens: int) -> Spent:
    """Return what is reserved for a request whose answer has at most `max_tokens`."""
    return Spent(num_prompt_tokens + max_tokens, cost(price, num_prompt_tokens, max_tokens))


def settled(told: Usage | None, estimated: int, num_output: int) -> tuple[int, int, bool]:
    """Return the prompt and output tokens that a request costs, and whether the remote stated fewer.

    `told` are the remote's counts; None if it stated none. They are believed, except that the answer has at least the
    `num_output` tokens that were counted here, and the prompt at least half of the `estimated` tokens.
    """
    if told is None:
        return estimated, num_output, False
    num_prompt = told.num_prompt_tokens if 2 * told.num_prompt_tokens >= estimated else estimated
    most = max(told.num_output_tokens, num_output)
    return num_prompt, most, (num_prompt, most) != (told.num_prompt_tokens, told.num_output_tokens)


class Spending:
    """One day's sums, computed from the day's lines in their order."""

    def __init__(self) -> None:
        self._by_remote: dict[str, Spent] = {}
        self._by_client: dict[tuple[str, str], Spent] = {}
        self._open: dict[int, tuple[str, str, Spent]] = {}

    def add(self, line: Line, price: Price | None = None) -> None:
        """Count a line of the ledger. Only a RowStart needs `price`, the price of its remote; None counts as free."""
        match line:
            case RowStart():
                num_prompt, num_output = line.num_reserved_prompt_tokens, line.num_reserved_output_tokens
                reserved = need_of(price or Price(), num_prompt, num_output)
                self._open[line.row] = line.remote, line.client, reserved
                self._count(line.remote, line.client, reserved.num_tokens, reserved.money)
            case RowEnd():
                self._close(line.row)
                self._count(line.remote, line.client, line.num_prompt_tokens + line.num_output_tokens, line.money)
            case Carried():
                self._count(line.remote, line.client, line.num_tokens, line.money)

    def of(self, remote: str) -> Spent:
        """Return what all clients have spent at a remote, or at all remotes together if `remote` is ALL."""
        return self._by_remote.get(remote) or Spent()

    def of_client(self, remote: str, client: str) -> Spent:
        """Return what a client has spent at a remote, or at all remotes together if `remote` is ALL."""
        return self._by_client.get((remote, client)) or Spent()

    def carried(self) -> list[Carried]:
        """Return the sums as lines, without requests that have not ended. Do not call `add` afterwards."""
        for row in list(self._open):
            self._close(row)
        return [
            Carried(remote, client, spent.num_tokens, spent.money)
            for (remote, client), spent in self._by_client.items()
            if remote != ALL and spent != Spent()
        ]

    def _close(self, row: int) -> None:
        if row in self._open:
            remote, client, reserved = self._open.pop(row)
            self._count(remote, client, -reserved.num_tokens, -reserved.money)

    def _count(self, remote: str, client: str, num_tokens: int, money: float) -> None:
        for name in (remote, ALL):
            for spent in (
                self._by_remote.setdefault(name, Spent()),
                self._by_client.setdefault((name, client), Spent()),
            ):
                spent.num_tokens += num_tokens
                spent.money += money


def why_over_budget(name: str, budget: Budget, spending: Spending, client: str, need: Spent = NOTHING) -> str | None:
    """Return why a client may not spend `need` today; None if it may.

    `budget` is that of the remote with this name, or that of all remotes together if `name` is ALL.
    """
    where = f"at the remote {name!r}" if name != ALL else "at all remotes, by the machine's policy,"
    for spent, most, wanted, unit, who in _limits(name, budget, spending, client, need):
        if spent >= most:
            return (
                f"the day's budget {who} {where} is used up: {spent:,.6g} of {most:,.6g} {unit}; "
                "it starts again at 0:00 UTC"
            )
        if spent + wanted > most + _ROUNDING:
            return (
                f"the day's budget {who} {where} has {most - spent:,.6g} of {most:,.6g} {unit} left, and this request "
                f"may need {wanted:,.6g} for its prompt and max_tokens; ask for fewer tokens, or wait until running "
                "requests have ended"
            )
    return None


def tokens_left(
    name: str, budget: Budget, spending: Spending, client: str, price: Price, num_prompt_tokens: int
) -> int | None:
    """Return how many tokens the answer to a prompt of this length may have; None if no budget limits it."""
    prompt = need_of(price, num_prompt_tokens, 0)
    left: list[float] = []
    for spent, most, wanted, unit, _ in _limits(name, budget, spending, client, prompt):
        if unit == "tokens":
            left.append(most - spent - wanted)
        elif price.output:
            left.append((most - spent - wanted) / (_PER_MILLION * price.output))
    return max(0, math.floor(min(left))) if left else None


def _limits(
    name: str, budget: Budget, spending: Spending, client: str, need: Spent
) -> Iterator[tuple[float, float, float, str, str]]:
    """Yield what was spent, the most that may be spent, and what is needed, with their unit and whose budget it is."""
    everyone, one = spending.of(name), spending.of_client(name, client)
    whose = f"of the client {client!r}" if client else "of the owner"
    for spent, most, wanted, unit, who in (
        (everyone.num_tokens, budget.tokens, need.num_tokens, "tokens", "of all clients"),
        (everyone.money, budget.money, need.money, "money", "of all clients"),
        (one.num_tokens, budget.client_tokens, need.num_tokens, "tokens", whose),
        (one.money, budget.client_money, need.money, "money", whose),
    ):
        if most is not None:
            yield spent, most, wanted, unit, who
