"""The route mode of a request: the strictest of the machine's, the credential's and the request's own mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeagent.types import RouteMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeagent.config import Config
    from edgeagent.remotes import Remote

# In the order of declaration: the strictest first.
_RANKS = {mode: rank for rank, mode in enumerate(RouteMode)}


def strictest(*modes: RouteMode | None) -> RouteMode | None:
    """Return the strictest of several modes. None means no restriction; return None if all modes are None."""
    return min((mode for mode in modes if mode is not None), key=_RANKS.__getitem__, default=None)


def machine_mode(config: Config, remotes: Sequence[Remote], policy: RouteMode | None) -> RouteMode:
    """Return the stricter of the option `route` and the policy's mode; LOCAL_ONLY if there is no usable remote.

    `remotes` are the usable remotes. `policy` is the mode that the machine's policy sets; None if it sets none.
    """
    if not remotes:
        return RouteMode.LOCAL_ONLY
    option = RouteMode.PREFER_LOCAL if config.route == "auto" else RouteMode(config.route)
    return strictest(option, policy) or RouteMode.LOCAL_ONLY
