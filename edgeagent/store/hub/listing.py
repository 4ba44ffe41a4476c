"""Lists the GGUF files of a repository on the hub, with size and sha256, at its newest commit."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.errors import StoreError
from edgeagent.store.hub.cache import COMMIT, SHA256
from edgeagent.store.names.parsing import is_file_name

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
    Raise the errors of huggingface_hub and its HTTP library, and StoreError if the answer does not come from a hub.
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
