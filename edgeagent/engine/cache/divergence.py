"""Where a prompt differs from an earlier one, and which tokens behind the difference both have.

Such tokens are computed again, since the prefix cache reuses only what begins with the same tokens. The usual cause is
a short text that changes between requests, such as a clock in the instructions.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator

from edgeagent.engine.cache.block import common_length
from edgeagent.engine.cache.cached_prefix import MIN_LOST, Divergence, Run
from edgeagent.engine.cache.radix_tree import Walk

# Tokens that both prompts have count only in runs of at least this many: shorter ones are common phrases.
MIN_RUN = 32
# Cells behind a longer changed text are not moved.
MAX_SPAN = 64
# The last tokens of a prompt are computed: they are the question, and give the logits.
_NUM_LAST = 32
# The least share of the tokens behind the difference whose cells are moved.
_LEAST_SHIFTED = 0.75
_SIMILAR = 0.9  # no further prompt is compared if one has this share of the tokens behind the difference
# How many tokens behind a difference are searched for runs. Live streams wait for the search: 32,000 tokens took 160 ms
# for each earlier prompt, and 8,192 take 20.
_MAX_SEARCHED = 8192
_MAX_COMPARED = 4  # earlier prompts; those that share the most tokens, and of those the latest, come first


def diverge(earlier: array[int], tokens: array[int]) -> Divergence:
    """Compare a prompt with an earlier one."""
    at = common_length(earlier, tokens)
    return Divergence(at, earlier, tuple(_runs(earlier, tokens, at)))


def find_divergence(walk: Walk, tokens: array[int]) -> Divergence | None:
    """Compare a prompt with the cached prompts that share its first tokens. Return the one that shares the most.

    None if both have fewer than MIN_LOST tokens behind the difference. `walk`: the path of `tokens` through the tree.
    """
    best: Divergence | None = None
    for earlier in walk.branches(MIN_LOST, _MAX_COMPARED):
        found = diverge(earlier, tokens)
        if best is None or found.num_lost > best.num_lost:
            best = found
        if best.num_lost >= _SIMILAR * (len(tokens) - best.at):
            break
    return best if best is not None and best.num_lost >= MIN_LOST else None


def shifts_of(found: Divergence, num_tokens: int) -> list[Run]:
    """Return the runs whose cells a prompt of `num_tokens` can use at other positions.

    Return none if too much would have to be computed all the same: then the prompt is computed as a whole, and is the
    earlier prompt of later ones.
    """
    runs: list[Run] = []
    old = new = found.at
    for run in found.runs:
        length = min(run.length, num_tokens - _NUM_LAST - run.new)
        if max(run.old - old, run.new - new) > MAX_SPAN or length < MIN_RUN:
            break
        runs.append(Run(run.old, run.new, length))
        old, new = run.old + length, run.new + length
    num_behind = num_tokens - found.at
    return runs if sum(run.length for run in runs) >= _LEAST_SHIFTED * num_behind else []


def _runs(old: array[int], new: array[int], at: int) -> Iterator[Run]:
    """Yield the runs that begin within _MAX_SEARCHED tokens behind position `at`, in the order of both prompts."""
    size, until = old.itemsize, at + _MAX_SEARCHED + MIN_RUN
    width = MIN_RUN * size
    places: dict[bytes, list[int]] = {}
    texts = [tokens[at:until].tobytes() for tokens in (old, new)]
    for start in range(0, len(texts[0]) - width + 1, size):
        places.setdefault(texts[0][start : start + width], []).append(at + start // size)
    after, position = at, at
    while (start := (position - at) * size) <= len(texts[1]) - width:
        found = places.get(texts[1][start : start + width], [])
        index = bisect.bisect_left(found, after)
        if index == len(found):
            position += 1
            continue
        run = Run(found[index], position, common_length(old[found[index] :], new[position:]))
        yield run
        after, position = run.old + run.length, run.new + run.length
