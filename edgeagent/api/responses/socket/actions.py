"""The actions of a session, in addition to Send and Close. Its connection performs them in order."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.socket.actions import Close, Send
from edgeagent.conversation.history import Missing, StoredResponse


@dataclass(frozen=True, slots=True)
class Fetch:
    """Look in the store for what a lane's next create continues, and give it to `fetched`."""

    lane: str | None
    missing: Missing


@dataclass(frozen=True, slots=True)
class Queue:
    """Make a queued response visible to requests for its id, until its Start or its Drop."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Start:
    """Run a response: feed its steps to `step`, its failure to `failed`, and call `admitted` if neither comes soon."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request politely; its Finished(cancelled) still goes through `step`."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a request's steps before the first has come, or take it from the queue; none is read any more."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class End:
    """Note that a response's terminal event follows; store `stored` before that is sent (None: it is not stored)."""

    live: LaneTurn
    stored: StoredResponse | None


OwnAction = Fetch | Queue | Start | Cancel | Drop | End
Action = OwnAction | Send | Close
