"""One token with every right, without the files in which a daemon keeps its own."""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.credentials.keys import OWNER, CheckedKeys, Client, KeyStatus, digest


class OwnerKey:
    """A key ring with one key."""

    trouble = ""
    revision = 0

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def judge(self, tokens: Sequence[bytes]) -> CheckedKeys:
        if not tokens:
            return CheckedKeys(KeyStatus.NONE)
        if len(tokens) > 1:
            return CheckedKeys(KeyStatus.SEVERAL if self._token in tokens else KeyStatus.FOREIGN)
        token_digest = digest(tokens[0])
        client = self.holder(token_digest)
        return CheckedKeys(KeyStatus.FOREIGN) if client is None else CheckedKeys(KeyStatus.KNOWN, client, token_digest)

    def holder(self, token_digest: bytes) -> Client | None:
        return OWNER if token_digest == digest(self._token) else None
