"""Which requests may be answered from similarity, and with which kept questions they are compared. It is pure."""

from __future__ import annotations

from dataclasses import replace as replaced

from edgeagent.answers.key import Question
from edgeagent.types import ChatPrompt, Message, TextFormat, replace

GROUP_BYTES = 8
"""The first bytes of a place are the digest of its group: of all that decides how a model answers any question."""


def asked_text(question: Question, remote: str) -> str | None:
    """Return the text of the last user turn; None if the request is never answered from similarity.

    It is not if it has tools, a form of its answer, or choices; if its last message is anything but a user's text; if
    it asks for log probabilities or its prompt; or if a remote computes it, which could not be checked without sending
    and paying again. `remote`: the identity of a remote's model.
    """
    request = question.request
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.messages or prompt.tools or question.identity == remote:
        return None
    if request.format != TextFormat() or request.choices or request.logprobs is not None or request.echo:
        return None
    last = prompt.messages[-1]
    has_more = last != Message("user", last.content, name=last.name)
    return None if has_more or not last.content.strip() else last.content


def place_of(question: Question, secret: bytes) -> bytes:
    """Return the digest of all that decides the answer but the text of the last message.

    Only questions of one place are compared: the same model, client, instructions, history, and sampling. So what a
    question refers to in the history is the same too, and instructions with a clock never meet the same place again.

    The first GROUP_BYTES are equal for places that differ only in client, day and history, which few questions share.
    What one group taught says nothing of another: a newer model, or one that is to repeat what it hears, may give
    almost equal questions answers of their own.
    """
    request, prompt = question.request, question.request.prompt
    assert isinstance(prompt, ChatPrompt)
    *earlier, last = prompt.messages
    instructions = [each for each in earlier if each.role == "system"]

    def digest(of: Question, messages: list[Message]) -> bytes:
        return replaced(of, request=replace(request, prompt=replace(prompt, messages=tuple(messages)))).key(secret)

    group = digest(replaced(question, partition="", day=""), instructions)
    return group[:GROUP_BYTES] + digest(question, [*earlier, replace(last, content="")])[GROUP_BYTES:]
