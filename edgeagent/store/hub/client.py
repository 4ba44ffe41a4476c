"""Asks the hub: whether it answers, and which GGUF files a repository has. Translates the errors of its client.

Nothing is sent to it that is not in the egress ledger before.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.egress import DOCTOR
from edgeagent.egress.ledger import own_requests
from edgeagent.errors import EdgeAgentError, ModelNotFound, StoreError
from edgeagent.machine_policy import PolicyFile
from edgeagent.store.hub.cache import COMMIT, SHA256
from edgeagent.store.names.parsing import is_file_name

if TYPE_CHECKING:
    import httpx2

_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_BEGIN: ContextVar[Callable[[str], None] | None] = ContextVar("_BEGIN", default=None)


@contextmanager
def recorded(state_dir: Path, reason: str, model: str = "") -> Iterator[httpx2.Client]:
    """Yield huggingface_hub's session. Once it was yielded, it sends nothing outside of such a context.

    Each host that it asks, also after a redirect, gets a row in the ledger before the first request. `reason` is one of
    egress.OWN_REASONS. Its requests raise StoreError if the row cannot be written; then nothing is sent.
    """
    from huggingface_hub import get_session

    session = get_session()
    if _record not in session.event_hooks["request"]:
        session.event_hooks["request"].append(_record)
    with own_requests(state_dir, reason, model) as begin:
        before = _BEGIN.set(begin)
        try:
            yield session
        finally:
            _BEGIN.reset(before)


def _record(request: httpx2.Request) -> None:
    begin = _BEGIN.get()
    assert begin is not None, "`recorded` opens the ledger first"
    begin(str(request.url))


class HubUnreachable(StoreError):
    """The hub could not be reached, or failed. Models that are already downloaded can still be used."""


@contextmanager
def translated(repo: str, endpoint: str) -> Iterator[None]:
    """Turn errors of the hub, the network and the disk that the block raises into EdgeAgentErrors. Others pass."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except EdgeAgentError:
        raise
    except OfflineModeIsEnabled:
        raise HubUnreachable(
            f"{repo} cannot be asked for: HF_HUB_OFFLINE is set; unset it, or use a model that `edgeagent list` shows",
            param="model",
        ) from None
    except HfHubHTTPError as error:
        raise _from_status(error, repo, endpoint) from None
    except (httpx2.TransportError, httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
        raise HubUnreachable(
            f"{endpoint} cannot be reached ({describe(error)}): check the network and the proxy settings; models that "
            "`edgeagent list` shows work without it",
            param="model",
        ) from None
    except OSError as error:
        raise _from_os_error(error, repo) from None


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed if it is sent again."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, httpx2.TransportError)


def describe(error: Exception) -> str:
    """Return what went wrong in a few words.

    For an HTTP error this is only the status: the error's text has the address, which may contain a signature.
    """
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return f"the server answered {error.response.status_code}"
    lines = str(error).splitlines()
    return lines[0][:200] if lines and lines[0] else type(error).__name__


def _from_status(error: Exception, repo: str, endpoint: str) -> EdgeAgentError:
    from huggingface_hub import errors

    assert isinstance(error, errors.HfHubHTTPError)
    status = error.response.status_code
    match error:
        case errors.GatedRepoError():
            return StoreError(
                f"{repo} is gated: accept its terms at {endpoint}/{repo}, then {_LOG_IN}, as the same account, and "
                "pull again",
                param="model",
            )
        case errors.DisabledRepoError():
            return StoreError(f"{repo} has been disabled by the hub: choose another repository", param="model")
        case errors.RepositoryNotFoundError():
            return ModelNotFound(
                f"{endpoint} has no repository {repo}, or it is private: check the name, or {_LOG_IN}",
                param="model",
            )
        case errors.EntryNotFoundError() | errors.RevisionNotFoundError():
            return ModelNotFound(f"{repo} no longer has this file on {endpoint}: pull again", param="model")
    if status in (401, 403):
        return StoreError(
            f"{endpoint} refuses access to {repo} ({status}): {_LOG_IN} to a token that may read it", param="model"
        )
    if status == 429:
        return StoreError(f"{endpoint} allows no more requests for now (429): wait, or {_LOG_IN}", param="model")
    return HubUnreachable(f"{endpoint} answered {status} for {repo}: try again later", param="model")


def _from_os_error(error: OSError, repo: str) -> StoreError:
    if error.errno == errno.ENOSPC:
        return StoreError(
            f"the disk became full while {repo} was downloaded: free some space and pull again; what was "
            "downloaded is kept",
            param="model",
        )
    return StoreError(f"{repo} cannot be stored: {error}", param="model")


MAX_FILE_BYTES = 1 << 44
LIST_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at one commit, as the hub lists it."""

    repo: str
    commit: str
    name: str
    size: int
    sha256: str


def list_files(repo: str, endpoint: str, token: str | None) -> dict[str, RemoteFile]:
    """Return the repository's GGUF files by name.

    A file without a well-formed name, size and sha256 is left out, because it could not be stored safely or verified.
    Call it within `session.recorded`. Raise the errors of huggingface_hub and its HTTP library, and StoreError if the
    answer does not come from a hub.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint, token=token, library_name="edgeagent")
    try:
        answer = api.model_info(repo, files_metadata=True, timeout=LIST_TIMEOUT_S)
        commit, siblings = answer.sha, tuple(answer.siblings or ())
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise ValueError(f"no commit, but {str(commit)[:40]!r}")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # huggingface_hub fails with these errors if it gets something else than the hub's JSON, e.g. a proxy's page.
        raise StoreError(
            f"{endpoint} does not answer as a hub for {repo} ({type(error).__name__}: {str(error)[:100]}): check "
            "HF_ENDPOINT and the proxy settings",
            param="model",
        ) from None
    files = {}
    for sibling in siblings:
        name, lfs = sibling.rfilename, sibling.lfs
        if lfs is None or not isinstance(name, str) or not name.lower().endswith(".gguf") or not is_file_name(name):
            continue
        if not isinstance(lfs.sha256, str) or not SHA256.fullmatch(lfs.sha256):
            continue
        if type(lfs.size) is int and 0 < lfs.size <= MAX_FILE_BYTES:
            files[name] = RemoteFile(repo, commit, name, lfs.size, lfs.sha256)
    return files


_TIMEOUT_S = 10.0


def hub_address() -> str:
    """Return the hub's address: HF_ENDPOINT, or the default one."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT).rstrip("/")


def why_unreachable(state_dir: Path) -> str:
    """Return why no model can be pulled; empty if one can.

    The policy forbids pulls, the hub does not answer, or the question cannot be recorded in the state folder's ledger.
    """
    endpoint = hub_address()
    try:
        PolicyFile().check_pull()
        with translated("the hub", endpoint), recorded(state_dir, DOCTOR) as session:
            session.head(endpoint, timeout=_TIMEOUT_S).raise_for_status()
    except EdgeAgentError as error:
        return error.message
    return ""
