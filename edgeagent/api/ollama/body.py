"""The bodies of Ollama's API: every field is read once, checked, and converted into edgeagent's types.

Unknown fields and options are ignored. `num_ctx` is ignored too, because the daemon chooses the context length. The
fields `template` and `context` are refused unless they are empty; the error names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError, to_json

from edgeagent.api.wire.body import NOT_SUPPORTED, Body, Settings, between, validate
from edgeagent.api.wire.fields import (
    MAX_INT32,
    MAX_MESSAGES,
    ROLES,
    Arguments,
    EdgeagentBody,
    KeepAlive,
    ModelName,
    Name,
    NumTopLogprobs,
    PlainFunction,
    SamplingBody,
    Stops,
    hosted_tools,
    note_for,
    num_earlier,
    read_schema,
    template_kwargs,
    tools_of,
    with_adapter,
)
from edgeagent.api.wire.latency import asked_latency, with_own_fields
from edgeagent.api.wire.media import Gathered, of_url
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError, InvalidRequest, NotSupported
from edgeagent.service.service import Service
from edgeagent.store.names.parsing import without_latest
from edgeagent.types import (
    MAX_MEDIA,
    MAX_TOOLS,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Media,
    MediaPlace,
    Message,
    OutputFormat,
    Prompt,
    TextFormat,
    TextPrompt,
    ToolCall,
)

LATEST = ":latest"


def line(document: object) -> bytes:
    """Return a document as one line of JSON, with its line break. Ollama's own client fails at blank lines."""
    return to_json(document) + b"\n"


