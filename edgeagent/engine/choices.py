"""The choices of a sequence: texts that may follow its prompt, whose probabilities are computed without decoding.

All choices share the prompt, and some share their first tokens. So they are a tree, whose root is the end of the
prompt. A step computes such a tree in one batch, or a part of it that fits: each node once, in a branch of the sequence
that is forgotten after the step. The last tokens of the prompt are computed with it, since their logits are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from edgeagent.engine.runner import Logits, Place
from edgeagent.engine.sampling.sampler import log_total

MAX_CHOICE_TOKENS = 30
"""The most tokens of a choice. They, and the end of the prompt, have rows of logits in one step (see MAX_SCORED)."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The tokens of each choice, of which none is empty, and the tokens any of which ends an answer; perhaps none.

    `order`: the numbers of the choices in the order in which they are computed.
    """

    tokens: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    order: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", tuple(sorted(range(len(self.tokens)), key=self.tokens.__getitem__)))

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    def computed(self, number: int) -> tuple[int, ...]:
        """Return the tokens of a choice that must be computed: the last one only if an end must follow it."""
        tokens = self.tokens[number]
        return tokens if self.ends else tokens[:-1]


@dataclass(frozen=True, slots=True)
class Tree:
    """The tokens of some choices behind the last tokens of a prompt, in the order of a batch.

    `tokens` and `places`: see Slice. `num_roots`: how many of these tokens are the prompt's. `paths`: for each choice,
    the indices of its tokens, among `tokens`.
    """

    tokens: list[int]
    places: list[Place]
    num_roots: int
    paths: list[list[int]]

    @property
    def num_rows(self) -> int:
        """How many of the last tokens give logits: all but the prompt's tokens before its last one."""
        return len(self.tokens) - self.num_roots + 1


def grow(
    choices: Choices, num_done: int, roots: Sequence[int], *, max_tokens: int, max_rows: int, max_branches: int
) -> Tree | None:
    """Return the tree of the next choices in their order, as many as fit; None if not even one does.

    `num_done`: how many choices were computed already. `roots`: the last tokens of the prompt.
    """
    tokens, paths, ends = list(roots), list[list[int]](), list[int]()  # ends: of each token's branches
    first = list[int]()
    for number in choices.order[num_done:]:
        wanted = choices.computed(number)
        path = paths[-1] if paths else []
        num_shared = sum(1 for _ in takewhile(lambda pair: tokens[pair[0]] == pair[1], zip(path, wanted, strict=False)))
        num_tokens = len(tokens) + len(wanted) - num_shared
        if num_tokens > max_tokens or num_tokens - len(roots) + 1 > max_rows or len(paths) == max_branches:
            break
        path = path[:num_shared]
        for index in path:
            ends[index - len(roots)] = len(paths) + 1
        for token in wanted[num_shared:]:
            path.append(len(tokens))
            tokens.append(token)
            first.append(len(paths))
            ends.append(len(paths) + 1)
        paths.append(path)
    if not paths:
        return None
    depths = {index: depth for path in paths for depth, index in enumerate(path, len(roots))}
    places = [Place(depth, 0, len(paths)) for depth in range(len(roots))]
    for index in range(len(roots), len(tokens)):
        places.append(Place(depths[index], first[index - len(roots)], ends[index - len(roots)]))
    return Tree(tokens, places, len(roots), paths)


def score_tree(tree: Tree, choices: Choices, num_done: int, logits: Callable[[int], Logits]) -> list[float]:
    """Return the log probability of each choice of a computed tree, in their order.

    It is the sum over the tokens of a choice, and over its end: the probability of an end is that of all `ends`
    together. `num_done`: as it was for `grow`. `logits` returns a row of the tree's logits. Raise InternalError if the
    largest logit of a row is not finite.
    """
    room = np.empty_like(logits(0))
    totals = [log_total(logits(row), room) for row in range(tree.num_rows)]
    scores = []
    for number, path in zip(choices.order[num_done:], tree.paths, strict=False):
        rows = [0, *(index - tree.num_roots + 1 for index in path)]
        parts = [
            float(logits(row)[token]) - totals[row] for row, token in zip(rows, choices.tokens[number], strict=False)
        ]
        if choices.ends:
            ends = logits(rows[-1])[list(choices.ends)].astype(np.float64)
            parts.append(float(np.logaddexp.reduce(ends)) - totals[rows[-1]])
        scores.append(math.fsum(parts))
    return scores
