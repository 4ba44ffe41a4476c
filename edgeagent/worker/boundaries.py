"""Where in a conversation's tokens another prompt is likely to part from it.

A memory that is a state can be kept only where it is, so the engine wants to know such places while it computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from msgspec import structs

from edgeagent.errors import EdgeAgentError
from edgeagent.text.template import ChatTemplate
from edgeagent.types import ChatPrompt, Message

_OTHER = "\u2042"  # begins like no message that a person would write


def find_boundaries(
    template: ChatTemplate, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Callable[[int], bytes]
) -> tuple[int, ...]:
    """Return positions in a prompt's tokens, rising: the end of what instructions and tools make, and where the next
    turn will go on, which is before the end where the template writes past turns in another way than a new one.

    `text` is what the prompt was rendered to, `piece` gives the bytes of a token.
    """
    system = tuple(takewhile(lambda message: message.role == "system", prompt.messages))
    continuations = (
        (*system, Message("user", _OTHER)),
        (*prompt.messages, Message("assistant", _OTHER), Message("user", _OTHER)),
    )
    found = set()
    for messages in continuations:
        try:
            other = template.render(structs.replace(prompt, messages=messages)).text
        except EdgeAgentError:
            continue  # a template may refuse what nobody asked for
        num_shared = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(text))
        num_bytes = len(text[:num_shared].encode())
        found.add(min(_num_tokens_within(num_bytes, tokens, piece), len(tokens) - 1))
    return tuple(sorted(found - {0}))


def _num_tokens_within(num_bytes: int, tokens: Sequence[int], piece: Callable[[int], bytes]) -> int:
    """Return how many leading tokens have their text within so many bytes."""
    for index, token in enumerate(tokens):
        num_bytes -= len(piece(token))
        if num_bytes < 0:
            return index
    return len(tokens)
