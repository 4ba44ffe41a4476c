"""The bodies of Anthropic's Messages API: every field is read once, checked, and converted into edgeagent's types.

A field that is not supported is refused by name if ignoring it would change what the answer is made from. Fields that
say how a prompt is cached have no effect, because the prefix cache finds every prompt by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Annotated, Any, Literal, NotRequired, final

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter
from pydantic_core import PydanticCustomError

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent.api.wire.addresses import is_address
from edgeagent.api.wire.body import NOT_SUPPORTED, Body, Settings, between, validate
from edgeagent.api.wire.fields import (
    MAX_INT32,
    MAX_MESSAGES,
    Arguments,
    By,
    Count,
    EdgeagentBody,
    Effort,
    Function,
    HostedTool,
    ModelName,
    Name,
    OutputContent,
    Parameters,
    SamplingBody,
    Schema,
    Stops,
    TemplateKwargs,
    earlier_as_notes,
    earlier_notices,
    left_out,
    template_kwargs,
    tool_choice_of,
    tools_of,
    values_of,
    with_adapter,
)
from edgeagent.api.wire.latency import asked_latency, with_own_fields
from edgeagent.api.wire.media import Gathered, Said, of_url, said_of
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    MAX_TOOLS,
    AnswerSoFar,
    ChatPrompt,
    GenerateRequest,
    JsonSchemaFormat,
    Media,
    MediaPlace,
    Message,
    TextFormat,
    Tool,
    ToolCall,
    ToolChoice,
    replace,
)

# Claude Code begins its system prompt with this block. The block differs in each request, so nothing behind it would be
# found in the prefix cache. vLLM leaves it out too.
_BILLING_PREFIX = "x-anthropic-billing-header:"
_BREAK = "\n\n"


# A conversation has many blocks, and pydantic makes a dict in half the time of a model.
@final
class TextBlock(TypedDict):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: NotRequired[Any]


@final
class ImageSource(TypedDict):
    """An image in base64, or its address (`url`). An uploaded file (`file`) is refused."""

    type: Literal["base64", "url", "file"]
    media_type: NotRequired[str | None]
    data: NotRequired[str | None]
    url: NotRequired[str | None]


_SOURCE: TypeAdapter[ImageSource] = TypeAdapter(ImageSource)


def _source(value: object) -> Media:
    source = _SOURCE.validate_python(value)
    url, data = source.get("url") or "", source.get("data")
    if source["type"] == "url" and is_address(url):
        return of_url(url)
    if source["type"] != "base64" or data is None:
        message = "must have the type base64 or url: there are no uploaded files here"
        raise PydanticCustomError(NOT_SUPPORTED, message)
    return of_url(f"data:image/any;base64,{data}")


@final
class ImageBlock(TypedDict):
    """An image: PNG, JPEG, WebP, GIF or BMP. Its first bytes say which, so `media_type` has no effect."""

    type: Literal["image"]
    source: Annotated[Media, PlainValidator(_source, json_schema_input_type=ImageSource)]
    cache_control: NotRequired[Any]


@final
class ThinkingBlock(TypedDict):
    """Reasoning, in an earlier message of the model. Its signature is not checked."""

    type: Literal["thinking"]
    thinking: str


@final
class RedactedThinkingBlock(TypedDict):
    """Reasoning that only Anthropic can read. It is left out."""

    type: Literal["redacted_thinking"]


@final
class ToolUseBlock(TypedDict):
    """A call in an earlier message of the model."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: Arguments
    cache_control: NotRequired[Any]


