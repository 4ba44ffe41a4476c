"""The actions that a session returns beside Send and Close, which its connection performs in order."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.api.responses.event_json import ResponseBody
from edgeagent.api.responses.storage.history import Missing, StoredResponse
from edgeagent.api.responses.turn import Turn
from edgeagent.api.socket.actions import Close, Send


@dataclass(frozen=True, slots=True)
class Fetch:
    """Look in the store for what a lane's next create continues, and give it to `fetched`."""

    lane: str | None
    missing: Missing


@dataclass(frozen=True, slots=True)
class Queue:
    """Make a queued turn visible to requests for its id, until its Start or its Drop."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Start:
    """Run a turn: feed its steps to `step`, its failure to `failed`, and call `admitted` if neither comes soon."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a request politely; its Finished(cancelled) still goes through `step`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a request's steps before the first has come, or take it from the queue; none is read any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Store a response before its terminal event, which follows, is sent."""

    response: StoredResponse
    body: ResponseBody


OwnAction = Fetch | Queue | Start | Cancel | Drop | Keep
Action = OwnAction | Send | Close
