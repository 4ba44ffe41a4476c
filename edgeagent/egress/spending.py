"""The tokens and the money that were spent in a day, as sums for each remote and client, and the check of budgets."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.egress import Carried, Line, RowEnd, RowStart
from edgeagent.remotes import Budget, Price

# The assumed size of a token in a body whose tokens are not counted yet.
BYTES_PER_TOKEN = 4
ALL = ""
"""Stands for all remotes together, in place of a remote's name."""
_PER_MILLION = 1e-6


@dataclass(slots=True)
class Spent:
    """Tokens and money spent. A request that has not ended counts with the estimated number of its prompt tokens."""

    num_tokens: int = 0
    money: float = 0.0


def cost(price: Price, num_prompt_tokens: int, num_output_tokens: int) -> float:
    """Return the money that a request costs."""
    return _PER_MILLION * (price.prompt * num_prompt_tokens + price.output * num_output_tokens)


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
                num_tokens = line.num_bytes // BYTES_PER_TOKEN
                estimate = Spent(num_tokens, cost(price or Price(), num_tokens, 0))
                self._open[line.row] = line.remote, line.client, estimate
                self._count(line.remote, line.client, estimate.num_tokens, estimate.money)
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

    def clients(self, remote: str) -> list[str]:
        """Return the names of the clients that have used a remote on this day, sorted."""
        return sorted(client for name, client in self._by_client if name == remote)

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
            remote, client, estimate = self._open.pop(row)
            self._count(remote, client, -estimate.num_tokens, -estimate.money)

    def _count(self, remote: str, client: str, num_tokens: int, money: float) -> None:
        for name in (remote, ALL):
            for spent in (
                self._by_remote.setdefault(name, Spent()),
                self._by_client.setdefault((name, client), Spent()),
            ):
                spent.num_tokens += num_tokens
                spent.money += money


def why_over_budget(name: str, budget: Budget, spending: Spending, client: str) -> str | None:
    """Return why a client may spend no more today; None if it may.

    `budget` is that of the remote with this name, or that of all remotes together if `name` is ALL.
    """
    if budget == Budget():
        return None
    everyone, one = spending.of(name), spending.of_client(name, client)
    where = f"at the remote {name!r}" if name != ALL else "at all remotes, by the machine's policy,"
    whose = f"of the client {client!r}" if client else "of the owner"
    for spent, most, unit, who in (
        (everyone.num_tokens, budget.tokens, "tokens", "of all clients"),
        (everyone.money, budget.money, "money", "of all clients"),
        (one.num_tokens, budget.client_tokens, "tokens", whose),
        (one.money, budget.client_money, "money", whose),
    ):
        if most is not None and spent >= most:
            return (
                f"the day's budget {who} {where} is used up: {spent:,.6g} of {most:,.6g} {unit}; "
                "it starts again at 0:00 UTC"
            )
    return None
