"""The way in: the owner makes a one-time link, and the browser that opens it exchanges its secret for a token.

The secret is in the fragment of the link, which browsers do not send. The page posts it once. A browser cannot set a
header on a WebSocket, so it sends its token in a subprotocol there (see `gate.access.TOKEN_SUBPROTOCOL`).
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import PEER_KEY, header_tokens
from edgeagent.api.wire.body import Body, OwnerBody, read_fields, read_valid
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Shape
from edgeagent.credentials.decision import Peer
from edgeagent.credentials.grants import GRANT
from edgeagent.credentials.keys import OWNER, Scope, add_browser
from edgeagent.credentials.links import LIFE_S
from edgeagent.errors import ConfigError, Forbidden, InternalError, InvalidRequest, Unauthorized

routes = Routes()

_UNSTORED = {"cache-control": "no-store"}


class LinkBody(OwnerBody):
    """`scopes`: what the browser that uses the link may do."""

    scopes: Annotated[list[Annotated[Scope, Field(strict=False)]], Field(min_length=1, max_length=len(Scope))] = list(
        Scope
    )


class Link(Shape):
    """A one-time link: `path` is behind the daemon's address. It can be used once, within `expires_in_s` seconds."""

    path: str
    expires_in_s: float


class EntryBody(Body):
    """`secret`: that of the link."""

    secret: Annotated[str, Field(min_length=1, max_length=128)]


class Entry(Shape):
    """The token of this browser."""

    token: str


@routes.add("POST /edgeagent/page/link", Scope.ADMIN, "page", answer=Link, fields=LinkBody)
async def make_link(request: Request) -> JSONResponse:
    """Make a one-time link, with which a browser gets a token of its own. A client's or a browser's token may not."""
    grant = GRANT.get()
    if grant is not None and grant.client.label != OWNER.label:
        # Otherwise a client with the scope admin would get the owner's stored responses and every scope, and a
        # browser's token would leave others behind when it is removed.
        raise Forbidden(f"the token of {grant.client.label!r} makes no links; run `edgeagent open` as the owner")
    asked = await read_fields(request, LinkBody)
    secret = context_of(request).links.add(frozenset(asked.scopes))
    return JSONResponse(Link(path=f"/#link={secret}", expires_in_s=LIFE_S))


@routes.add("POST /edgeagent/kiosk/link", Scope.KIOSK, "page", answer=Link)
async def make_kiosk_link(request: Request) -> JSONResponse:
    """Make a one-time link, with which the page of a kiosk gets the token that asks for the link."""
    # A browser's command line can be read by other users, so the token itself is not on it.
    if GRANT.get() is None:
        raise InvalidRequest("a kiosk's link is made with the kiosk's token; `edgeagent kiosk` shows it")
    secret = context_of(request).kiosk_links.add(header_tokens(request.scope)[0].decode())
    return JSONResponse(Link(path=f"/kiosk#link={secret}", expires_in_s=LIFE_S))


@routes.add("POST /edgeagent/page/token", None, "page", body=EntryBody, answer=Entry)
async def enter(request: Request) -> JSONResponse:
    """Exchange the secret of a one-time link for a token. A browser that shows its earlier token replaces it."""
    asked = await read_valid(request, EntryBody)
    context = context_of(request)
    # The browser of a kiosk may be another user's. Its token allows less than that user may do without one.
    if (token := context.kiosk_links.use(asked.secret)) is not None:
        return JSONResponse(Entry(token=token), headers=_UNSTORED)
    if not context.config.server.is_token_needed and await _is_another_users(request):
        raise Forbidden("this link is for a browser of the user that the daemon runs as")
    scopes = context.links.use(asked.secret)
    if scopes is None:
        raise Unauthorized("this link was used already, or is too old; run `edgeagent open` for a new one")
    grant = GRANT.get()
    replaced = grant.client.browser if grant is not None else ""
    try:
        token = await asyncio.to_thread(add_browser, context.config.state_dir, scopes, replaced)
    except ConfigError as error:
        raise InternalError(error.message) from None
    return JSONResponse(Entry(token=token), headers=_UNSTORED)


async def _is_another_users(request: Request) -> bool:
    """Whether the system says that the browser runs as another user of this machine.

    A link on a command line can be read by other users. They may not use it before the browser does.
    """
    peer: Peer | None = request.scope.get(PEER_KEY)
    user = await peer.user() if peer is not None else None
    return user is not None and user.uid is not None and not user.is_own
