"""A chat template that runs in the test's process, without limits, in place of the renderer."""

from __future__ import annotations

from msgspec import structs

from edgeagent.text.grammar.fault import grammar_fault
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.worker.render.protocol import Open


class LocalTemplate(ChatTemplate):
    """A template with the methods of a renderer, which have nothing to limit here."""

    def check_grammar(self, grammar: str) -> str:
        return grammar_fault(grammar)

    def renew(self) -> None: ...

    def for_another_thread(self) -> LocalTemplate:
        return self


def open_here(opening: Open) -> LocalTemplate:
    return LocalTemplate(**structs.asdict(opening))
