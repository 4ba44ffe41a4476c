"""Which requests may be answered from similarity, and with which kept questions they are compared. It is pure."""

from __future__ import annotations

from dataclasses import replace as replaced

from edgeagent.answers.key import Question
from edgeagent.types import ChatPrompt, Message, TextFormat, replace


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
    """
    prompt = question.request.prompt
    assert isinstance(prompt, ChatPrompt)
    *earlier, last = prompt.messages
    without = replace(prompt, messages=(*earlier, replace(last, content="")))
    return replaced(question, request=replace(question.request, prompt=without)).key(secret)
