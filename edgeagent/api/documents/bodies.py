"""The bodies that clients send, for the documents: the checked ones, with types for what code reads by hand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeagent.api.ollama import body as ollama_body
from edgeagent.api.openai import chat_body, embeddings_body, text_body
from edgeagent.api.responses import body as responses_body
from edgeagent.api.wire.fields import MAX_MESSAGES, MAX_TOOLS, TOOL_NAME, ModelName
from edgeagent.api.wire.shape import Json


class OpenBody(BaseModel):
    """An object that may have more fields than these, which are ignored."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class TextPart(OpenBody):
    """Text in a message."""

    type: Literal["text"]
    text: str


class Function(OpenBody):
    """A function the model may call."""

    name: Annotated[str, Field(pattern=f"^{TOOL_NAME}$")]
    description: str | None = None
    parameters: Json | None = None
    """A JSON schema of the arguments, at most 64 KiB and 32 levels deep."""
    strict: bool | None = None


class ChatTool(OpenBody):
    """A tool of a chat completion; functions are the only kind."""

    type: Literal["function"]
    function: Function


class CalledFunction(OpenBody):
    """The function that was called."""

    name: str
    arguments: str
    """A JSON object, as text."""


class ChatCall(OpenBody):
    """A call the model made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class InstructionMessage(OpenBody):
    """A message of the system or the user."""

    role: Literal["system", "developer", "user"]
    content: str | list[TextPart]
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class AssistantMessage(OpenBody):
    """An earlier message of the model: its text and calls."""

    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ChatCall], Field(max_length=MAX_TOOLS)] | None = None


class ToolMessage(OpenBody):
    """A function's result; it answers a call of an earlier message."""

    role: Literal["tool"]
    content: str | list[TextPart]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]


class FunctionCallMessage(OpenBody):
    """An earlier call of the model, in the form of `functions`."""

    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    function_call: CalledFunction


class FunctionMessage(OpenBody):
    """The result of a function that an earlier message calls by this name."""

    role: Literal["function"]
    content: str | list[TextPart]
    name: Annotated[str, Field(min_length=1, max_length=256)]


ChatMessage = InstructionMessage | AssistantMessage | ToolMessage | FunctionCallMessage | FunctionMessage


class ChatCompletionRequest(chat_body.ChatBody):
    """The body of a chat completion. Unknown fields are ignored."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]  # type: ignore[assignment]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None  # type: ignore[assignment]
    functions: Annotated[list[Function], Field(max_length=MAX_TOOLS)] | None = None  # type: ignore[assignment]
    """The older form of tools; answered by a `function_call`. Excludes `tools` and `tool_choice`."""


class CompletionRequest(text_body.CompletionBody):
    """The body of a completion of raw text. Unknown fields are ignored."""

    prompt: str | list[str] | list[int] | list[list[int]]


class EmbeddingsRequest(embeddings_body.EmbeddingsBody):
    """The texts to make vectors of, or their token ids. Unknown fields are ignored."""

    input: str | list[str] | list[int] | list[list[int]]


class InputText(OpenBody):
    """Text in an item."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(OpenBody):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText]


class InputCall(OpenBody):
    """A call the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(OpenBody):
    """A function's result; its call is in the conversation."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]


class InputReasoning(OpenBody):
    """The model's reasoning, sent back."""

    type: Literal["reasoning"]


class InputReference(OpenBody):
    """An item of a stored response."""

    type: Literal["item_reference"]
    id: str


class InputCompaction(OpenBody):
    """The item that stands for the earlier part of a conversation, sent back."""

    type: Literal["compaction"]
    encrypted_content: str


InputItem = InputMessage | InputCall | InputCallOutput | InputReasoning | InputReference | InputCompaction


class ResponsesTool(Function):
    """A tool of a response; functions are the only kind."""

    type: Literal["function"]


class ResponseRequest(responses_body.CreateBody):
    """The body of a response. Unknown fields are ignored."""

    input: str | list[InputItem] | None = None
    tools: list[ResponsesTool] | None = None  # type: ignore[assignment]
    stream: bool | None = None
    """Server-sent events instead of one body; without effect on a WebSocket."""


class OllamaFunction(OpenBody):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: Json | None = None


class OllamaTool(OpenBody):
    """A tool of Ollama's API."""

    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaMessage(OpenBody):
    """A message of Ollama's API."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""


class OllamaChatRequest(ollama_body.ChatBody):
    """The body of a chat in Ollama's API. Unknown fields and options are ignored."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES)] | None = None  # type: ignore[assignment]
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS)] | None = None  # type: ignore[assignment]
    options: ollama_body.OptionsBody | None = None  # type: ignore[assignment]


class OllamaGenerateRequest(ollama_body.GenerateBody):
    """The body of a generation in Ollama's API. Unknown fields and options are ignored."""

    options: ollama_body.OptionsBody | None = None  # type: ignore[assignment]


class OllamaModelRequest(OpenBody):
    """The name of a model; `name` is its older form."""

    model: ModelName


class OllamaCopyRequest(OpenBody):
    """A model, and another name for it."""

    source: ModelName
    destination: Annotated[str, Field(min_length=1, max_length=128)]


class OllamaPullRequest(OllamaModelRequest):
    """The model to bring to this machine."""

    stream: bool | None = None
