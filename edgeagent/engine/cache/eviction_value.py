"""The value of a block in host memory for each of its bytes, compared with other blocks."""

from __future__ import annotations

from edgeagent.engine.cache.block import Block, Importance

# The factor on a block's cost, compared with a block that was used once.
_FACTORS = {
    Importance.VOLATILE: 1.0,
    Importance.ONCE: 1.0,
    Importance.IDLE: 1.5,
    Importance.REUSED: 2.0,
    Importance.SYSTEM: 4.0,
    Importance.PINNED: 1.0,  # is not evicted at all
}
# The depth at which attention to earlier tokens costs about as much as all else in a step.
_DEPTH_THAT_DOUBLES = 4096


def value_of(block: Block, importance: Importance) -> float:
    """Return the cost of computing a block again, in tokens at depth 0 for each byte, times its importance."""
    cost = len(block.tokens) * (1 + block.start / _DEPTH_THAT_DOUBLES)
    return _FACTORS[importance] * cost / max(1, block.num_bytes)
