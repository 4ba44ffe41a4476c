"""Writes a request as the body of chat completions, or of text completions.

A body holds only what the request asks for: no name of this machine, its user or a client, and no other conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from edgeagent.backends.prompts import prompt_bytes
from edgeagent.backends.remote.dialect import Dialect
from edgeagent.errors import NotSupported
from edgeagent.media_files import as_base64, as_data_url, sound_format, spliced
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Media,
    Message,
    OutputFormat,
    SamplingParams,
    TextFormat,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolChoice,
    replace,
)

Fields = dict[str, Any]

_GO_ON = (
    "Your last message was cut off. Continue it exactly where it stopped, in the middle of a word if need be. "
    "Repeat nothing of it and say nothing about this."
)

# vLLM sends the prompt's token ids together with the answer's. For a long prompt they would delay the first token.
_MAX_ECHOED_BYTES = 16 * 1024


class Target(Struct, frozen=True):
    """The server that a body is for: the server's name for the model, its dialect, and the salt for its prefix cache.

    `in_words`: if the server cannot continue an answer exactly, ask the model in words to continue it.
    """

    model: str
    dialect: Dialect
    cache_salt: str = ""
    in_words: bool = False


class Body(Struct, frozen=True):
    """A request's body, and the path below the base URL to which it is sent."""

    path: str
    content: bytes


def unsupported(request: GenerateRequest) -> str:
    """Return in words which part of a request no remote supports; empty if there is no such part."""
    prompt = request.prompt
    if request.echo:
        return "the prompt's own text (echo)"
    if request.prefill_only:
        return "computing a prompt without an answer"
    if request.sampling.logit_bias:
        return "logit_bias, whose token ids are those of this machine's model"
    if isinstance(prompt, TextPrompt) and prompt.suffix is not None:
        return "a suffix"
    return ""


def not_supported(what: str) -> NotSupported:
    """Return the error for a request that needs something that remotes do not support; `what` names this."""
    return NotSupported(f"a remote cannot be asked for {what}")


def write_body(request: GenerateRequest, target: Target, so_far: AnswerSoFar | None = None) -> Body:
    """Return a request's body.

    Raise NotSupported if the protocol cannot express the request, or if the server cannot continue the answer so far.
    """
    if what := unsupported(request):
        raise not_supported(what)
    if so_far is not None and (what := why_not_continuable(request, so_far)):
        raise not_supported(what)
    fields = _common(request, target, so_far)
    match request.prompt:
        case ChatPrompt() as prompt:
            fields |= _chat(prompt, request, target, so_far)
            return Body("/chat/completions", msgspec.json.encode(fields))
        case TextPrompt(text=text):
            fields["prompt"] = text + (so_far.text if so_far is not None else "")
        case TokenPrompt(tokens=tokens):
            if not target.dialect.takes_token_prompts:
                raise not_supported("a prompt of token ids")
            fields["prompt"] = list(tokens)
    if request.logprobs is not None:
        fields["logprobs"] = request.logprobs
    return Body("/completions", msgspec.json.encode(fields))


def why_not_continuable(request: GenerateRequest, so_far: AnswerSoFar) -> str:
    """Return in words why no remote can continue an answer; empty if a remote may be able to continue it."""
    if so_far.reasoning and not so_far.text:
        return "the rest of unfinished reasoning"
    # The remote would start the format again, although a part of the answer is already written.
    if so_far.text and not isinstance(request.format, TextFormat):
        return "the rest of an answer in a fixed format"
    prompt = request.prompt
    if isinstance(prompt, TokenPrompt):
        return "the rest of an answer to a prompt of token ids"
    if so_far.text and isinstance(prompt, ChatPrompt) and prompt.tools and prompt.tool_choice.mode == "required":
        return "the rest of an answer that must be a tool call"
    return ""


def tokens_left(request: GenerateRequest, so_far: AnswerSoFar | None) -> int | None:
    """Return how many more tokens the answer may have after `so_far`; None if there is no limit."""
    if request.max_tokens is None:
        return None
    return max(0, request.max_tokens - (so_far.num_tokens if so_far is not None else 0))


def _common(request: GenerateRequest, target: Target, so_far: AnswerSoFar | None) -> Fields:
    told = {"include_usage": True} | ({"continuous_usage_stats": True} if target.dialect.counts_tokens else {})
    fields: Fields = {"model": target.model, "stream": True, "stream_options": told}
    if target.dialect.returns_ids and prompt_bytes(request) <= _MAX_ECHOED_BYTES:
        # vLLM's router forwards this field, but drops continuous_usage_stats.
        fields["return_token_ids"] = True
    if target.dialect.times_tokens:
        fields["timings_per_token"] = True
    left = tokens_left(request, so_far)
    if left is not None:
        is_chat = isinstance(request.prompt, ChatPrompt)
        fields[target.dialect.max_tokens if is_chat else "max_tokens"] = left
    if request.stop:
        fields["stop"] = list(request.stop)
    if not isinstance(request.format, TextFormat):
        fields["response_format"] = _response_format(request.format)
    if target.cache_salt and target.dialect.takes_cache_salt:
        fields["cache_salt"] = target.cache_salt
    return fields | _sampling(request.sampling, target.dialect)


