"""Downloads one file from the hub to disk. It resumes, retries, and never writes more bytes than the hub listed.

huggingface_hub provides the file's address, the headers and the HTTP client. Its own hf_hub_download is not used,
because it keeps no partial file from one process to the next, and publishes a file without hashing it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edgeagent import __version__
from edgeagent.errors import StoreError
from edgeagent.sizes import size_text
from edgeagent.store.hub.errors import describe, is_transient
from edgeagent.store.hub.listing import RemoteFile

if TYPE_CHECKING:
    import httpx2

MAX_FRUITLESS_TRIES = 5
RETRY_WAIT_S = 1.0
MAX_RETRY_WAIT_S = 8.0
CONNECT_TIMEOUT_S = 10.0

_SPACE_CHECK_BYTES = 64 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-")


class _BrokenAnswer(Exception):
    """The server's answer cannot be used, but another try may succeed."""


class Transfer:
    """Downloads files into partial files.

    Each try asks the hub again for the file's address, because addresses expire. If a try fails or is interrupted, the
    partial file is kept for the next try. It is deleted only if the server cannot resume the download from its end.
    """

    def __init__(self, endpoint: str, token: str | None, min_free_bytes: int) -> None:
        self._endpoint = endpoint
        self._token = token
        self._min_free_bytes = min_free_bytes

    def fetch(self, file: RemoteFile, partial: Path, on_bytes: Callable[[int], None]) -> None:
        """Download until the partial file has the listed size. `on_bytes` is called with its present size.

        Raise StoreError, or an error of huggingface_hub, if another try would not help. Raise StoreError if more than
        MAX_FRUITLESS_TRIES tries in a row received no byte.
        """
        num_fruitless = 0
        while (have := _size(partial)) < file.size:
            problem = "the connection was closed early"
            try:
                self._stream(file, partial, have, on_bytes)
            except _BrokenAnswer as error:
                problem = str(error)
            except Exception as error:
                if not is_transient(error):
                    raise
                problem = describe(error)
            num_fruitless = 0 if _size(partial) > have else num_fruitless + 1
            if num_fruitless > MAX_FRUITLESS_TRIES:
                raise StoreError(
                    f"{file.name} of {file.repo} does not arrive: {problem}, {num_fruitless} times in a row; "
                    f"{_size(partial)} of {file.size} bytes are kept; pull again to continue",
                    param="model",
                )
            if num_fruitless:
                time.sleep(min(RETRY_WAIT_S * 2 ** (num_fruitless - 1), MAX_RETRY_WAIT_S))
        with partial.open("ab") as sink:
            # Sync before the rename. After a power cut the new name could exist without its bytes, and be trusted.
            os.fsync(sink.fileno())

    def _stream(self, file: RemoteFile, partial: Path, have: int, on_bytes: Callable[[int], None]) -> None:
        import httpx2
        from huggingface_hub import constants, get_session, hf_raise_for_status

        location, headers = self._locate(file)
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT, connect=CONNECT_TIMEOUT_S)
        # httpx2, like httpx, drops the authorization header on a redirect to another host.
        with get_session().stream("GET", location, headers=headers, timeout=timeout, follow_redirects=True) as answer:
            if answer.status_code == 416:
                partial.unlink(missing_ok=True)
                raise _BrokenAnswer("the server refuses to continue the download")
            if answer.status_code in (401, 403) and not _same_origin(location, self._endpoint):
                raise _BrokenAnswer(f"the storage server refuses its own address ({answer.status_code})")
            hf_raise_for_status(answer)
            start = _start_of_body(answer, have, partial)
            self._write(answer, file, partial, start, on_bytes)

    def _locate(self, file: RemoteFile) -> tuple[str, dict[str, str]]:
        """Ask the hub for the address of the file's bytes. Return the address and the headers of a request to it.

        Raise StoreError if the hub offers a file with another sha256 there.
        """
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=self._endpoint)
        try:
            found = get_hf_file_metadata(
                url, token=self._token, library_name="edgeagent", library_version=__version__, endpoint=self._endpoint
            )
        except ValueError as error:
            raise _BrokenAnswer(f"the hub's answer cannot be understood ({error})") from None
        if found.etag != file.sha256:
            raise StoreError(
                f"{self._endpoint} lists {file.name} of {file.repo} with sha256 {file.sha256} and offers {found.etag}: "
                "pull again, and do not trust this hub if it stays so",
                param="model",
            )
        headers = build_hf_headers(token=self._token, library_name="edgeagent", library_version=__version__)
        if not _same_origin(found.location, self._endpoint):
            headers.pop("authorization", None)
        headers["Accept-Encoding"] = "identity"
        return found.location, headers

    def _write(
        self, answer: httpx2.Response, file: RemoteFile, partial: Path, start: int, on_bytes: Callable[[int], None]
    ) -> None:
        have, unchecked = start, 0
        # Unbuffered, so that received bytes reach the kernel at once and a killed pull loses nothing.
        with partial.open("ab" if start else "wb", buffering=0) as sink:
            on_bytes(start)
            for chunk in answer.iter_raw():
                piece = chunk[: file.size - have]
                sink.write(piece)
                have += len(piece)
                unchecked += len(piece)
                on_bytes(have)
                if have >= file.size:
                    return
                if unchecked >= _SPACE_CHECK_BYTES:
                    unchecked = 0
                    self._check_space(partial)

    def _check_space(self, partial: Path) -> None:
        free = shutil.disk_usage(partial.parent).free
        if free < self._min_free_bytes:
            raise StoreError(
                f"the download was stopped because only {size_text(free)} are free on the disk of {partial.parent} "
                f"and {size_text(self._min_free_bytes)} must stay free (store.min_free_bytes): free some space and "
                "pull again; what was downloaded is kept",
                param="model",
            )


def _start_of_body(answer: httpx2.Response, have: int, partial: Path) -> int:
    """Return the offset in the file at which the response's body begins.

    The request asked for the bytes from `have` on, but a server may send the whole file. Then the offset is 0. If the
    body begins elsewhere, delete the partial file and raise _BrokenAnswer. Raise it also if the body is compressed.
    """
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise _BrokenAnswer("the server compresses the file although that was not requested")
    if answer.status_code == 206:
        match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != have:
            partial.unlink(missing_ok=True)
            raise _BrokenAnswer("the server continues the download at another place than it was asked to")
        return have
    return 0


def _same_origin(url: str, endpoint: str) -> bool:
    try:
        one, other = urlsplit(url), urlsplit(endpoint)
        return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)
    except ValueError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
