"""Pulls models from the hub into the shared cache. The steps: choose, check space, resume, verify, publish.

A file gets its name in the cache only after its sha256 was computed here and is correct. huggingface_hub provides a
file's address, the headers and the HTTP client. Its own downloads are not used: hf_hub_download publishes a file
without hashing it, and http_get writes pieces of 10 MB, so a cancelled pull would wait for a piece, and a killed one
lose it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from edgeagent import __version__
from edgeagent.config import StoreConfig
from edgeagent.egress import PULL
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelNotFound, StoreError
from edgeagent.machine_policy import PolicyFile
from edgeagent.store.file_records import VerifiedFiles, file_sha256
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.hub.client import (
    HubUnreachable,
    RemoteFile,
    describe,
    is_transient,
    list_files,
    recorded,
    translated,
)
from edgeagent.store.names.catalog import CatalogEntry, builtin_model, draft_of, find_entry, model_name
from edgeagent.store.names.parsing import BuiltinName, CatalogName, HubName, LocalPath, choose, parse_name, variants
from edgeagent.store.projectors import choose_projector
from edgeagent.units import size_text

Stage = Literal["waiting", "downloading", "verifying"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pull. Bytes are sums over all files of the model.

    stage: what happens with `file`. "waiting" means that another process is pulling the same file.
    done_bytes: the bytes of all finished files, and those of `file` that are on disk. While `file` is verified, its
    bytes count again from 0 as they are read.
    resumed_bytes: how many bytes of partial files were on disk before their download began. Files that were complete
    are not counted.
    sha256: the hash that the content of `file` must have.
    """

    stage: Stage
    file: str
    done_bytes: int
    total_bytes: int
    resumed_bytes: int
    sha256: str = ""


OnProgress = Callable[[Progress], None]


class ProgressReporter:
    """Adds up the progress of a model's files, which are downloaded one after the other."""

    def __init__(self, files: tuple[RemoteFile, ...], on_progress: OnProgress | None) -> None:
        self.total_bytes = sum(file.size for file in files)
        self.downloaded_bytes = 0
        self._on_progress = on_progress
        self._finished_bytes = 0
        self._resumed_bytes = 0
        self._have = 0

    def begin(self, have: int) -> None:
        """Record that a download begins, with `have` bytes of its file already on disk."""
        self._have = have
        self._resumed_bytes += have

    def finish(self, file: RemoteFile) -> None:
        self._finished_bytes += file.size
        self._have = 0

    def show(self, stage: Stage, file: RemoteFile, have: int) -> None:
        """Report the progress. `have` is how many bytes of this file are on disk, or were verified."""
        if stage == "downloading":
            # If the server cannot resume, the download starts over, and all of `have` was received just now.
            self.downloaded_bytes += have - self._have if have >= self._have else have
            self._have = have
        if self._on_progress is not None:
            done_bytes = self._finished_bytes + have
            total_bytes, resumed_bytes = self.total_bytes, self._resumed_bytes
            self._on_progress(Progress(stage, file.name, done_bytes, total_bytes, resumed_bytes, file.sha256))


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


