"""What a daemon needs to use remotes: the remotes, the machine's policy, the API keys, and the ledger."""

from __future__ import annotations

from edgeagent.config import Config
from edgeagent.egress.ledger import Ledger
from edgeagent.machine_policy import PolicyFile, under
from edgeagent.remotes import Remote
from edgeagent.remotes.file import RemotesFile
from edgeagent.remotes.keys import KeyFinder
from edgeagent.router.policy import machine_mode
from edgeagent.types import RouteMode


class RemoteAccess:
    """The owner's remotes and the machine's policy, read again after a change. Call `close` at the end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.policy = PolicyFile()
        self.file = RemotesFile(config.state_dir)
        self.keys = KeyFinder(waits=False)
        self.ledger = Ledger(config.state_dir, self.file.find, ceiling=lambda: self.policy.policy.budget)
        self._remotes: tuple[Remote, ...] = ()
        self._revision: tuple[int, int] | None = None
        if self.file.remotes:
            self.ledger.open()

    @property
    def revision(self) -> tuple[int, int]:
        """A value that changes with every change of a remote or the policy, and with every write of remotes.json."""
        return self.file.revision, self.policy.revision

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The remotes that may be used, with the CA and the proxy that the policy sets."""
        if (revision := self.revision) != self._revision:
            policy = self.policy.policy
            allowed = [remote for remote in self.file.remotes if not self.policy.why_not(remote)]
            self._remotes, self._revision = tuple(under(policy, remote) for remote in allowed), revision
        return self._remotes

    @property
    def mode(self) -> RouteMode:
        return machine_mode(self._config, self.remotes, self.policy.policy.route)

    @property
    def why_local(self) -> str:
        """Why the machine's policy keeps all requests here; empty if it does not, or if the owner has no remotes."""
        if not self.file.remotes:
            return ""
        if why := self.policy.why_local:
            return why
        whys = [f"{remote.name}: {self.policy.why_not(remote)}" for remote in self.file.remotes]
        return "" if self.remotes else "; ".join(whys)

    def close(self) -> None:
        """Release the ledger's file."""
        self.ledger.close()
