"""The machine's policy: what its administrator allows, whoever runs edgeagent. It outranks every option.

`file` finds, checks, reads and follows its file; `remotes` says what it leaves of an owner's remotes.
"""

from __future__ import annotations

from msgspec import Struct

from edgeagent.remotes import Budget
from edgeagent.types import RouteMode


class MachinePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed; a field that is not given forbids nothing.

    `route`: no mode may be less strict. `remote_hosts`: the only hosts of remotes, as "gpu.example", "gpu.example:8443"
    or "*.example". `pulls`: whether models may be downloaded. `model_sha256`: the only files that may be loaded.
    `budget`: most that a day may take at all remotes together. `ca_file`: the one CA that remotes are known by (PEM).
    `proxy`: the way to every remote that is not on this machine.
    """

    route: RouteMode | None = None
    remote_hosts: tuple[str, ...] | None = None
    pulls: bool = True
    model_sha256: tuple[str, ...] | None = None
    budget: Budget = Budget()
    ca_file: str | None = None
    proxy: str | None = None


CLOSED = MachinePolicy(route=RouteMode.LOCAL_ONLY, remote_hosts=(), pulls=False)
"""What holds while the policy's file cannot be trusted or understood: nothing leaves, nothing is fetched."""
