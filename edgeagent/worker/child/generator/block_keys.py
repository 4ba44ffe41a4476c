"""Makes the keys for the cached blocks that a model and its draft model have on disk.

It also tells the store which client each cache partition belongs to.
"""

from __future__ import annotations

from pathlib import Path

from edgeagent.cache_folder import RootRecord
from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.fingerprint import Fingerprint, describe_unused, make_fingerprint
from edgeagent.engine.llama.model import split_parts
from edgeagent.engine.sequence import partition_of
from edgeagent.types import CachePolicy
from edgeagent.worker.protocol import Load


class BlockKeys:
    """Makes a keyring for a loaded model, and one for its draft model. A keyring makes the keys of cached blocks.

    After a restart, the keys are the same again. Without a disk cache, the keyrings are None.
    """

    def __init__(self, load: Load, store: BlockStore | None) -> None:
        self._name = load.name
        self._disk = load.disk
        self._store = store
        self._model: tuple[Keyring, Fingerprint] | None = None
        self._draft: tuple[Keyring, Fingerprint] | None = None
        self._draft_name = ""
        self._described: set[str] = set()

    def make(self, path: Path, runner: LlamaRunner, config: EngineConfig, block_tokens: int) -> Keyring | None:
        """Make the keyring of the model at `path`. A full block of the model has `block_tokens` tokens."""
        self._model = self._make(path, runner, config, block_tokens, is_draft=False)
        return None if self._model is None else self._model[0]

    def make_of_draft(self, path: Path, runner: LlamaRunner, config: EngineConfig, block_tokens: int) -> Keyring | None:
        """Make the keyring of the draft model at `path`. All models with this draft model share its blocks."""
        self._draft, self._draft_name = self._make(path, runner, config, block_tokens, is_draft=True), path.name
        return None if self._draft is None else self._draft[0]

    def forget_draft(self) -> None:
        """Undo `make_of_draft`. Call this if the draft cannot be used."""
        self._draft, self._draft_name = None, ""

    def describe_unused(self) -> str | None:
        """Return a log line about the model's blocks on disk that were made with other settings or another version.

        Return None if there are no such blocks, if there is no disk cache, or before `make`.
        """
        if self._disk is None or self._model is None:
            return None
        keyring, fingerprint = self._model
        return describe_unused(Path(self._disk.folder), self._name, fingerprint, keyring)

    def describe_partition(self, policy: CachePolicy, adapter: str, adapter_id: str) -> None:
        """Tell the store which client a cache partition belongs to, so that a client's blocks can be listed and purged.

        The request has the cache policy `policy`. `adapter` and `adapter_id` are the name and the identity of its
        adapter, "" for none. Do nothing without a disk cache, before `make`, if the policy writes no cache, or if the
        store already knows the partition.
        """
        name = partition_of(policy.partition, adapter_id)
        if self._store is None or self._model is None or not policy.write or name in self._described:
            return
        self._described.add(name)
        keyring, fingerprint = self._model
        model = f"{self._name}+{adapter}" if adapter else self._name
        self._store.describe_partition(keyring.root(name), RootRecord(model, policy.partition, fingerprint.fields))
        if self._draft is not None:
            keyring, fingerprint = self._draft
            record = RootRecord(f"{self._draft_name} (draft)", policy.partition, fingerprint.fields)
            self._store.describe_partition(keyring.root(policy.partition), record)

    def _make(
        self, path: Path, runner: LlamaRunner, config: EngineConfig, block_tokens: int, *, is_draft: bool
    ) -> tuple[Keyring, Fingerprint] | None:
        if self._disk is None:
            return None
        fingerprint = make_fingerprint(
            split_parts(path),
            config,
            rope=runner.model.rope_factors(runner.num_cells),
            block_tokens=block_tokens,
            flash_attention=runner.attention.flash,
            is_draft=is_draft,
        )
        return Keyring(fingerprint.digest, self._disk.secret), fingerprint