def rfc3339(at: datetime | None = None) -> str:
    """Return a UTC time as RFC 3339 text; the present time if `at` is None."""
    return (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


def tagged(name: str) -> str:
    """Return a model's name as Ollama lists it: with `:latest` if it has no tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def known_name(service: Service, name: str) -> str:
    """Return the service's name for a client's name of a model. In Ollama's API, no tag means `:latest`.

    If the service does not know the name, return it without `:latest`. It may still be the name of a model on disk. If
    not, the request fails later.
    """
    for each in (name, without_latest(name)):
        with suppress(EdgeAgentError):
            return service.models.find(each)
    return without_latest(name)


_LEVELS = ("low", "medium", "high", "max")
# Fields of generate that are refused unless they are empty.
_UNSUPPORTED = {
    "template": "the field template is not supported; leave it out",
    "context": "context is not supported; send the earlier turns to /api/chat instead",
}


class OptionsBody(SamplingBody):
    """The field `options`: sampling parameters as in SamplingBody, the token limit `num_predict`, and stop strings."""

    num_predict: Annotated[int, between(-MAX_INT32, MAX_INT32)] | None = None
    stop: Stops | None = None
    edgeagent: EdgeagentBody | None = None

    @property
    def max_tokens(self) -> int | None:
        """The most tokens to generate; None: no limit. In Ollama's API, a `num_predict` of 0 or less means no limit."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


# The known options, including those that the daemon chooses itself and those of other kinds of models.
OPTIONS = frozenset(
    {
        *OptionsBody.model_fields,
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat", "mirostat_eta", "mirostat_tau"),
        *("num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "tfs_z"),
        *("typical_p", "use_mlock", "use_mmap", "vocab_only"),
    }
)


def _ignored_options(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of options that Ollama follows and this daemon ignores."""
    options = fields.get("options")
    if isinstance(options, Mapping) and options.get("num_ctx") is not None:
        yield "options.num_ctx is ignored: the daemon chooses the length of the context"


class OllamaBody(Settings):
    """The fields that /api/chat and /api/generate share. All but `model` may be null. Unknown fields are ignored."""

    known_options = OPTIONS

    model: ModelName
    stream: bool | None = None
    format: str | Json | None = None
    options: OptionsBody | None = None
    keep_alive: KeepAlive | None = None
    truncate: bool | None = None
    """If the conversation is too long, leave out its oldest turns. False: refuse it instead."""
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None
    service_tier: Name | None = None
    edgeagent: EdgeagentBody | None = None


def _image(text: object) -> Media:
    if not isinstance(text, str):
        raise PydanticCustomError("media", "must be an image in base64")
    return of_url(text if text.startswith("data:") else f"data:image/any;base64,{text}")


Image = Annotated[Media, PlainValidator(_image, json_schema_input_type=str)]
"""An image in base64: PNG, JPEG, WebP, GIF or BMP. A data URL of one is accepted too."""


def _earlier_images(messages: object) -> list[int]:
    """Return the places of the earlier messages with images that are neither the user's nor a tool's."""
    earlier = messages[: num_earlier(messages)] if isinstance(messages, list) else []
    return [
        index
        for index, message in enumerate(earlier)
        if isinstance(message, dict) and message.get("images") and not _may_show(message)
    ]


def _may_show(message: Json) -> bool:
    role = message.get("role")
    return isinstance(role, str) and role.lower() in ("user", "tool")


def _with_notes(messages: Any) -> Any:
    """Put a note in the place of earlier images, as the other APIs do (see `earlier_as_notes`)."""
    if places := _earlier_images(messages):
        messages = list(messages)
        for index in places:
            message, content = messages[index], messages[index].get("content")
            if content is None or isinstance(content, str):
                messages[index] = {**message, "images": None, "content": (content or "") + note_for("image")}
    return messages


def _image_notices(fields: Mapping[str, object]) -> Iterator[str]:
    if places := _earlier_images(fields.get("messages")):
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"messages[{places[0]}].images{more}: left out, because only text can be read here"


class OllamaTool(Settings):
    """A tool of Ollama's API; functions are the only kind."""

    type: Name | None = None
    function: PlainFunction


class OllamaEarlierFunction(Body):
    """The function of an earlier call."""

    name: Name
    arguments: Arguments


class OllamaEarlierCall(Settings):
    """A call in an earlier message of the model."""

    id: Any = None
    function: OllamaEarlierFunction


class OllamaMessage(Settings):
    """A message of Ollama's API. A tool result names its call by `tool_call_id` or by `tool_name`.

    If neither fits a call, the result belongs to the first call that has no result yet.
    """

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        BeforeValidator(lambda role: role.lower() if isinstance(role, str) else role),
    ]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[Image], Field(fail_fast=True, max_length=MAX_MEDIA)] | None = None
    """Only in messages of users and tools. The model sees them before the text."""
    tool_calls: Annotated[list[OllamaEarlierCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_call_id: Any = None
    tool_name: Name | None = None
    name: Name | None = None

    @model_validator(mode="after")
    def _only_what_is_shown(self) -> OllamaMessage:
        if self.images and self.role not in ("user", "tool"):
            raise PydanticCustomError(NOT_SUPPORTED, "images are supported only in messages of users and tools")
        return self


class OllamaChatBody(OllamaBody):
    """The body of /api/chat. Without messages, only load the model, or unload it if `keep_alive` is 0."""

    without_effect = ("shift",)
    notices = (_ignored_options, hosted_tools, _image_notices)

    messages: (
        Annotated[list[OllamaMessage], Field(fail_fast=True, max_length=MAX_MESSAGES), BeforeValidator(_with_notes)]
        | None
    ) = None
    tools: Annotated[list[OllamaTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None


class OllamaGenerateBody(OllamaBody):
    """The body of /api/generate. Without a prompt, only load the model, or unload it if `keep_alive` is 0."""

    without_effect = ("shift", "height", "steps", "width")
    notices = (_ignored_options,)

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: Annotated[list[Image], Field(fail_fast=True, max_length=MAX_MEDIA)] | None = None
    """The model sees them before the prompt."""
    context: Annotated[list[int], Field(fail_fast=True)] | None = None


class OllamaModelBody(Settings):
    """A model's name, in the field `model` or in its older form `name`."""

    model: ModelName

    @model_validator(mode="before")
    @classmethod
    def _read_older(cls, fields: Json) -> Json:
        named = fields.get("model") or fields.get("name")
        return {**fields, "model": named} if named else fields


class OllamaPullBody(OllamaModelBody):
    """The model to download. If `stream` is false, there is one answer at the end instead of a stream."""

    stream: bool | None = None


class OllamaCopyBody(Body):
    """A model (`source`), and another name for it (`destination`)."""

    source: ModelName
    destination: ModelName


@dataclass(frozen=True, slots=True)
class OllamaRequest:
    """A checked body. `model` is the client's name for the model, and `served_model` the service's name for it.

    If the body has no messages and no prompt, `request` is None: the model is only loaded, or unloaded if `is_unload`.
    `is_thinking`: the client asked for reasoning, which not every model supports. `keep_alive_s`: from now on, how long
    the model stays loaded without use; None changes nothing.
    """

    model: str
    served_model: str
    is_streamed: bool
    is_thinking: bool
    request: GenerateRequest | None
    is_unload: bool = False
    keep_alive_s: float | None = None


def read_chat(
    fields: Json, *, request_id: str, served: Callable[[str], str], partition: str = "", may_keep: bool = False
) -> OllamaRequest:
    """Check the body of a chat, and return it; raise InvalidRequest or NotSupported.

    `served`: a function from a client's name for a model to the service's name. `partition`: the client's partition of
    the prefix cache. `may_keep`: the client may set how long the model stays loaded. If it may not, `keep_alive` has no
    effect, with one exception: 0 in a body without messages still asks for an unload.
    """
    body = validate(OllamaChatBody, fields)
    prompt = None
    if body.messages:
        gathered, calls = Gathered(), _OpenCalls()
        prompt = ChatPrompt(
            tuple([_message(each, calls, gathered) for each in body.messages]),
            tools_of(tool.function for tool in body.tools or ()),
            template_kwargs=_read_think(body.think),
            truncate=body.truncate is not False,
            media=gathered.checked("messages"),
        )
    return _asked(body, prompt, request_id, served, partition, may_keep=may_keep)


def read_generate(
    fields: Json, *, request_id: str, served: Callable[[str], str], partition: str = "", may_keep: bool = False
) -> OllamaRequest:
    """Check the body of /api/generate, and return it. The parameters and the errors are those of read_chat."""
    body = validate(OllamaGenerateBody, fields)
    for name, problem in _UNSUPPORTED.items():
        if getattr(body, name):
            raise NotSupported(problem, param=name)
    return _asked(body, _read_prompt(body), request_id, served, partition, may_keep=may_keep)


def _asked(
    body: OllamaBody,
    prompt: Prompt | None,
    request_id: str,
    served: Callable[[str], str],
    partition: str,
    *,
    may_keep: bool,
) -> OllamaRequest:
    options = body.options or OptionsBody()
    is_unload = body.keep_alive == 0 and prompt is None
    kept_s = body.keep_alive if may_keep else None
    output = _read_format(body.format)
    request = None
    # Ollama's own clients send only fields that they know, but any option. So `edgeagent` may be an option.
    own = (body.edgeagent, options.edgeagent)
    model, latency = with_adapter(served(body.model), *own), asked_latency(body.service_tier, *own)
    if prompt is not None:
        request = GenerateRequest(
            id=request_id,
            model=model,
            prompt=prompt,
            sampling=options.sampling(),
            format=output,
            max_tokens=options.max_tokens,
            stop=tuple(options.stop or ()),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            keep_alive_s=kept_s,
        )
        request = with_own_fields(request, latency, *own, partition=partition)
    return OllamaRequest(body.model, model, body.stream is not False, bool(body.think), request, is_unload, kept_s)


def _read_prompt(body: OllamaGenerateBody) -> Prompt | None:
    if not body.prompt:
        return None
    if body.images and (body.suffix or body.raw):
        raise NotSupported("images need the chat template: leave out raw and suffix", param="images")
    if body.suffix:
        return TextPrompt(body.prompt, suffix=body.suffix)
    if body.raw:
        return TextPrompt(body.prompt, parse_special=True)
    gathered = Gathered()
    system = (Message("system", body.system),) if body.system else ()
    user = Message("user", body.prompt, media=gathered.add([(0, image) for image in body.images or ()]))
    return ChatPrompt((*system, user), template_kwargs=_read_think(body.think), media=gathered.checked("images"))


def _read_think(think: bool | str | None) -> str:
    if think is None or isinstance(think, bool):
        return template_kwargs(None, None if think is None else {"enable_thinking": think})
    if think not in _LEVELS:
        raise InvalidRequest(f"think must be true, false, {', '.join(_LEVELS)}, not {think[:64]!r}", param="think")
    return template_kwargs(think, None)


def _read_format(raw: str | Json | None) -> OutputFormat:
    match raw:
        case None | "":
            return TextFormat()
        case "json":
            return JsonObjectFormat()
        case dict(schema):
            return JsonSchemaFormat(read_schema(schema, "format"), strict=False)
    raise InvalidRequest(f'format must be "json" or a JSON schema, not {raw[:64]!r}', param="format")


class _OpenCalls:
    """The calls of the last assistant message that have no result yet.

    Each call gets an id here, since most of Ollama's clients send no ids.
    """

    def __init__(self) -> None:
        self._num = 0
        self._open: list[tuple[object, ToolCall]] = []

    def begin(self) -> None:
        """Forget the open calls, because the next assistant message begins. Later results answer its calls."""
        self._open = []

    def add(self, client_id: object, name: str, arguments: str) -> ToolCall:
        """Add an open call, and return it with a new id. `client_id`: the id that the client sent for it, or None."""
        call = ToolCall(self._next_id(), name, arguments)
        self._open.append((client_id, call))
        return call

    def close(self, client_id: object, name: object) -> str:
        """Remove the call that a result answers from the open calls, and return the call's id.

        The call is found by `client_id`, else by the tool's name, else it is the first open call. If no call is open,
        because the client has left it out, return a new id.
        """
        matches = (
            [entry for entry in self._open if client_id and entry[0] == client_id]
            or [entry for entry in self._open if entry[1].name == name]
            or self._open
        )
        if not matches:
            return self._next_id()
        answered = matches[0]
        self._open.remove(answered)
        return answered[1].id

    def _next_id(self) -> str:
        self._num += 1
        return f"call_{self._num}"


def _message(sent: OllamaMessage, calls: _OpenCalls, gathered: Gathered) -> Message:
    role, content = ROLES[sent.role], sent.content or ""
    match role:
        case "assistant":
            calls.begin()
            made = [calls.add(each.id, each.function.name, each.function.arguments) for each in sent.tool_calls or ()]
            return Message(role, content, sent.thinking or "", tuple(made))
        case "tool":
            name = sent.tool_name or sent.name
            call_id = calls.close(sent.tool_call_id, name or "")
            return Message(role, content, tool_call_id=call_id, name=name or None, media=_media(sent, gathered))
    return Message(role, content, media=_media(sent, gathered))


def _media(sent: OllamaMessage, gathered: Gathered) -> tuple[MediaPlace, ...]:
    return gathered.add([(0, image) for image in sent.images or ()])