_LOCK_PATIENCE_S = 0.2


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model that is complete and verified on this machine. `name` is its canonical name here.

    `size_bytes` is the size of all its files, `downloaded_bytes` is what this pull received. `is_current` is False if
    the hub could not be asked for a newer version. `draft` is the catalog's name for its draft model. `projector` is
    the file with which it reads images or sounds, if the hub has one; its bytes are counted too.
    """

    name: str
    paths: tuple[Path, ...]
    size_bytes: int
    downloaded_bytes: int
    is_current: bool = True
    draft: str | None = None
    projector: Path | None = None


@dataclass(frozen=True, slots=True)
class _Wish:
    """A model to pull, with its entry in the catalog if it was named by one."""

    name: HubName
    entry: CatalogEntry | None = None


class Puller:
    """Pulls models from one hub into one cache.

    The constructor's `endpoint` and `token` default to those of huggingface_hub (HF_ENDPOINT; HF_TOKEN or its stored
    login). With `offline` the hub is not contacted, and only models on this machine are found.
    """

    def __init__(
        self,
        store: StoreConfig,
        state_dir: Path,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        offline: bool = False,
    ) -> None:
        from huggingface_hub import constants

        self._cache = HubCache.of(store)
        self._policy = PolicyFile()
        self._state_dir = state_dir
        self._verified = VerifiedFiles(state_dir)
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._token = token
        self._offline = offline
        self._min_free_bytes = store.min_free_bytes
        self._transfer = Transfer(self._endpoint, token, store.min_free_bytes)

    def pull(self, name: str, on_progress: OnProgress | None = None) -> PulledModel:
        """Download the hub's latest version of a model, unless it is on this machine, and return the model.

        If the hub has a projector beside it, with which it reads images or sounds, that is downloaded too. If the hub
        cannot be reached, return the verified version that is on this machine, if there is one. The egress ledger has a
        row for each host that is asked. If it cannot be written, nothing is sent.
        Raise StoreError (disk, network, access, checksum, ledger), ModelNotFound, InvalidRequest, or Forbidden (the
        machine's policy). An exception of `on_progress` ends the pull. If a pull ends early, the downloaded bytes are
        kept for the next pull. No unverified file is published.
        """
        wish = _wish(name)
        if wish is None:
            builtin = builtin_model()
            return PulledModel("builtin", (builtin.path,), builtin.path.stat().st_size, 0)
        self._policy.check_pull()
        with recorded(self._state_dir, PULL, wish.name.repo):
            return self._pull(wish, on_progress)

    def _pull(self, wish: _Wish, on_progress: OnProgress | None) -> PulledModel:
        repo, draft = wish.name.repo, draft_of(wish.name.repo)
        try:
            listed = self._listed(repo)
        except HubUnreachable:
            present = self._present(wish.name, draft)
            if present is None:
                raise
            return present
        models = variants(listed)
        model = choose(models, wish.name, f"on {self._endpoint}")
        files = tuple(listed[file] for file in model.files)
        self._check_pin(wish, files)
        projector = choose_projector(model.files[0], {name: file.size for name, file in listed.items()})
        if projector is not None:
            files = (*files, listed[projector])
        reporter = ProgressReporter(files, on_progress)
        with translated(repo, self._endpoint):
            missing = [file for file in files if not self._is_ready(file)]
            self._check_space(wish.name, missing)
            for file in files:
                if file in missing:
                    self._bring(file, reporter)
                reporter.finish(file)
            self._cache.set_main(repo, files[0].commit)
        paths = tuple(self._cache.pointer(repo, file.commit, file.name) for file in files)
        paths, projector_path = (paths, None) if projector is None else (paths[:-1], paths[-1])
        own_name = model_name(models, model, repo)
        return PulledModel(
            own_name,
            paths,
            reporter.total_bytes,
            reporter.downloaded_bytes,
            draft=draft,
            projector=projector_path,
        )

    def pull_with_draft(
        self, name: str, on_progress: OnProgress | None = None
    ) -> tuple[PulledModel, PulledModel | None]:
        """Pull a model, then its draft model. Return both.

        The draft model is None if the catalog names none, or if its pull failed. Raise the errors of `pull` only for
        the model.
        """
        pulled = self.pull(name, on_progress)
        draft = None
        if pulled.draft is not None:
            with suppress(EdgeAgentError):
                draft = self.pull(pulled.draft, on_progress)
        return pulled, draft

    def _listed(self, repo: str) -> dict[str, RemoteFile]:
        if self._offline:
            raise HubUnreachable(
                f"{repo} is not on this machine in the requested form, and with --offline the hub is not asked: "
                "`edgeagent list` shows what is here",
                param="model",
            )
        with translated(repo, self._endpoint):
            return list_files(repo, self._endpoint, self._token)

    def _check_pin(self, wish: _Wish, files: tuple[RemoteFile, ...]) -> None:
        entry = wish.entry
        if entry is None or entry.sha256 is None or wish.name != entry.hub_name():
            return
        if [file.sha256 for file in files] != [entry.sha256]:
            raise StoreError(
                f"{self._endpoint} has {files[0].name} with sha256 {files[0].sha256}, the catalog pins {entry.sha256}: "
                f"pull {wish.name.repo} by its own name if you trust the other one",
                param="model",
            )

    def _is_ready(self, file: RemoteFile) -> bool:
        pointer = self._cache.pointer(file.repo, file.commit, file.name)
        return pointer.is_file() and self._verified.knows(pointer, file.sha256)

    def _check_space(self, name: HubName, missing: list[RemoteFile]) -> None:
        """Raise StoreError if the rest of the missing files does not fit on the disk. Called before the download."""
        needed = sum(file.size - self._have(file) for file in missing)
        if needed <= 0:
            return
        folder = self._cache.root
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if free < needed + self._min_free_bytes:
            raise StoreError(
                f"{name} does not fit: {size_text(needed)} are to be downloaded, {size_text(self._min_free_bytes)} "
                f"must stay free, and the disk of {self._cache.root} has {size_text(free)} free: free some space, or "
                "set store.models_dir to a folder on another disk, or lower store.min_free_bytes",
                param="model",
            )

    def _have(self, file: RemoteFile) -> int:
        for path in (self._cache.blob(file.repo, file.sha256), self._cache.partial(file.repo, file.sha256)):
            if path.is_file():
                return min(path.stat().st_size, file.size)
        return 0

    def _bring(self, file: RemoteFile, reporter: ProgressReporter) -> None:
        """Download, verify and publish one file. If another process is doing the same, wait for it first."""
        blob, partial = self._cache.blob(file.repo, file.sha256), self._cache.partial(file.repo, file.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._cache.lock(file.repo, file.sha256), lambda: reporter.show("waiting", file, 0)):
            if not self._is_right_blob(file, blob, reporter):
                blob.unlink(missing_ok=True)
                self._download(file, partial, reporter)
                partial.replace(blob)
            pointer = self._cache.publish(file.repo, file.commit, file.name, file.sha256)
            # If the pointer is a link, this records the blob. On systems without links it records the pointer itself.
            self._verified.note(pointer, file.sha256)

    def _is_right_blob(self, file: RemoteFile, blob: Path, reporter: ProgressReporter) -> bool:
        """Return whether the blob exists and has the file's size and sha256. Another program may have written it."""
        if not blob.is_file() or blob.stat().st_size != file.size:
            return False
        return self._verified.check(blob, file.sha256, lambda have: reporter.show("verifying", file, have))

    def _download(self, file: RemoteFile, partial: Path, reporter: ProgressReporter) -> None:
        """Complete the partial file and verify it. If a resumed file has the wrong hash, start over once."""
        while True:
            resumed = partial.stat().st_size if partial.is_file() else 0
            if resumed > file.size:
                partial.unlink()
                resumed = 0
            reporter.begin(resumed)
            self._transfer.fetch(file, partial, lambda have: reporter.show("downloading", file, have))
            if file_sha256(partial, lambda have: reporter.show("verifying", file, have)) == file.sha256:
                return
            partial.unlink()
            if not resumed:
                raise StoreError(
                    f"{file.name} of {file.repo} arrived with another sha256 than {file.sha256} and was deleted: pull "
                    "again; if it fails again, do not trust this hub or the network to it",
                    param="model",
                )

    def _present(self, name: HubName, draft: str | None) -> PulledModel | None:
        """Return the model from the cache if it is complete and verified, else None."""
        files = self._cache.files(name.repo)
        models = variants(files)
        try:
            model = choose(models, name, "here")
        except ModelNotFound:
            return None
        paths = tuple(files[file] for file in model.files)
        chosen = choose_projector(model.files[0], {file: path.stat().st_size for file, path in files.items()})
        projector = None if chosen is None else files[chosen]
        all_paths = paths if projector is None else (*paths, projector)
        if not all(self._verified.knows(path, self._verified.noted_sha256(path) or "") for path in all_paths):
            return None
        size_bytes = sum(path.stat().st_size for path in all_paths)
        own_name = model_name(models, model, name.repo)
        return PulledModel(own_name, paths, size_bytes, 0, is_current=False, draft=draft, projector=projector)


def _wish(name: str) -> _Wish | None:
    """Return the model to pull; None for the bundled model. Raise InvalidRequest for a path."""
    match parse_name(name):
        case HubName() as hub_name:
            return _Wish(hub_name)
        case CatalogName() as short:
            match = find_entry(short)
            return _Wish(match.hub_name, match.entry)
        case BuiltinName():
            return None
        case LocalPath(path):
            raise InvalidRequest(f"{path} is a path: pull takes org/repo[:QUANT] or org/repo/file.gguf", param="model")


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file during the `with` block. huggingface_hub uses the same lock.

    The lock is released even if this process crashes. While another process holds the lock, `on_wait` is called several
    times a second. An exception of `on_wait` ends the waiting.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        lock = WeakFileLock(path, timeout=_LOCK_PATIENCE_S)
        try:
            lock.__enter__()
            break
        except TimeoutError:
            on_wait()
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
