"""Computes how many tokens a request may generate in the context, and what to advise if a prompt does not fit."""

from __future__ import annotations

from edgeagent.engine.sequence import SequenceSpec
from edgeagent.errors import ContextLengthExceeded, InternalError


def output_room(spec: SequenceSpec, context_length: int, num_trained: int) -> int:
    """Return the most tokens that a sequence may generate in a context of `context_length` tokens.

    The number includes the tokens that another engine has delivered already. `num_trained`: see `longer_context`.

    Raise ContextLengthExceeded if the prompt leaves no room for a token; a prefill-only prompt may fill the context.
    Raise InternalError if the prompt is empty, or if all tokens that the sequence may generate were already delivered.
    """
    num_prompt = len(spec.prompt)
    room = context_length - num_prompt
    least = 0 if spec.prefill_only else 1 if spec.choices is None else spec.choices.longest
    if room < least:
        longest = "" if spec.choices is None else f" and its longest choice {least}"
        raise ContextLengthExceeded(
            f"The prompt has {num_prompt} tokens{longest}, but the context holds {context_length}. "
            f"Shorten the prompt, or {longer_context(num_prompt + max(1, least), num_trained)}.",
            param="input",
            served_by="local",
        )
    if num_prompt == 0:
        raise InternalError("a prompt without tokens reached the engine")
    num_output = room if spec.max_tokens is None else min(room, spec.max_tokens)
    if spec.delivered and len(spec.delivered) >= num_output:
        raise InternalError(f"{len(spec.delivered)} tokens were delivered of at most {num_output}")
    return num_output


def longer_context(num_tokens: int, num_trained: int) -> str:
    """Return advice for the user: how to get a context of at least `num_tokens` tokens.

    `num_trained`: the longest context, in tokens, that the model was trained for; 0 if unknown.
    """
    if not num_trained:
        return "start edgeagent with a larger --ctx"
    if num_tokens > num_trained:
        return f"serve a model that was trained for more than {num_trained} tokens"
    return f"start edgeagent with a larger --ctx, {num_trained} at most"
