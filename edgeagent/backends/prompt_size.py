"""The size of a prompt in bytes. The number of prompt tokens is estimated from it before the template is rendered."""

from __future__ import annotations

from edgeagent.types import ChatPrompt, GenerateRequest, Message, TextPrompt

_TOKEN_ID_BYTES = 4


def prompt_bytes(request: GenerateRequest) -> int:
    """Return how many bytes a request's prompt has, without the template. A token id counts as 4 bytes."""
    match request.prompt:
        case ChatPrompt(messages):
            return tools_bytes(request.prompt) + sum(map(message_bytes, messages))
        case TextPrompt(text, suffix, files=files):
            return _num_bytes(text) + _num_bytes(suffix or "") + sum(_num_bytes(name + file) for name, file in files)
        case prompt:
            return _TOKEN_ID_BYTES * len(prompt.tokens)


def tools_bytes(prompt: ChatPrompt) -> int:
    """Return the size of a conversation's tool definitions in bytes."""
    return sum(len(tool.name) + _num_bytes(tool.description) + _num_bytes(tool.parameters) for tool in prompt.tools)


def message_bytes(message: Message) -> int:
    """Return how many bytes the content, the reasoning and the tool calls' arguments of a message have."""
    calls = sum(_num_bytes(call.arguments) for call in message.tool_calls)
    return _num_bytes(message.content) + _num_bytes(message.reasoning) + calls


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
