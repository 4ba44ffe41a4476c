"""Loads and tries a model's draft model. If this fails, the model is served without the draft model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import choose_block_tokens
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.cache.prefix_store import PrefixStore, make_table
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.first_steps import FIRST_STEPS, measure_small_steps, try_out
from edgeagent.engine.llama.cell_packing import CellPacker
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import CUTTABLE, OutOfCells
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.errors import EdgeAgentError, ModelLoadFailed, ModelOutOfMemory
from edgeagent.types import SettingChoice
from edgeagent.worker.child.generator.block_keys import BlockKeys
from edgeagent.worker.protocol import Load, draft_part

# A draft model's cells take about this fraction of its target's memory.
DRAFT_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """Where a model's draft tokens come from.

    `file` is the draft model's file, "ngram" if drafts are copied from the sequence's own text, or None if there are no
    drafts. For `by` and `why` see SettingChoice. `runner` and `model` are None if there is no draft model.
    """

    file: str | None
    by: str
    why: str
    runner: LlamaRunner | None = None
    model: DraftModel | None = None

    @property
    def choice(self) -> SettingChoice:
        """The SettingChoice named "draft", which the status shows."""
        return SettingChoice("draft", self.file or "none", self.by, self.why)


@dataclass(frozen=True, slots=True)
class DraftLoader:
    """Loads a draft model with the options in `config`. `target` is the runner of the model that checks the drafts."""

    target: LlamaRunner
    config: EngineConfig
    block_keys: BlockKeys
    store: BlockStore | None
    codec: CellPacker | None

    def load(self, load: Load, on_part: Callable[[str], None]) -> DraftSetup:
        """Load a model's draft model and try it. If it cannot be used, free its memory and return the reason.

        Before the draft model's file is opened, `on_part` gets a description of the draft model, since a damaged file
        may end the process.
        """
        assert load.draft_path is not None
        on_part(draft_part(load.draft_path))
        with ExitStack() as opened:
            try:
                draft = self._open(load, Path(load.draft_path), opened)
                opened.pop_all()
            except Exception as error:  # of any kind: the target can serve
                self.block_keys.forget_draft()
                by = "memory" if isinstance(error, ModelOutOfMemory | MemoryError) else "trial"
                draft = DraftSetup(None, by, _reason(error, load.draft_path))
        on_part(f"{FIRST_STEPS} of {load.path}")  # which are computed next
        return draft

    def _open(self, load: Load, path: Path, opened: ExitStack) -> DraftSetup:
        """Open the draft model and try it; raise any error if that fails. `opened` gets the functions to undo it."""
        model = Model(path, self.config)
        opened.callback(model.close)
        # A draft model computes its tokens one by one, but llama.cpp keeps the earlier states of one batch only.
        if model.has_encoder or model.memory_kind not in CUTTABLE:
            what = "an encoder" if model.has_encoder else f"a {model.memory_kind} memory"
            raise ModelLoadFailed(f"{path} has {what}, from which refused tokens cannot be removed")
        num_tokens = self.target.model.num_tokens
        if model.num_tokens != num_tokens:
            raise ModelLoadFailed(
                f"{path} has {model.num_tokens} tokens in its vocabulary, and {load.path} has {num_tokens}; a draft "
                "must share the target's vocabulary"
            )
        runner = LlamaRunner(model, self.config, num_cells=self.target.num_cells, attention=self.target.attention)
        opened.callback(runner.close)
        token_bytes = try_out(model, runner, lambda _: None)
        costs = CostModel(runner.max_batch)
        measure_small_steps(runner, costs)
        block_tokens = choose_block_tokens(token_bytes)
        keyring = self.block_keys.make_of_draft(path, runner, self.config, block_tokens)
        kind, sizes = model.memory_kind, (token_bytes, block_tokens)
        blocks = make_table(
            kind, self.config, keyring, self.store, DRAFT_SHARE, *sizes, is_draft=True, codec=self.codec
        )
        prefixes = PrefixStore(runner, blocks, costs)
        return DraftSetup(str(path), load.draft_by, load.draft_why, runner, DraftModel(runner, prefixes))


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, EdgeAgentError):
        return error.message
    if isinstance(error, OutOfCells):
        return f"the context of {path} has no room for its trial"
    return f"{path} cannot be used: {type(error).__name__}: {error}"
