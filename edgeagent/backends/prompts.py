"""What a request tells before its prompt is tokenized: about how long the prompt is, and whose conversation it is."""

from __future__ import annotations

import hashlib
from sys import getsizeof

import msgspec
from msgspec.structs import astuple

from edgeagent.types import ChatPrompt, GenerateRequest, Message, TextPrompt

_TOKEN_ID_BYTES = 4
# Of usual text. The tokenizer of a remote's model is not available here.
_BYTES_PER_TOKEN = 4
# About as many tokens as an image of usual size has. Only the model's own projector knows the number.
_TOKENS_PER_MEDIUM = 1024
# Conversations that begin with so many equal bytes count as one. The digest of 16 MiB takes 14 ms of the event loop.
_MOST_COMPARED_BYTES = 1 << 20


def num_prompt_tokens(request: GenerateRequest) -> int:
    """Estimate how many tokens a request's prompt has at a remote."""
    return prompt_bytes(request) // _BYTES_PER_TOKEN


def prompt_bytes(request: GenerateRequest) -> int:
    """Return how many bytes a request's prompt has, without the template.

    A token id counts as 4 bytes, and an image or a sound as the text that takes about as many tokens.
    """
    match request.prompt:
        case ChatPrompt(messages):
            return tools_bytes(request.prompt) + sum(map(message_bytes, messages))
        case TextPrompt(text, suffix, files=files):
            return _num_bytes(text) + _num_bytes(suffix or "") + sum(_num_bytes(name + file) for name, file in files)
        case prompt:
            return _TOKEN_ID_BYTES * len(prompt.tokens)


def held_bytes(*values: msgspec.Struct) -> int:
    """Return about how much memory requests, prompts or queries take. What they share counts once; no text is read."""
    num_bytes, seen, parts = 0, set[int](), list[object](values)
    for part in parts:  # it grows
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        num_bytes += getsizeof(part)
        if isinstance(part, msgspec.Struct):
            parts.extend(astuple(part))
        elif isinstance(part, tuple) and part:
            if isinstance(part[0], int):  # token ids, which may be many
                num_bytes += len(part) * getsizeof(part[0])
            else:
                parts.extend(part)
    return num_bytes


def tools_bytes(prompt: ChatPrompt) -> int:
    """Return the size of a conversation's tool definitions in bytes."""
    return sum(len(tool.name) + _num_bytes(tool.description) + _num_bytes(tool.parameters) for tool in prompt.tools)


def message_bytes(message: Message) -> int:
    """Return how many bytes a message has: its content with its media, its reasoning, and its calls' arguments."""
    calls = sum(_num_bytes(call.arguments) for call in message.tool_calls)
    media = len(message.media) * _TOKENS_PER_MEDIUM * _BYTES_PER_TOKEN
    return _num_bytes(message.content) + media + _num_bytes(message.reasoning) + calls


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def conversation_of(request: GenerateRequest) -> tuple[str, str]:
    """Return a key that all requests of a conversation share: its client's cache partition, and its name.

    The name is the one in the cache policy (`lane`). Without it, a digest of the messages up to and including the first
    user message takes its place, which is the same for all turns. A request that has neither is a conversation of its
    own.
    """
    return request.cache.partition, request.cache.lane or _beginning(request) or request.id


def _beginning(request: GenerateRequest) -> str:
    if not isinstance(request.prompt, ChatPrompt):
        return ""
    messages = request.prompt.messages
    first_user = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    beginning = messages[: first_user + 1]
    seen = [digest for message in beginning for digest in digests(request.prompt, message)]
    return hashlib.sha256(msgspec.msgpack.encode((*seen, beginning))[:_MOST_COMPARED_BYTES]).hexdigest()


def digests(prompt: ChatPrompt, message: Message) -> tuple[bytes, ...]:
    """Return the digests of the media in a message of this prompt."""
    return tuple([prompt.media[place.index].digest for place in message.media])
