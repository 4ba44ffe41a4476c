"""Tries out a model that was just loaded: the first computations warm it up and show whether it works.

A file may load and still not work: its weights may be NaN, its rope base 0, or its tokenizer may throw.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.token_rows import TokenRows
from edgeagent.engine.runner import CUTTABLE, Logits, OutOfCells, Slice
from edgeagent.engine.scheduler import MAX_STEP_S, MIN_SLOW_CHUNK
from edgeagent.errors import InternalError, ModelLoadFailed
from edgeagent.types import MemoryKind

# Letters, digits, white space, other scripts and a character outside of the basic plane, to reach each path of a
# tokenizer.
_TEXT = "The quick brown fox's 12345 jumps:\n\n\tÄpfel, 漢字 и 🦊!"
# Large enough to touch every weight's page once and fill a kernel tile; fast compared with a load.
_NUM_TOKENS = 32
# Usual sizes of steps that verify drafts. Sizes that are expected to take longer than _MAX_DRAFT_STEP_S are left out.
_DRAFT_STEPS = (1, 2, 4, 8, 16)
_MAX_DRAFT_STEP_S = 0.3
_TRIES = 2  # of each size; the quicker one counts
# After drafts were taken back, logits may differ a little from those without drafts: by at most this share of the
# difference that the drafts would make if they were not taken back.
_MAX_DIFFERENCE = 0.1
_NUM_BEFORE, _NUM_DRAFTS = 4, 4  # for that test: tokens before the drafts, and the most drafts
_NUM_MIXED = 4  # tokens, half of them as embeddings
TOKENIZER, FIRST_STEPS = "the tokenizer", "the first tokens"


def try_out(model: Model, runner: LlamaRunner, on_part: Callable[[str], None], costs: CostModel | None = None) -> float:
    """Try out a model, and return how many bytes each token adds to a saved block; 0 if a block is only a state.

    Tokenize a text, then compute a token, a batch and another token. The cells are empty afterwards. The batch has at
    most 32 tokens, and fewer on a slow machine, so that it takes a few seconds at most. Its time and that of the last
    token are added to `costs`, so that the chunks of the first prompt and the drafts of the first answer have suitable
    lengths. `on_part` gets the name of each part before the part begins, since a bad file may crash the process. Raise
    ModelLoadFailed, which names the file and what is wrong.
    """
    path = model.path
    on_part(f"{TOKENIZER} of {path}")
    text = _tokenize(model, path)
    on_part(f"{FIRST_STEPS} of {path}")
    # Tokens from the whole vocabulary are tried too, since each has its own row of weights.
    spread = np.linspace(0, model.num_tokens - 1, _NUM_TOKENS).astype(int).tolist()
    tokens = [*text[: _NUM_TOKENS // 2], *spread]
    sizes: dict[int, int] = {}
    num_tokens = 1
    try:
        for is_warm in (False, True):
            runner.clear(0)
            started_s = time.monotonic()
            _check(_decode(runner, 0, tokens[:num_tokens]), path)
            took_s = time.monotonic() - started_s
            end = num_tokens
            sizes[end] = len(runner.save(0, 0, end))
            if is_warm and costs is not None:
                costs.observe(StepShape.alone(end, 0), took_s)
            fits = int(MAX_STEP_S / max(took_s, 1e-6))
            num_tokens = min(_NUM_TOKENS, max(MIN_SLOW_CHUNK, fits), runner.max_batch)
        started_s = time.monotonic()
        _check(_decode(runner, end, tokens[:1]), path)
        if costs is not None:
            costs.observe(StepShape.alone(1, end), time.monotonic() - started_s)
    except (InternalError, OutOfCells) as error:
        raise ModelLoadFailed(f"{path} cannot be served: {FIRST_STEPS} cannot be computed ({error})") from error
    finally:
        runner.clear(0)
    return (max(sizes.values()) - min(sizes.values())) / max(1, max(sizes) - min(sizes))


def try_adapter(runner: LlamaRunner, path: Path) -> None:
    """Check that the runner's current adapter works, by computing two tokens. The cells are empty afterwards.

    `path`: the file that an error names. Raise ModelLoadFailed, OutOfCells or InternalError.
    """
    try:
        _check(_decode(runner, 0, [0, 0]), path)
    finally:
        runner.clear(0)


def allow_mix(runner: LlamaRunner) -> None:
    """Let batches have the embeddings of media beside tokens, if tokens give the same logits then.

    They do not if a model treats the embeddings of tokens otherwise than those of media, as Gemma does. Only full
    attention on a CPU is tried. The cells must be empty, and are empty afterwards.
    """
    if not runner.is_blocking or runner.memory_kind is not MemoryKind.FULL_ATTENTION or runner.max_batch < _NUM_MIXED:
        return
    tokens = np.linspace(0, runner.num_vocab - 1, _NUM_MIXED).astype(int).tolist()
    first, second = tokens[: _NUM_MIXED // 2], tokens[_NUM_MIXED // 2 :]
    logits = list[Logits]()
    with contextlib.suppress(InternalError, OutOfCells):  # the table is in another part of the model's file, say
        table = TokenRows(runner.model)
        runner.allow_mix(table)
        for rows in (None, table.of(first)):
            runner.decode([Slice(0, 0, first, 0, rows=rows), Slice(1, 0, second, 1)])
            logits.append(runner.logits(0).copy())
            _empty(runner)
    _empty(runner)
    if len(logits) < 2 or not np.array_equal(logits[0], logits[1]):
        runner.allow_mix(None)


def measure_small_steps(runner: LlamaRunner, costs: CostModel) -> None:
    """Measure steps of 1, 2, 4, 8 and 16 tokens for `costs`, so that drafts can be planned from the start.

    Sizes that would take too long or do not fit into a batch are left out. The cells must be empty, and are empty
    afterwards. Raise OutOfCells or InternalError.
    """
    took_s = 0.0
    for num_tokens in _DRAFT_STEPS:
        if 2 * took_s > _MAX_DRAFT_STEP_S or num_tokens > runner.max_batch:
            return
        times_s = []
        for _ in range(_TRIES):
            started_s = time.monotonic()
            runner.decode([Slice(0, 0, range(num_tokens), num_tokens)])
            times_s.append(time.monotonic() - started_s)
            runner.clear(0)
        took_s = min(times_s)
        costs.observe(StepShape.alone(num_tokens, 0), took_s)


def can_rewind(runner: LlamaRunner) -> bool:
    """Whether refused drafts can be removed, so that later logits are nearly as if there had been no drafts.

    A recurrent memory must go back to an earlier state for this. llama.cpp's code for it differs by architecture and
    backend, and was wrong for some. So it is tested here with two sequences. Other memory is not tested. The cells must
    be empty, and are empty afterwards. Raise OutOfCells or InternalError.
    """
    num_drafts = min(runner.max_rewind, _NUM_DRAFTS)
    if runner.memory_kind in CUTTABLE or num_drafts < 1:
        return num_drafts > 0
    count = _NUM_BEFORE + num_drafts + 2
    tokens = np.linspace(0, runner.num_vocab - 1, 3 * count).astype(int).reshape(count, 3).T.tolist()
    kept = [_NUM_BEFORE + 1 + num_drafts // 2, _NUM_BEFORE + 1]  # how many tokens of each sequence are not taken back
    drafted = [tokens[index][: kept[index]] + tokens[2][kept[index] : count - 1] for index in range(2)]
    try:
        _feed(runner, [tokens[index][: kept[index]] for index in range(2)])
        undisturbed = _feed(runner, [tokens[index][-1:] for index in range(2)])
        _empty(runner)
        _feed(runner, drafted)
        disturbed = _feed(runner, [tokens[index][-1:] for index in range(2)])
        _empty(runner)
        _feed(runner, [each[:_NUM_BEFORE] for each in drafted])
        _feed(runner, [each[_NUM_BEFORE:] for each in drafted], num_drafts)
        if not all(runner.rewind(index, kept[index]) for index in range(2)):
            return False
        taken_back = _feed(runner, [tokens[index][-1:] for index in range(2)])
    finally:
        _empty(runner)
    return all(
        _difference(back, right) <= _MAX_DIFFERENCE * _difference(wrong, right)
        for back, wrong, right in zip(taken_back, disturbed, undisturbed, strict=True)
    )


def _feed(runner: LlamaRunner, tokens: list[list[int]], num_drafts: int = 0) -> list[Logits]:
    """Append `tokens[i]` to sequence i, for each i. Return the logits after the last token of each sequence.

    `num_drafts`: how many of the last tokens of each sequence may be removed again.
    """
    runner.decode([Slice(index, runner.length(index), each, 1, num_drafts) for index, each in enumerate(tokens)])
    return [runner.logits(index).copy() for index in range(len(tokens))]


def _empty(runner: LlamaRunner) -> None:
    for index in range(2):
        runner.clear(index)


def _difference(row: Logits, other: Logits) -> float:
    return float(np.abs(row - other).max())


def _tokenize(model: Model, path: Path) -> list[int]:
    try:
        tokens = model.tokenize(_TEXT, parse_special=False)
    except InternalError as error:
        raise ModelLoadFailed(f"{path} cannot be served: {TOKENIZER} cannot take a text apart ({error})") from error
    wrong = next((token for token in tokens if not 0 <= token < model.num_tokens), None)
    if wrong is not None:
        raise ModelLoadFailed(
            f"{path} cannot be served: {TOKENIZER} makes token {wrong} of a text, but there are {model.num_tokens}"
        )
    for token in tokens:
        model.piece(token)
    return tokens


def _decode(runner: LlamaRunner, start: int, tokens: list[int]) -> Logits | None:
    """Compute tokens of sequence 0 from position `start` on. Return the last logits; None if the model has none."""
    runner.decode([Slice(0, start, tokens, 1)])
    try:
        return runner.logits(0)
    except ValueError:  # a null pointer: models for embeddings may have no output layer
        return None


def _check(logits: Logits | None, path: Path) -> None:
    """Raise ModelLoadFailed if no token can be drawn from these logits. `path`: the file that the error names.

    The logits of the last token suffice: through attention, a NaN of any earlier token reaches them. None is accepted.
    """
    peak = np.float32(0) if logits is None else logits.max()
    if not np.isfinite(peak):
        what = "not numbers (NaN)" if np.isnan(peak) else "infinite"
        raise ModelLoadFailed(
            f"{path} cannot be served: the logits of {FIRST_STEPS} are {what}. Its weights or its metadata (a rope "
            "base, say) are damaged, or were converted wrongly; get the file again, or another one."
        )
