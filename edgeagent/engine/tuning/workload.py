"""The kinds of work whose times are compared, and how many tokens each computes when it is measured."""

from __future__ import annotations

from enum import StrEnum

PROMPT_TOKENS, TURN_TOKENS, BATCH_TOKENS = 128, 16, 512
TILE_TOKENS = 64
"""The same number as engine.costs.step_shape.FLASH_TILE."""
MAX_STREAMS = 8
"""The most streams in a measured step. More would take too much time."""
_NUM_TOKENS = {
    "token": 1,
    "three": 3,
    "four": 4,
    "seven": 7,
    "eight": 8,
    "thirteen": 13,
    "fifteen": 15,
    "sixteen": 16,
    "turn": TURN_TOKENS,
    "streams": MAX_STREAMS,
    "prompt": PROMPT_TOKENS,
    "batch": BATCH_TOKENS,
}


class Workload(StrEnum):
    """The measured kinds of work.

    The first word of a name says what is computed. STREAMS is one token of each of several sequences. All other words
    are tokens of one sequence: TOKEN is 1, TURN is TURN_TOKENS, PROMPT is PROMPT_TOKENS, BATCH is BATCH_TOKENS. THREE
    to SIXTEEN are that many tokens.

    The rest of the name says which cells are in use before:

    - ALONE: none.
    - AFTER_TEXT: earlier tokens of the same sequences. The value, which is stored, says "behind" or "deep".
    - BESIDE_IDLE: the cells of idle sequences. The value, which is stored, says "beside".
    """

    PROMPT_ALONE = "prompt alone"
    PROMPT_AFTER_TEXT = "prompt behind"
    PROMPT_BESIDE_IDLE = "prompt beside"
    TURN_ALONE = "turn alone"
    TURN_AFTER_TEXT = "turn behind"
    TOKEN_ALONE = "token alone"  # noqa: S105 no password
    TOKEN_AFTER_TEXT = "token behind"  # noqa: S105
    TOKEN_BESIDE_IDLE = "token beside"  # noqa: S105
    STREAMS_ALONE = "streams alone"
    STREAMS_AFTER_TEXT = "streams deep"
    THREE_ALONE = "three alone"
    FOUR_ALONE = "four alone"
    SEVEN_ALONE = "seven alone"
    EIGHT_ALONE = "eight alone"
    THIRTEEN_ALONE = "thirteen alone"
    FIFTEEN_ALONE = "fifteen alone"
    SIXTEEN_ALONE = "sixteen alone"
    BATCH_ALONE = "batch alone"
    BATCH_AFTER_TEXT = "batch behind"


FORM_WORKS = (
    Workload.TOKEN_ALONE,
    Workload.TURN_ALONE,
    Workload.STREAMS_ALONE,
    Workload.PROMPT_ALONE,
    Workload.TOKEN_AFTER_TEXT,
    Workload.TURN_AFTER_TEXT,
    Workload.PROMPT_AFTER_TEXT,
    Workload.TOKEN_BESIDE_IDLE,
    Workload.STREAMS_AFTER_TEXT,
    Workload.PROMPT_BESIDE_IDLE,
)
"""The kinds of work by which the form of attention is chosen."""


def tokens_of(work: Workload) -> int:
    """Return how many tokens a kind of work computes; for STREAMS the most that a measured step may have."""
    return _NUM_TOKENS[work.partition(" ")[0]]