def _sampling(sampling: SamplingParams, dialect: Dialect) -> Fields:
    fields: Fields = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
    }
    others: Fields = {
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        dialect.penalty: sampling.repeat_penalty,
    }
    if dialect.has_repeat_last_n:
        others["repeat_last_n"] = sampling.repeat_last_n
    if dialect.takes_sampling:
        fields |= others
    return {name: value for name, value in fields.items() if value is not None}


def _response_format(output: OutputFormat) -> Fields:
    match output:
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            described = {"name": name, "schema": json_value(schema), "strict": strict}
            return {"type": "json_schema", "json_schema": described}
        case JsonObjectFormat():
            return {"type": "json_object"}
        case TextFormat():
            return {"type": "text"}


def _chat(prompt: ChatPrompt, request: GenerateRequest, target: Target, so_far: AnswerSoFar | None) -> Fields:
    dialect = target.dialect
    fields: Fields = {"messages": list(_messages(prompt, dialect))}
    tools = offered(prompt.tools, prompt.tool_choice)
    if tools:
        fields["tools"] = [_tool(tool) for tool in tools]
        fields["tool_choice"] = _tool_choice(prompt.tool_choice)
        fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    if request.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": request.logprobs}
    fields |= _template_kwargs(prompt.template_kwargs, dialect)
    if so_far is not None and (so_far.text or so_far.reasoning):
        _continue(fields, so_far, target)
    return fields


def _continue(fields: Fields, so_far: AnswerSoFar, target: Target) -> None:
    """Append the answer so far as an assistant message, and ask the server to continue it.

    If the server cannot continue it, ask the model in words if `target.in_words`, and raise NotSupported otherwise.
    """
    fields["messages"].append(_message(Message("assistant", so_far.text, so_far.reasoning), target.dialect))
    if target.dialect.continues:
        if target.dialect.continue_fields:
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
    elif target.in_words:
        fields["messages"].append({"role": "user", "content": _GO_ON})
    else:
        raise not_supported("the rest of an answer: it is not known to continue one exactly")


def _messages(prompt: ChatPrompt, dialect: Dialect) -> Iterator[Fields]:
    """Yield a conversation's messages.

    What tools show follows their results in a message of the user, since OpenAI's API takes it only there.
    """
    shown: list[Fields] = []
    for message in prompt.messages:
        if message.role != "tool" and shown:
            yield {"role": "user", "content": shown}
            shown = []
        if message.role == "tool" and message.media:
            text = message.content or "What it shows is in the next message of the user."
            yield _message(replace(message, content=text, media=()), dialect)
            name = f" {message.name}" if message.name else ""
            shown.append({"type": "text", "text": f"The tool{name} shows:"})
            shown += [part for part in _parts(message, prompt.media) if part["type"] != "text"]
        else:
            yield _message(message, dialect, prompt.media)
    if shown:
        yield {"role": "user", "content": shown}


def _message(message: Message, dialect: Dialect, media: tuple[Media, ...] = ()) -> Fields:
    fields: Fields = {"role": message.role, "content": message.content}
    if message.media:
        fields["content"] = list(_parts(message, media))
    if message.reasoning:
        fields |= dict.fromkeys(dialect.reasoning_fields, message.reasoning)
    if message.tool_calls:
        fields["content"] = message.content or None
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _parts(message: Message, media: tuple[Media, ...]) -> Iterator[Fields]:
    """Yield the parts of a message with media: the pieces of its text, and the media between them."""
    before, *behind = spliced(message.content, [place.offset for place in message.media])
    if before:
        yield {"type": "text", "text": before}
    for place, text in zip(message.media, behind, strict=True):
        medium = media[place.index]
        if medium.kind == "image":
            yield {"type": "image_url", "image_url": {"url": as_data_url(medium)}}
        else:
            sound = {"data": as_base64(medium), "format": sound_format(medium)}
            yield {"type": "input_audio", "input_audio": sound}
        if text:
            yield {"type": "text", "text": text}


def offered(tools: tuple[Tool, ...], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the tool choice allows. Only these are sent, since `tool_choice` cannot name several."""
    return tuple(tool for tool in tools if not choice.names or tool.name in choice.names)


def _tool(tool: Tool) -> Fields:
    function: Fields = {"name": tool.name, "parameters": json_value(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> str | Fields:
    if choice.mode == "required" and len(choice.names) == 1:
        return {"type": "function", "function": {"name": choice.names[0]}}
    return choice.mode


def _template_kwargs(text: str, dialect: Dialect) -> Fields:
    kwargs = json_value(text)
    if not kwargs:
        return {}
    if dialect.takes_template_kwargs:
        return {"chat_template_kwargs": kwargs}
    # This server does not know template variables, except the one that OpenAI has as a field.
    effort = kwargs.get("reasoning_effort")
    return {"reasoning_effort": effort} if effort is not None else {}


def json_value(text: str) -> Any:
    """Decode JSON text from a request, so that only valid JSON gets into a body."""
    return msgspec.json.decode(text.encode())
