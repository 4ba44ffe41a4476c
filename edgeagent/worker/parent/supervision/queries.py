"""The open queries to one model's worker. This module knows neither processes nor pipes.

There are three kinds. An Embed or a Rerank takes long. A PurgeCache waits for the disk. Any other query is quick. No
kind waits for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from itertools import chain, count

from edgeagent.errors import EdgeAgentError, Overloaded, from_code
from edgeagent.types import Embed, PurgeCache, QueryAnswer, Rerank, TextQuery
from edgeagent.worker.protocol import AnswerPart, Ask, Failed, ProtocolError

MAX_QUERIES = 64
MAX_EMBEDS = 16
_MAX_PARTS = 4096
_ID_PREFIX = "ask-"  # ids of requests never begin with this


class Kind(Enum):
    """The kinds of queries; see the module's docstring."""

    QUICK = auto()
    EMBED = auto()
    PURGE = auto()


def _kind(query: TextQuery) -> Kind:
    match query:
        case Embed() | Rerank():
            return Kind.EMBED
        case PurgeCache():
            return Kind.PURGE
        case _:
            return Kind.QUICK


class Query:
    """One query, and the parts of its answer so far.

    `future` gets the answer or an error. `sent_at_s` is when the query was sent to the worker; None before that.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.kind = _kind(ask.query)
        self.future: asyncio.Future[QueryAnswer] = asyncio.get_running_loop().create_future()
        self.sent_at_s: float | None = None
        self.parts: list[QueryAnswer] = []


class Queries:
    """All open queries, by id, in order of arrival."""

    def __init__(self) -> None:
        self._open: dict[str, Query] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._open)

    @staticmethod
    def has_id(some_id: str) -> bool:
        """Whether this is the id of a query (open or ended), and not the id of a request."""
        return some_id.startswith(_ID_PREFIX)

    def add(self, query: TextQuery) -> Query:
        """Add a query; raise Overloaded if too many queries of its kind are open."""
        added = Query(Ask(f"{_ID_PREFIX}{next(self._numbers)}", query))
        num_waiting = sum(other.kind is added.kind for other in self._open.values())
        is_embed = added.kind is Kind.EMBED
        if num_waiting >= (MAX_EMBEDS if is_embed else MAX_QUERIES):
            what = "requests for embeddings" if is_embed else "questions about text"
            raise Overloaded.full_queue(f"{num_waiting} {what} are waiting", served_by="local")
        self._open[added.ask.id] = added
        return added

    @property
    def sent_at_s(self) -> float | None:
        """When the worker got its current quick query; None if it has none."""
        sent = (query.sent_at_s for query in self._open.values() if query.kind is Kind.QUICK)
        return next((sent_at_s for sent_at_s in sent if sent_at_s is not None), None)

    @property
    def is_embedding(self) -> bool:
        return any(query.kind is Kind.EMBED and query.sent_at_s is not None for query in self._open.values())

    def sendable(self) -> list[Query]:
        """Return the queries to send now: the oldest of each kind, if the worker has none of that kind.

        The worker gets only one query of each kind at a time, so that the query's time can be measured.
        """
        first = {query.kind: query for query in reversed(self._open.values())}
        sent = {query.kind for query in self._open.values() if query.sent_at_s is not None}
        return [query for kind, query in first.items() if kind not in sent]

    def discard(self, query: Query) -> bool:
        """Drop a query. Return True if the caller must send the worker a Drop, because the worker has the query."""
        return self._open.pop(query.ask.id, None) is not None and query.sent_at_s is not None

    def on_answer(self, answer: AnswerPart) -> None:
        """Add a part of an answer. Ignore it if the query was dropped. Raise ProtocolError for too many parts."""
        query = self._open.get(answer.id)
        if query is None:
            return
        query.parts.append(answer.part)
        if len(query.parts) > _MAX_PARTS:
            raise ProtocolError(f"an answer in more than {_MAX_PARTS} parts")
        if answer.is_last:
            self._settle(query, _join(query.parts))

    def on_failed(self, failed: Failed) -> None:
        """End a query with the worker's error. Ignore the error if the query was dropped."""
        query = self._open.get(failed.id)
        if query is not None:
            self._settle(query, from_code(failed.code, failed.message, param=failed.param))

    def fail_sent(self, error: EdgeAgentError) -> None:
        """End the queries that were sent to the worker, with this error."""
        for query in [query for query in self._open.values() if query.sent_at_s is not None]:
            self._settle(query, error)

    def fail_all(self, make_error: Callable[[], EdgeAgentError]) -> None:
        """End every query, each with a new error."""
        for query in list(self._open.values()):
            self._settle(query, make_error())

    def _settle(self, query: Query, outcome: QueryAnswer | EdgeAgentError) -> None:
        del self._open[query.ask.id]
        if query.future.done():
            return  # its client has just disconnected
        if isinstance(outcome, QueryAnswer):
            query.future.set_result(outcome)
        else:
            query.future.set_exception(outcome)


def _join(parts: list[QueryAnswer]) -> QueryAnswer:
    return QueryAnswer(
        "".join(part.text for part in parts),
        tuple(chain.from_iterable(part.tokens for part in parts)),
        tuple(chain.from_iterable(part.pieces for part in parts)),
        tuple(chain.from_iterable(part.embeddings for part in parts)),
        tuple(chain.from_iterable(part.scores for part in parts)),
    )
