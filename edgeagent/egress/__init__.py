"""The egress ledger: one row for whatever was sent from this machine, without its content.

A row stands for one attempt to send a request to a remote, for one probe, or for something that edgeagent sends for
itself (`OWN_REASONS`). It is two lines. The first is written before anything is sent, the second at the end, each into
the file of the UTC day. `ledger` writes the lines, `rows` reads and purges them, and `spending` sums a day's tokens and
money.
"""

from __future__ import annotations

from msgspec import Struct

EGRESS_FOLDER = "egress"
KEPT_DAYS = 30
PROBE = "probe"
"""The reason in the row of a probe."""
PULL, DOCTOR, ENGINE, BENCH, TRACES, ANSWERS = "pull", "doctor", "engine", "bench", "traces", "answers"
FETCH = "fetch"
"""The reason in the row of an image that is fetched, because a client's message has its address."""
OWN_REASONS = (PULL, DOCTOR, ENGINE, BENCH, TRACES, ANSWERS, FETCH)
"""The reasons in rows of what edgeagent sends for itself. These rows have no request, mode and remote.

Only the row of a fetch has a client. Its bytes are those of the address.

A pull, and the doctor's question whether the hub answers, have a row for each host that is asked. A back end that is
installed from a web page has a row for the page's host, a benchmark one for the server that it measures, traces one
for each batch, and a store of answers at a server one for each command.
"""
UNFINISHED = "unfinished"
"""The outcome of a row without a second line, for example because the request still runs or the daemon crashed."""


class Sent(Struct, frozen=True):
    """The fields of a row that are known before anything is sent.

    `row` is the row's number. `at` is ISO 8601, UTC. `request` is the request's id; empty for a probe. `client` is
    empty for the owner. `num_bytes` is the length of the body. `mode` and `remote` are empty for OWN_REASONS.
    """

    row: int
    at: str
    request: str
    client: str
    mode: str
    reason: str
    remote: str
    host: str
    model: str
    num_bytes: int


class RowStart(Sent, frozen=True, tag="begun", tag_field="kind"):
    """The line that is written before anything is sent.

    `num_reserved_prompt_tokens` and `num_reserved_output_tokens` are what is reserved for the request: the estimated
    tokens of its prompt, and the most tokens of its answer. The latter is 0 if there is no limit.
    """

    num_reserved_prompt_tokens: int = 0
    num_reserved_output_tokens: int = 0


class RowEnd(Struct, frozen=True, tag="ended", tag_field="kind"):
    """The line that is written when a request has ended. `money` is what it cost, in the owner's currency.

    The line repeats the remote and the client, since the `RowStart` line may be in another day's file. `differs`: the
    remote stated fewer tokens than were counted here, so the tokens are those that were counted.
    """

    row: int
    at: str
    remote: str
    client: str
    outcome: str
    num_prompt_tokens: int
    num_output_tokens: int
    money: float
    differs: bool = False


class Carried(Struct, frozen=True, tag="carried", tag_field="kind"):
    """What a client had already spent at a remote on the day of a purge. It still counts against the budgets."""

    remote: str
    client: str
    num_tokens: int
    money: float


Line = RowStart | RowEnd | Carried


class Row(Sent, frozen=True):
    """Something that was sent, as it is shown and exported. `ended_at` is empty if its end is unknown."""

    outcome: str = UNFINISHED
    ended_at: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    money: float = 0.0
    differs: bool = False
