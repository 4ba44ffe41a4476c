"""One token with every right, without the files in which a daemon keeps its own."""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.credentials.keys import OWNER, Client, Shown, Standing, digest


class OwnerKey:
    """A key ring with one key."""

    trouble = ""
    revision = 0

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def judge(self, tokens: Sequence[bytes]) -> Shown:
        if not tokens:
            return Shown(Standing.NOTHING)
        if len(tokens) > 1:
            return Shown(Standing.SEVERAL if self._token in tokens else Standing.FOREIGN)
        held = digest(tokens[0])
        client = self.holder(held)
        return Shown(Standing.FOREIGN) if client is None else Shown(Standing.HELD, client, held)

    def holder(self, held: bytes) -> Client | None:
        return OWNER if held == digest(self._token) else None
