"""The progress of a pull, as values that the caller may display."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgeagent.store.hub.listing import RemoteFile

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
        """Record that a file is complete."""
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
