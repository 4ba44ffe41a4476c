"""The actions of a session, in addition to Send and Close. Its connection performs them in order."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.socket.outbox import Close, Send
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
    """Run a response: pass each step to `Session.step`, or a failure to `Session.failed`.

    Call `Session.admitted` after ADMISSION_S if the response still runs.
    """

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request. Its last step, a Finished with the reason `cancelled`, is still passed to `Session.step`."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class Drop:
    """End a request that has no step yet. Cancel its task or, if it was only queued, hide the request."""

    live: LaneTurn


@dataclass(frozen=True, slots=True)
class End:
    """A response is over. The next Sends include its terminal event.

    Store `stored` before the terminal event is sent; None: store nothing.
    """

    live: LaneTurn
    stored: StoredResponse | None


OwnAction = Fetch | Queue | Start | Cancel | Drop | End
Action = OwnAction | Send | Close
