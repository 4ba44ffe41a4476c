"""What a chat template's source says of a model agrees with what its renderings say."""

from __future__ import annotations

import pytest

from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.text.tool_format import declares_reasoning, declares_tools
from tests.text import templates

SOURCES = {name: source for name, source in vars(templates).items() if name.isupper() and isinstance(source, str)}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_template_is_understood_without_rendering_it(source: str) -> None:
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>")
    assert declares_tools(source) is template.supports_tools
    assert declares_reasoning(source) is template.supports_reasoning
