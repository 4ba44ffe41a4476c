"""Finds the positions in a conversation's tokens where other prompts are likely to diverge from it.

The recurrent state at a position can be saved only while the engine is there. So the engine must know these positions
before it computes the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from msgspec import structs

from edgeagent.errors import EdgeAgentError
from edgeagent.types import ChatPrompt, Message
from edgeagent.worker.render.renderer import Template

_OTHER = "\u2042"  # real messages do not begin with it
_QUESTION = Message("user", _OTHER)
_SPACES = " \t\n"
# The most characters that count as the last word, for texts without spaces. Measured with SmolLM2's vocabulary: more
# text changed only tokens in the last 13 bytes of an English text, and none in Japanese, Chinese or Thai.
_LONGEST_WORD = 16

Piece = Callable[[int], bytes]
"""A function that returns the bytes of a token."""


def find_system_end(
    template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece
) -> int | None:
    """Return how many leading tokens hold the instructions and tools; None if the template cannot render them alone.

    If the prompt has no instructions and no tools, count the tokens that the template writes before the first message.
    `text` is the rendered prompt, and `tokens` are its tokens.
    """
    system = tuple(takewhile(lambda message: message.role == "system", prompt.messages))
    return _num_shared(template, structs.replace(prompt, messages=(*system, _QUESTION)), text, tokens, piece)


def find_next_turn(
    template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece
) -> int | None:
    """Return how many leading tokens this prompt shares with the prompt of the next turn; None if that is unknown.

    It is unknown if the template refuses a next turn. Some templates write a past turn differently from the latest one.
    Then only a part of this prompt is shared. `text` is this rendered prompt, and `tokens` are its tokens.
    """
    next_turn = structs.replace(prompt, messages=(*prompt.messages, Message("assistant", _OTHER), _QUESTION))
    return _num_shared(template, next_turn, text, tokens, piece)


def find_open_end(template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece) -> int | None:
    """Return how many leading tokens stay the same if the last message, a user's, grows; None if it is no user's.

    They end before its last word: speech recognition revises that word most often, and a tokenizer may join it with
    what follows. `text` is the rendered prompt, and `tokens` are its tokens.
    """
    if not prompt.messages or prompt.messages[-1].role != "user":
        return None
    *earlier, last = prompt.messages
    longer = structs.replace(prompt, messages=(*earlier, structs.replace(last, content=last.content + _OTHER)))
    try:
        rendered = template.render(longer).text
    except EdgeAgentError:
        return None
    closed = text[: _num_equal(text, rendered)].rstrip()
    last_word = len(closed) - max(map(closed.rfind, _SPACES))
    num_kept = len(closed) - min(last_word, len(last.content), _LONGEST_WORD)
    num_bytes = len(closed[:num_kept].encode())
    return max(1, _num_tokens_within(num_bytes, tokens, piece))


def _num_shared(template: Template, other: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece) -> int | None:
    """Return how many of the leading `tokens` the prompt `other` has too; None if the template refuses `other`.

    `text` is the text of `tokens`. The last of `tokens` is never counted.
    """
    try:
        rendered = template.render(other).text
    except EdgeAgentError:
        return None  # a template may refuse these made-up messages
    num_bytes = len(text[: _num_equal(text, rendered)].encode())
    return min(_num_tokens_within(num_bytes, tokens, piece), len(tokens) - 1)


def _num_equal(text: str, other: str) -> int:
    """Return how many leading characters the two texts share."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _num_tokens_within(num_bytes: int, tokens: Sequence[int], piece: Piece) -> int:
    """Return how many leading tokens fit into `num_bytes` bytes of text."""
    for index, token in enumerate(tokens):
        num_bytes -= len(piece(token))
        if num_bytes < 0:
            return index
    return len(tokens)
