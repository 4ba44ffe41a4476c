"""Checks whether the hub answers, with a HEAD request for its first page."""

from __future__ import annotations

from edgeagent.errors import EdgeAgentError
from edgeagent.machine_policy.file import PolicyFile
from edgeagent.store.hub.errors import translated

_TIMEOUT_S = 10.0


def hub_address() -> str:
    """Return the hub's address: HF_ENDPOINT, or the default one."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT).rstrip("/")


def why_unreachable() -> str:
    """Return why no model can be pulled: the hub does not answer, or the policy forbids pulls; empty if neither."""
    from huggingface_hub import get_session

    endpoint = hub_address()
    try:
        PolicyFile().check_pull()
        with translated("the hub", endpoint):
            get_session().head(endpoint, timeout=_TIMEOUT_S).raise_for_status()
    except EdgeAgentError as error:
        return error.message
    return ""