@final
class ToolResultBlock(TypedDict):
    """The result of a call in an earlier message. `tool_use_id` is the id of the call."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: NotRequired[OutputContent]
    cache_control: NotRequired[Any]


def _as_blocks(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of blocks")
    return content


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, By("type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, By("type")]
# The model itself says no images. An image that its message does not hold cannot be read; see `earlier_as_notes`.
_BLOCK_KINDS = (values_of(UserBlock, "type") | values_of(AssistantBlock, "type")) - {"image"}
Texts = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock]),
]
UserBlocks = Annotated[
    list[UserBlock],
    Field(fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[UserBlock]),
]
AssistantBlocks = Annotated[
    list[AssistantBlock],
    Field(fail_fast=True),
    BeforeValidator(_as_blocks, json_schema_input_type=str | list[AssistantBlock]),
]


class InlineSystemMessage(Body):
    """Instructions that begin to hold within a conversation."""

    role: Literal["system"]
    content: Texts


class UserMessage(Body):
    """What the user says, and the results of the calls in the message before."""

    role: Literal["user"]
    content: UserBlocks


class EarlierAnswer(Body):
    """An earlier message of the model. As the last message, it is the beginning of the answer."""

    role: Literal["assistant"]
    content: AssistantBlocks


AnthropicMessage = Annotated[UserMessage | EarlierAnswer | InlineSystemMessage, By("role")]


class AnthropicTool(Function):
    """A function that the model may call."""

    type: Literal["custom"] = "custom"
    parameters: Annotated[
        Parameters | None,
        Field(
            alias="input_schema",
            description="A JSON schema of the arguments, an object. With over 64 KiB or 32 levels, any object fits.",
        ),
    ] = None
    cache_control: Json | None = None


class AnthropicToolChoice(Settings):
    """Whether the model may, must or must not call tools. `any`: it calls one. `tool`: it calls the one named `name`.

    With `disable_parallel_tool_use` it makes at most one call.
    """

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Settings):
    """Whether the model reasons before it answers, if it can.

    `budget_tokens` has no effect: the model decides how long it reasons. With `display: omitted`, reasoning is sent
    without its text.
    """

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonOutput(Body):
    """A JSON schema that the answer's text follows. A schema that cannot be followed is refused."""

    type: Literal["json_schema"]
    json_schema: Annotated[Schema, Field(alias="schema")]


class OutputConfig(Settings):
    """The form of the answer. The chat template decides what `effort` does."""

    effort: Effort | None = None
    format: JsonOutput | None = None


