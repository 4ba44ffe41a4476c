"""Brings blocks back into the cells of a live sequence.

Restoring happens on the engine's thread between two steps, a block at a time, within what the caller grants; blocks of
the tier below are read meanwhile. It decides what is worth bringing back, not whose turn it is.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgeagent.engine.block_cache import Link
from edgeagent.engine.blocks import MIN_PART, Block, BlockKey, Importance
from edgeagent.engine.loader import BlockLoader
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.engine.saver import MAX_GAP, Saver

_WEIGHT = 0.2  # of a new measurement


@dataclass(slots=True)
class Restoring:
    """A live sequence on its way back into the cells: first `links`, then what `guesses` turn out to have."""

    seq_id: int
    tokens: array[int]
    max_length: int
    links: deque[Link]
    guesses: deque[Link]
    requested: set[BlockKey] = field(default_factory=set)  # of the loader, and not taken yet
    read: set[BlockKey] = field(default_factory=set)  # came from the tier below
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier


class _Rate:
    """Measured bytes per second; optimistic until something was measured."""

    def __init__(self) -> None:
        self._seconds_per_byte = 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        weight = _WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (seconds / max(1, num_bytes) - self._seconds_per_byte)

    def seconds(self, num_bytes: int) -> float:
        return self._seconds_per_byte * num_bytes


class Restorer:
    """Brings what a saver's blocks hold back into its cells."""

    def __init__(self, runner: Runner, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._saver = saver
        self._cells = saver.cells
        self._blocks = saver.blocks
        self._clock = clock
        self._loader = None if saver.blocks.below is None else BlockLoader(saver.blocks.below)
        self._rate = _Rate()

    def find(
        self, partition: str, tokens: Sequence[int], max_length: int, prefill_s: Callable[[int, int], float | None]
    ) -> tuple[int, list[Link]]:
        """Return how much of a prompt to take from cells, and the blocks to restore after that.

        `prefill_s` predicts the seconds of computing so many tokens from a depth on; blocks that would take longer are
        left alone.
        """
        known = self._cells.match(partition, tokens, max_length)
        links = self._blocks.find(partition, tokens, max_length)
        if self._is_better_lower(partition, tokens, known, links):
            return 0, links
        if not links or links[-1].end < known + MIN_PART:
            return known, []
        beyond = [link for link in links if link.end > known]
        if self._cells.match(partition, tokens, beyond[0].start) != beyond[0].start:
            beyond = links
        expected_s = prefill_s(links[-1].end - known, known)
        if expected_s is not None and self._restore_s(beyond) > expected_s:
            return known, []
        return beyond[0].start, beyond

    def num_shared(self, partition: str, tokens: Sequence[int], max_length: int) -> int:
        """Return how many of the leading tokens were seen before, whether or not one can go on from there."""
        return max(
            self._cells.num_shared(partition, tokens, max_length),
            self._blocks.num_shared(partition, tokens, max_length),
        )

    def begin(self, seq_id: int, tokens: array[int], max_length: int, links: Sequence[Link]) -> Restoring:
        """Begin to restore a live sequence; go on with `advance` until that says it is done."""
        self._blocks.use(links)
        guesses = []
        if max_length - self._cells.length(seq_id) >= MIN_PART:
            guesses = self._blocks.guess(self._cells.partition(seq_id), tokens, max_length)
        restoring = Restoring(seq_id, tokens, max_length, deque(links), deque(guesses))
        if self._loader is not None:
            for link in (*links, *guesses):
                if link.tier is self._blocks.below and link.key not in restoring.requested:
                    self._loader.request(link.key)
                    restoring.requested.add(link.key)
        return restoring

    def advance(self, restoring: Restoring, budget_s: float) -> bool:
        """Restore blocks for about so long, at least one; True when nothing is left to restore.

        A block that is gone, or does not fit, ends it early: what is there then is right, and the rest is computed.
        """
        started_s = self._clock()
        while restoring.links or restoring.guesses:
            link = (restoring.links or restoring.guesses)[0]
            if not self._is_loaded(restoring, link):
                return False
            block = self._take(restoring, link)
            if not restoring.links:
                restoring.guesses.popleft()
                if not restoring.guesses:
                    self._add_guessed(restoring)
            elif block is not None and self._restore(restoring, link, block):
                restoring.links.popleft()
            else:
                self.stop(restoring)
            if self._clock() - started_s >= budget_s:
                break
        return not restoring.links and not restoring.guesses

    def stop(self, restoring: Restoring) -> None:
        """Give up what is not restored yet."""
        restoring.links.clear()
        restoring.guesses.clear()
        for key in restoring.requested:
            assert self._loader is not None
            self._loader.forget(key)
        restoring.requested.clear()

    def wait(self, restorings: Sequence[Restoring], timeout_s: float) -> None:
        """Wait for a while, where none of these can go on before another block is read."""
        heads = [(each, (each.links or each.guesses)[0]) for each in restorings if each.links or each.guesses]
        if self._loader is not None and heads and not any(self._is_loaded(each, link) for each, link in heads):
            self._loader.wait(timeout_s)

    def close(self) -> None:
        """End the reading, and close the tier below."""
        if self._loader is not None:
            self._loader.close()
        if self._blocks.below is not None:
            self._blocks.below.close()

    def _is_better_lower(self, partition: str, tokens: Sequence[int], known: int, links: Sequence[Link]) -> bool:
        """Whether to restore what the cells hold too, since it would keep everyone far up in the cells.

        Each token pays for the gap, and a restore is paid once: a gap as long as the prefix is worth it.
        """
        if self._runner.memory_kind not in CUTTABLE or not known or not links or links[-1].end < known:
            return False
        if any(link.tier is not self._blocks.host for link in links):
            return False
        holder = self._cells.find_idle(partition, tokens, known)
        if holder is None or not self._saver.is_saved(holder):
            return False
        return self._cells.gap_below(holder, known) > max(MAX_GAP, known)

    def _is_loaded(self, restoring: Restoring, link: Link) -> bool:
        return link.key not in restoring.requested or (self._loader is not None and self._loader.is_loaded(link.key))

    def _take(self, restoring: Restoring, link: Link) -> Block | None:
        """Return a link's block; one from the tier below is in host memory from here on."""
        if link.key not in restoring.requested:
            return link.tier.read(link.key)
        assert self._loader is not None
        restoring.requested.remove(link.key)
        restoring.read.add(link.key)
        block = self._loader.take(link.key)
        if block is not None:
            self._blocks.host.offer(block, Importance.IDLE)
        return block

    def _add_guessed(self, restoring: Restoring) -> None:
        """Go on with the guess that has the most of the tokens: it is in host memory, where its tokens are known."""
        seq_id = restoring.seq_id
        links = self._blocks.find(self._cells.partition(seq_id), restoring.tokens, restoring.max_length)
        beyond = [link for link in links if link.end >= self._cells.length(seq_id) + MIN_PART]
        if beyond and self._cells.cut(seq_id, beyond[0].start) == beyond[0].start:
            restoring.links.extend(link for link in beyond if link.tier is self._blocks.host)

    def _restore(self, restoring: Restoring, link: Link, block: Block) -> bool:
        seq_id, length = restoring.seq_id, len(block.tokens)
        if block.tokens[: link.num_tokens] != restoring.tokens[link.start : link.end] or length != link.length:
            return False  # another prefix under the same key: somebody made it so
        if not self._cells.reserve(length):
            return False
        started_s = self._clock()
        if not self._runner.restore(seq_id, block.target, link.start + length):
            return False
        self._cells.append(seq_id, block.tokens)
        num_there = self._cells.cut(seq_id, link.end) if link.num_tokens < length else link.end
        self._rate.observe(block.num_bytes, self._clock() - started_s)
        name = "disk" if link.key in restoring.read else "host"
        restoring.num_restored[name] = restoring.num_restored.get(name, 0) + link.num_tokens
        if num_there != link.end:
            restoring.num_restored.clear()
        return num_there == link.end

    def _restore_s(self, links: Sequence[Link]) -> float:
        seconds = self._rate.seconds(sum(link.num_bytes for link in links))
        if self._blocks.below is not None:
            num_read = sum(link.num_bytes for link in links if link.tier is self._blocks.below)
            rate = self._blocks.below.stats().read_bytes_per_s
            seconds += num_read / rate if num_read and rate else 0.0
        return seconds
