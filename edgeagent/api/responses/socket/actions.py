"""The actions of a session, in addition to Send and Close. Its connection performs them in order."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.socket.actions import Close, Send
from edgeagent.conversation.history import MissingIds, StoredResponse


@dataclass(frozen=True, slots=True)
class Fetch:
    """Look up in the store what a lane's next create continues. Then call `Session.fetched` with the result."""

    lane: str | None
    missing: MissingIds


@dataclass(frozen=True, slots=True)
class Queue:
    """Make a queued response visible to requests for its id, until its Start or its Drop."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Start:
    """Run a response: pass its steps to `Session.step`, and its failure to `Session.failed`.

    If neither comes within ADMISSION_S, call `Session.admitted`.
    """

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request. It still ends in its terminal event: its Finished(cancelled) is passed to `Session.step`."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Drop:
    """End a request that has no step yet: cancel its task or, if it was only queued, hide it. No step of it is read."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class End:
    """A response's terminal event comes next. Store `stored` before that event is sent; if None, store nothing."""

    live: LaneTurn
    stored: StoredResponse | None


OwnAction = Fetch | Queue | Start | Cancel | Drop | End
Action = OwnAction | Send | Close
