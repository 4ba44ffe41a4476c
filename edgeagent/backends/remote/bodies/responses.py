"""Writes a request as the body of the Responses API, for remotes whose `wire` is "responses"."""

from __future__ import annotations

from typing import Any

import msgspec

from edgeagent.backends.remote.bodies.chat import Body, Fields, Target, json_value, not_supported, offered, unsupported
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    TextFormat,
    Tool,
    ToolChoice,
)


def write_responses_body(request: GenerateRequest, target: Target, so_far: AnswerSoFar | None = None) -> Body:
    """Return a request's body.

    Raise NotSupported if the Responses API cannot express the request, or if an answer would have to be continued.
    """
    prompt = request.prompt
    if what := unsupported(request) or _unsayable(request):
        raise not_supported(what)
    assert isinstance(prompt, ChatPrompt)
    if so_far is not None and (so_far.text or so_far.reasoning):
        raise not_supported("the rest of an answer over the Responses API")
    fields: Fields = {
        "model": target.model,
        "stream": True,
        "store": False,
        "input": [item for message in prompt.messages for item in _items(message)],
    }
    sampling = request.sampling
    for name, value in (
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("max_output_tokens", request.max_tokens),
    ):
        if value is not None:
            fields[name] = value
    if tools := offered(prompt.tools, prompt.tool_choice):
        fields["tools"] = [_tool(tool) for tool in tools]
        fields["tool_choice"] = _tool_choice(prompt.tool_choice)
        fields["parallel_tool_calls"] = prompt.parallel_tool_calls
    if not isinstance(request.format, TextFormat):
        fields["text"] = {"format": _format(request.format)}
    if request.logprobs is not None:
        fields["top_logprobs"] = request.logprobs
        fields["include"] = ["message.output_text.logprobs"]
    if effort := json_value(prompt.template_kwargs).get("reasoning_effort"):
        fields["reasoning"] = {"effort": effort}
    if target.cache_salt and target.dialect.takes_cache_salt:
        fields["cache_salt"] = target.cache_salt
    return Body("/responses", msgspec.json.encode(fields))


def _unsayable(request: GenerateRequest) -> str:
    sampling = request.sampling
    asked: dict[str, Any] = {
        "stop strings over the Responses API": request.stop,
        "a seed over the Responses API": sampling.seed is not None,
        "penalties over the Responses API": sampling.presence_penalty or sampling.frequency_penalty,
    }
    if not isinstance(request.prompt, ChatPrompt):
        return "raw prompts over the Responses API"
    return next((what for what, is_asked in asked.items() if is_asked), "")


def _items(message: Message) -> list[Fields]:
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    items: list[Fields] = []
    if message.content or not message.tool_calls:
        items.append({"type": "message", "role": message.role, "content": message.content})
    items += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return items


def _tool(tool: Tool) -> Fields:
    fields: Fields = {"type": "function", "name": tool.name, "parameters": json_value(tool.parameters)}
    if tool.description:
        fields["description"] = tool.description
    return fields | {"strict": tool.strict}


def _tool_choice(choice: ToolChoice) -> str | Fields:
    if choice.mode == "required" and len(choice.names) == 1:
        return {"type": "function", "name": choice.names[0]}
    return choice.mode


def _format(output: OutputFormat) -> Fields:
    match output:
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            return {"type": "json_schema", "name": name, "schema": json_value(schema), "strict": strict}
        case JsonObjectFormat():
            return {"type": "json_object"}
        case TextFormat():
            return {"type": "text"}
