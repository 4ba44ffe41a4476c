"""Decides whether a request is allowed, from what is known about its sender.

docs/access.md states the same rules in words. A test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from edgeagent.credentials.keys import OWNER, CheckedKeys, Client, KeyStatus, Scope
from edgeagent.errors import EdgeAgentError, Forbidden, Unauthorized

_INFER_ONLY = frozenset({Scope.INFER})


class Listener(StrEnum):
    """The kind of socket on which a request arrived."""

    UNIX = "unix"
    """A Unix socket that belongs to the daemon's user."""
    LOOPBACK = "loopback"
    """A TCP port that only this machine can reach."""
    LOCKED = "locked"
    """A TCP port on which every client needs a token: other machines can reach it, or the owner configured it so."""


_IN_WORDS = {Listener.UNIX: "the Unix socket", Listener.LOOPBACK: "loopback", Listener.LOCKED: "TCP"}


@dataclass(frozen=True, slots=True)
class User:
    """The user of the process at the other end of a connection. `uid` is None if the system does not know it.

    `is_own`: this is the daemon's own user.
    """

    uid: int | None = None
    is_own: bool = False


UNKNOWN_USER = User()
OWN_USER = User(is_own=True)


class Peer(Protocol):
    """The other end of a connection. The transport puts it into the connection's ASGI scope.

    `client`: the name of the client whose request was let in last on this connection; None if there was none yet.
    A request that anybody may send, such as GET /health, does not count.
    """

    client: str | None

    async def user(self) -> User:
        """Return the user of the process at the other end."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """What is known about the sender of a request. `is_page`: a web page may have made a browser send the request."""

    listener: Listener
    user: User
    keys: CheckedKeys
    is_page: bool = False

    def described(self) -> str:
        """Return a description of the sender for the log. It has names, but no keys."""
        client = self.keys.client
        key = f"the token of {client.label or 'the owner'!r}" if client is not None else str(self.keys.status)
        user = "" if self.user.uid is None else f" of the user {self.user.uid}"
        return f"{key}{user} over {_IN_WORDS[self.listener]}{', from a web page' if self.is_page else ''}"


def decide(need: Scope | None, sender: Sender) -> Client | EdgeAgentError:
    """Return the sender as a client with its scopes, or the error that refuses the request.

    `need` is the scope that the request needs; None if it needs none. The first rule that applies decides:

    1. if the request needs no scope, it is allowed;
    2. an edgeagent token that is unknown, or that cannot be checked, is refused; several keys are also refused if any
       of them is an edgeagent token;
    3. a known token allows its own scopes and nothing else, whatever the listener; but on loopback, the token of one of
       the owner's browsers is refused if another user shows it: a program that took the port of a daemon that had
       stopped may have got it from an open page;
    4. on a port where every client needs a token, a request without an edgeagent token is refused;
    5. on the Unix socket, every user except the daemon's own is refused;
    6. the daemon's own user is the owner, but a request that a web page may have sent has only the scope infer;
    7. other users of this machine have only the scope infer. Each known user is a separate client.
    """
    if need is None:
        return Client("", frozenset())
    match sender.keys.status:
        case KeyStatus.UNUSABLE:
            return Unauthorized(f"no token can be checked, so none is accepted: {sender.keys.reason}")
        case KeyStatus.UNKNOWN:
            return Unauthorized(_UNKNOWN)
        case KeyStatus.SEVERAL:
            return Unauthorized("the request shows several keys; show one token, and nothing beside it")
        case KeyStatus.KNOWN:
            client = sender.keys.client
            assert client is not None, "a known token has a holder"
            is_own = sender.listener is not Listener.LOOPBACK or sender.user.uid is None or sender.user.is_own
            return _opened(need, client) if is_own or not client.browser else Unauthorized(_ANOTHERS_BROWSER)
    if sender.listener is Listener.LOCKED:
        return Unauthorized(_MISSING if sender.keys.status is KeyStatus.NONE else _WRONG)
    if sender.listener is Listener.UNIX and not sender.user.is_own:
        return Forbidden("this socket is another user's; only the daemon's own user may use it")
    local = _local_client(sender)
    return local if need in local.scopes else Unauthorized(f"{_OWNERS}, with the scope {need}")


_HOW_TO_SHOW = (
    "Authorization: Bearer <the content of the file `token` in the state folder, which `edgeagent doctor` names>, or a "
    "client's own, which `edgeagent token add NAME` makes"
)
_MISSING = f"this request needs a token: {_HOW_TO_SHOW}"
_WRONG = f"this request needs a token, and its key is not one of this daemon; show {_HOW_TO_SHOW}"
_UNKNOWN = (
    "this token opens nothing here: it was removed or replaced, has expired, or is another daemon's; the owner's is in "
    "the file `token` in the state folder, which `edgeagent doctor` names, and `edgeagent token add NAME` makes one "
    "for a client"
)
_ANOTHERS_BROWSER = (
    "this token is that of a browser of the user that the daemon runs as, and another user of this machine shows it"
)
_OWNERS = (
    "this is the owner's: ask as the user that the daemon runs as (not from a web page), or show a token "
    "(Authorization: Bearer <the content of the file `token` in the state folder, which `edgeagent doctor` names>, or "
    "a client's own)"
)


def _opened(need: Scope, client: Client) -> Client | EdgeAgentError:
    if need in client.scopes:
        return client
    return Forbidden(f"the token of {client.label!r} does not open this: it lacks the scope {need}")


def _local_client(sender: Sender) -> Client:
    if sender.user.is_own:
        return Client(OWNER.name, _INFER_ONLY) if sender.is_page else OWNER
    # No client's name has a colon, so no client has the name of another user's partition.
    return Client("uid:unknown" if sender.user.uid is None else f"uid:{sender.user.uid}", _INFER_ONLY)
