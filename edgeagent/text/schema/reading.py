"""Reads the schemas of formats and tools into the form that is compiled, and leaves out what cannot be followed.

A schema that is strict is refused if any keyword cannot be followed. From other schemas such keywords are left out, and
a warning names them: an unused tool must not cost an agent its answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeagent.text.partition_cache import PartitionCache
from edgeagent.text.schema.check import SchemaError, followable, object_schema, parse_schema
from edgeagent.text.schema.closing import Schema, WorkLimit
from edgeagent.text.schema.faults import (
    Fault,
    Try,
    forbidden_keywords,
    pattern_faults,
    plain_faults,
    unknown_keywords,
    without,
)

MAX_CACHED = 64
# The most keywords of one schema that are named.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schema of a format or of a tool's arguments, as the client sent it. `is_call`: only objects fit."""

    text: str
    strict: bool
    is_call: bool


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A schema in the form that is compiled, and a warning if keywords were left out, otherwise an empty text."""

    schema: Schema
    warning: str = ""


class SchemaReader:
    """Reads schemas, and caches the latest relaxed ones, for each partition (see CachePolicy) its own.

    `try_schema` compiles a schema alone; see `faults.Try`.
    """

    def __init__(self, try_schema: Try) -> None:
        self._try = try_schema
        self._relaxed: PartitionCache[Wanted, ReadSchema] = PartitionCache(MAX_CACHED)

    def read(self, partition: str, wanted: Wanted, limit: WorkLimit) -> ReadSchema:
        """Return a schema that may still be refused by the compiler; then call `relax`. `limit` is the request's.

        Raise SchemaError if it cannot be used.
        """
        return self._relaxed.get(partition, wanted) or self._without(wanted, forbidden_keywords, limit)

    def relax(self, partition: str, wanted: Wanted, why: str) -> ReadSchema:
        """Return a schema that the compiler accepts; raise SchemaError if it is strict. `why`: why it was refused."""
        parts = (forbidden_keywords, plain_faults, lambda schema: pattern_faults(schema, self._try))
        relaxed = self._without(wanted, lambda schema: [fault for find in parts for fault in find(schema)], WorkLimit())
        if (reason := self._try(relaxed.schema)) is not None:
            if wanted.strict:
                doubts = unknown_keywords(parse_schema(wanted.text))
                raise SchemaError(str(doubts[0]) if doubts else f"the schema cannot be followed: {reason or why}")
            anything = {"type": "object"} if wanted.is_call else {}
            warning = f"the schema cannot be followed and is ignored: {reason}"
            relaxed = ReadSchema(followable(anything, lenient=True), warning)
        self._relaxed.put(partition, wanted, relaxed)
        return relaxed

    def _without(self, wanted: Wanted, find: Callable[[Schema], list[Fault]], limit: WorkLimit) -> ReadSchema:
        """Return a schema without the keywords that `find` returns. Raise SchemaError if it is strict and has some."""
        schema = parse_schema(wanted.text)
        faults = find(schema)
        if faults and wanted.strict:
            raise SchemaError(str(faults[0]))
        left = without(schema, faults) if faults else schema
        left = object_schema(left) if wanted.is_call else left
        more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        named = ", ".join(f"{fault} and is ignored" for fault in faults[:MAX_NAMED])
        return ReadSchema(followable(left, lenient=not wanted.strict, limit=limit), named + more)
