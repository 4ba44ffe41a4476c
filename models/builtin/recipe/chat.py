"""Renders conversations with the chat template that ships in the GGUF, so that training text equals inference text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .samples import Message, Tool

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")


@cache
def _template(sort_keys: bool) -> Template:
    """Return the compiled template. Some runtimes sort keys in `tojson` and some do not, so training uses both."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def tojson(value: Any, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    return environment.from_string(TEMPLATE)


def render(
    messages: Sequence[Message], tools: Sequence[Tool] = (), *, prompt: bool = False, sort_keys: bool = False
) -> str:
    """Render a conversation. If `prompt`, the text ends with the opening of the assistant's next turn."""
    return _template(sort_keys).render(messages=list(messages), tools=list(tools) or None, add_generation_prompt=prompt)