def _ignored(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of fields and tools that Anthropic's API follows and this daemon does not."""
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and (tool.get("type") or "custom") != "custom":
            yield left_out(tool, f"tools[{index}]")
    match fields.get("thinking"):
        case {"budget_tokens": int()}:
            yield "thinking.budget_tokens is ignored: the model decides how long it reasons"
    if fields.get("context_management"):
        yield "context_management is ignored: the whole conversation is the prompt"


# Fields that would change what the answer is made from, with advice.
_UNSUPPORTED = {
    "compaction": "ask for a summary in a message",
    "container": "no code is run here",
    "inference_geo": "where a request runs is said by edgeagent.route",
    "mcp_servers": "call their tools from the client",
    "output_format": "send output_config.format",
}


class CountTokensBody(Settings):
    """A conversation whose tokens are counted. All fields but `model` and `messages` may be null."""

    without_effect = (
        *(*_UNSUPPORTED, "thread"),
        *("billing_policy", "context_management", "diagnostics", "fallback_credit_token", "fallbacks", "metadata"),
        "speed",
    )
    notices = (_ignored, earlier_notices("messages", _BLOCK_KINDS))

    model: ModelName
    messages: Annotated[
        list[AnthropicMessage],
        Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
        earlier_as_notes(_BLOCK_KINDS),
    ]
    system: Texts | None = None
    tools: (
        Annotated[
            list[Annotated[AnthropicTool | HostedTool, By("type", "custom")]],
            Field(fail_fast=True, max_length=MAX_TOOLS),
        ]
        | None
    ) = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Json | None = None
    service_tier: Name | None = None
    """OpenAI's names have their meaning; Anthropic's own, "auto" and "standard_only", name no tier."""
    edgeagent: EdgeagentBody | None = None

    @property
    def served_model(self) -> str:
        """The model, with the adapter if the request names one."""
        return with_adapter(self.model, self.edgeagent)

    @property
    def is_cache_marked(self) -> bool:
        """Whether the client marks what is to be cached."""
        blocks = [block for message in self.messages for block in message.content] + [*(self.system or ())]
        tools = [tool.cache_control for tool in self.tools or () if isinstance(tool, AnthropicTool)]
        return any((self.cache_control, *tools, *(block.get("cache_control") for block in blocks)))

    def prompt(self) -> ChatPrompt:
        """Return the conversation with its tools; raise InvalidRequest for a result or a choice that fits no tool."""
        tools = tools_of(tool for tool in self.tools or () if isinstance(tool, AnthropicTool))
        choice, thinking = self.tool_choice, self.thinking
        effort = None if self.output_config is None else self.output_config.effort
        variables: TemplateKwargs = {}
        if thinking is not None:
            variables["enable_thinking"] = thinking.type in ("enabled", "adaptive")
        gathered = Gathered()
        return ChatPrompt(
            messages=_to_messages(self, gathered),
            tools=tools,
            tool_choice=_read_choice(choice, tools),
            parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
            template_kwargs=template_kwargs(effort, variables),
            media=gathered.checked("messages"),
        )


class MessagesBody(CountTokensBody, SamplingBody):
    """The body of a message. All fields but `model`, `messages` and `max_tokens` may be null.

    Unknown fields are ignored.
    """

    max_tokens: Annotated[int, between(0, MAX_INT32)]
    stop_sequences: Stops | None = None
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class MessageCreate:
    """A checked message: the request, and how its answer is written.

    `shows_thinking`: reasoning is sent with its text. `is_cache_marked`: the client marks what is to be cached, so it
    is told what was written to the cache.
    """

    request: GenerateRequest
    is_streamed: bool
    shows_thinking: bool
    is_cache_marked: bool


def read_message(fields: Json, *, request_id: str, partition: str = "") -> MessageCreate:
    """Check the body of a message, and return it; raise InvalidRequest or NotSupported.

    `partition`: the client's partition of the prefix cache.
    """
    body = validate(MessagesBody, fields)
    _refuse_unsupported(fields)
    prompt, so_far = _split_answer(body.prompt())
    latency = asked_latency(body.service_tier, body.edgeagent)
    output = None if body.output_config is None else body.output_config.format
    request = GenerateRequest(
        id=request_id,
        model=body.served_model,
        prompt=prompt,
        sampling=body.sampling(),
        format=TextFormat() if output is None else JsonSchemaFormat(output.json_schema),
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        so_far=so_far,
    )
    request = with_own_fields(request, latency, body.edgeagent, partition=partition)
    is_omitted = body.thinking is not None and body.thinking.display == "omitted"
    return MessageCreate(request, bool(body.stream), not is_omitted, body.is_cache_marked)


def read_count(fields: Json) -> GenerateRequest:
    """Check a body whose tokens are counted, and return a request with its prompt. The errors are read_message's."""
    body = validate(CountTokensBody, fields)
    _refuse_unsupported(fields)
    return GenerateRequest(id="", model=body.served_model, prompt=body.prompt())


class ThreadNotSupported(NotSupported):
    """The daemon holds no thread of Anthropic's API. The client sends the whole conversation instead."""

    # Anthropic's own code. Its client then continues without a thread.
    code = "thread_unsupported_request"


def _refuse_unsupported(fields: Json) -> None:
    if fields.get("thread"):
        raise ThreadNotSupported("thread is not supported: send the whole conversation in messages", param="thread")
    for name, advice in _UNSUPPORTED.items():
        if fields.get(name):
            raise NotSupported(f"{name} is not supported: {advice}", param=name)


def _read_choice(choice: AnthropicToolChoice | None, tools: Sequence[Tool]) -> ToolChoice:
    match choice:
        case None:
            return ToolChoice()
        case AnthropicToolChoice(type="tool", name=None):
            raise InvalidRequest("tool_choice.name is required: it names the tool to call", param="tool_choice.name")
        case AnthropicToolChoice(type="tool", name=str(name)):
            return tool_choice_of("required", (name,), tools)
    return tool_choice_of("required" if choice.type == "any" else choice.type, (), tools)


def _split_answer(prompt: ChatPrompt) -> tuple[ChatPrompt, AnswerSoFar | None]:
    """Return the prompt, and the beginning of its answer: a last message of the assistant. None if there is none."""
    *before, last = prompt.messages
    if last.role != "assistant" or last.tool_calls or not before:
        return prompt, None
    so_far = AnswerSoFar(last.content, last.reasoning) if last.content or last.reasoning else None
    return replace(prompt, messages=tuple(before)), so_far


def _to_messages(body: CountTokensBody, gathered: Gathered) -> tuple[Message, ...]:
    messages: list[Message] = []
    calls: set[str] = set()
    if system := _joined([text for text in _texts(body.system or ()) if not text.startswith(_BILLING_PREFIX)]):
        messages.append(Message("system", system))
    for index, sent in enumerate(body.messages):
        match sent:
            case InlineSystemMessage():
                messages.append(Message("system", _joined(_texts(sent.content))))
            case UserMessage():
                messages += _of_user(sent.content, f"messages[{index}].content", calls, gathered)
            case EarlierAnswer():
                messages.append(_of_assistant(sent.content))
                calls.update(call.id for call in messages[-1].tool_calls)
    return tuple(_turns(messages))


def _turns(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield consecutive messages of the user or of the model as one, as Anthropic does. Many templates need it."""
    for role, group in groupby(messages, lambda message: message.role):
        turn = list(group)
        if role not in ("user", "assistant") or len(turn) == 1:
            yield from turn
        elif role == "user":
            yield _one_turn([each for each in turn if each.content or each.media])
        else:
            yield Message(
                "assistant",
                "".join([each.content for each in turn]),
                "".join([each.reasoning for each in turn]),
                tuple(chain.from_iterable(each.tool_calls for each in turn)),
            )


def _one_turn(turn: Sequence[Message]) -> Message:
    """Return messages of the user as one: their texts as paragraphs, with the media where they were."""
    text = ""
    media: list[MediaPlace] = []
    for index, each in enumerate(turn):
        text += _BREAK if index else ""
        media += [MediaPlace(len(text) + place.offset, place.index) for place in each.media]
        text += each.content
    return Message("user", text, media=tuple(media))


def _of_user(blocks: Sequence[UserBlock], path: str, calls: set[str], gathered: Gathered) -> Iterator[Message]:
    """Yield the results, then the text. The model's calls come before the message, and the results belong to them."""
    results = [(index, block) for index, block in enumerate(blocks) if block["type"] == "tool_result"]
    for index, block in results:
        if block["tool_use_id"] not in calls:
            place = f"{path}[{index}].tool_use_id"
            raise InvalidRequest(
                f"{place} {block['tool_use_id']!r:.80} answers no tool_use of an earlier message", param=place
            )
        result = block.get("content", Said(""))
        yield Message("tool", result.text, tool_call_id=block["tool_use_id"], media=gathered.add(result.media))
    if len(results) < len(blocks) or not results:
        said = said_of(
            [
                block["text"] if block["type"] == "text" else block["source"]
                for block in blocks
                if block["type"] != "tool_result"
            ],
            _BREAK,
        )
        yield Message("user", said.text, media=gathered.add(said.media))


def _of_assistant(blocks: Sequence[AssistantBlock]) -> Message:
    return Message(
        "assistant",
        "".join(_texts(blocks)),
        "".join([block["thinking"] for block in blocks if block["type"] == "thinking"]),
        tuple([ToolCall(each["id"], each["name"], each["input"]) for each in blocks if each["type"] == "tool_use"]),
    )


def _texts(blocks: Iterable[UserBlock | AssistantBlock]) -> list[str]:
    return [block["text"] for block in blocks if block["type"] == "text"]


def _joined(texts: Sequence[str]) -> str:
    """Return the texts of blocks as paragraphs. The blocks of an answer are joined without a break instead."""
    return _BREAK.join(texts)
