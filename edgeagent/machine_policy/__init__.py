"""The machine's policy: what the administrator allows, for every user of edgeagent. It overrides every option.

`file` finds, checks and reads the policy's file, and reads it again after changes. `remotes` applies the policy to an
owner's remotes.
"""

from __future__ import annotations

from msgspec import Struct

from edgeagent.remotes import Budget
from edgeagent.types import RouteMode


class MachinePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed. A field that is not given forbids nothing.

    `route`: the least strict routing mode that is allowed. `remote_hosts`: the only hosts that remotes may have, as
    "gpu.example", "gpu.example:8443" or "*.example". `pulls`: whether models may be downloaded. `model_sha256`: the
    hashes of the only files that may be loaded. `budget`: the limits of a day's spending on all remotes together.
    `ca_file`: the PEM file of the only CA that is trusted for remotes. `proxy`: the proxy for every remote that is not
    on this machine.
    """

    route: RouteMode | None = None
    remote_hosts: tuple[str, ...] | None = None
    pulls: bool = True
    model_sha256: tuple[str, ...] | None = None
    budget: Budget = Budget()
    ca_file: str | None = None
    proxy: str | None = None


CLOSED = MachinePolicy(route=RouteMode.LOCAL_ONLY, remote_hosts=(), pulls=False)
"""The policy while its file cannot be trusted or understood: nothing leaves the machine, and nothing is downloaded."""
