"""Routing of requests to backends. `build` creates the router of a daemon from its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from edgeagent.config import Config
    from edgeagent.router.router import Router
    from edgeagent.store.gguf.header import GgufHeader


def build(config: Config) -> Router:
    """Return the daemon's router, not started yet. Imports are local so that importing the package stays fast."""
    from edgeagent.backends.local import LocalBackend
    from edgeagent.router.models import NO_MODEL
    from edgeagent.router.policy import targets_of
    from edgeagent.router.remote_access import RemoteAccess
    from edgeagent.router.router import Router
    from edgeagent.store.drafts import DraftFinder
    from edgeagent.store.file_records import LastUse, VerifiedFiles, known_sha256, sha256_of
    from edgeagent.store.gguf.header import validate_adapter, validate_model
    from edgeagent.store.library import Library
    from edgeagent.store.names.own import OwnNamesFile
    from edgeagent.store.names.parsing import split_paths
    from edgeagent.store.projectors import check_projector
    from edgeagent.worker.parent.pool.cache_shares import CacheShares
    from edgeagent.worker.parent.pool.loading import ModelSource
    from edgeagent.worker.parent.pool.pool import Pool
    from edgeagent.worker.parent.pool.profile_store import ProfileStore

    remote_access, targets, uses = RemoteAccess(config), targets_of(config), LastUse(config.state_dir)
    verified = VerifiedFiles(config.state_dir)
    if config.model == NO_MODEL:
        return Router([], remote_access, targets=targets)

    def validate(path: Path) -> GgufHeader:
        for part in split_paths(path):
            remote_access.policy.check_model(part, sha256_of)
        header = validate_model(path)
        uses.note(path)  # a worker loads the file next
        return header

    def check_adapter(path: Path) -> None:
        remote_access.policy.check_model(path, sha256_of)
        validate_adapter(path)

    def check_projector_file(path: Path) -> None:
        remote_access.policy.check_model(path, sha256_of)
        check_projector(path)

    library = Library.of(config)
    source = ModelSource(
        library.resolve,
        validate,
        offer=library.resolve_for_client if config.load.on_demand else None,
        profiles=ProfileStore(config.state_dir),
        cache=CacheShares(config),
        validate_adapter=check_adapter,
        known_sha256=lambda path: known_sha256(path, verified),
        find_draft=DraftFinder(library).find,
        check_projector=check_projector_file,
        names_stamp=OwnNamesFile(config.state_dir.absolute()).stamp,
    )
    return Router([LocalBackend(Pool(config, source))], remote_access, targets=targets)
