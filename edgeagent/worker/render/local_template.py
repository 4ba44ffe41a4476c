"""A chat template that runs in the caller's process, without limits."""

from __future__ import annotations

from edgeagent.text.grammar.fault import grammar_fault
from edgeagent.text.template.chat_template import ChatTemplate


class LocalTemplate(ChatTemplate):
    """A template with the methods of a renderer, which have nothing to limit here."""

    def check_grammar(self, grammar: str) -> str:
        return grammar_fault(grammar)

    def renew(self) -> None:
        pass

    def for_another_thread(self) -> LocalTemplate:
        return self
