"""The bodies of the Ollama API's chat and generate: every field read once, checked, and turned into our types.

Unknown fields and options are ignored, and so is num_ctx: the daemon chooses a model's context, and Ollama, too,
only reduces one that is too large. A field that would change the answer if it were ignored is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edgeagent.api.wire.fields import (
    MAX_INT32,
    MAX_MESSAGES,
    MAX_TOOLS,
    ROLES,
    Body,
    EdgeagentBody,
    ModelName,
    SamplingBody,
    Stops,
    between,
    drafts_of,
    keep_alive_s,
    read_function,
    read_schema,
    read_tools,
    route_of,
    template_kwargs,
    validate,
    with_adapter,
)
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    Prompt,
    TextFormat,
    TextPrompt,
    Tool,
    ToolCall,
)

_WHOLE_OPTIONS = ("num_predict", "top_k", "repeat_last_n", "seed")
_LEVELS = ("low", "medium", "high", "max")


class OptionsBody(SamplingBody):
    """`options`: Ollama's names are those of SamplingBody, but for the length."""

    num_predict: Annotated[int, between(-MAX_INT32, MAX_INT32)] | None = None
    stop: Stops | None = None
    edgeagent: EdgeagentBody | None = None

    @property
    def max_tokens(self) -> int | None:
        """Return the limit; to Ollama 0 and less mean none."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


class OllamaBody(Body):
    """The fields that chat and generate share; all but the model may be null."""

    model: ModelName
    stream: bool | None = None
    format: str | Json | None = None
    options: Json | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, between(0, 20)] | None = None
    edgeagent: EdgeagentBody | None = None


class ChatBody(OllamaBody):
    """The fields of a chat."""

    messages: Annotated[list[Json], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Json], Field(max_length=MAX_TOOLS)] | None = None


class GenerateBody(OllamaBody):
    """The fields of a generation from one prompt."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    context: list[int] | None = None


# With those that are the daemon's to choose, or that only models of another kind have.
OPTIONS = frozenset(
    {
        *OptionsBody.model_fields,
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat", "mirostat_eta", "mirostat_tau"),
        *("num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "tfs_z"),
        *("typical_p", "use_mlock", "use_mmap", "vocab_only"),
    }
)
KNOWN_CHAT = KnownFields.of(ChatBody, options=OPTIONS)
KNOWN_GENERATE = KnownFields.of(GenerateBody, "height", "steps", "width", options=OPTIONS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request to a model, under the name it used. Without a `request` the model is only loaded, or unloaded.

    `is_thinking` says that reasoning was asked for, which not every model supports.
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
) -> Asked:
    """Return a checked chat; `served` finds the service's name of a model.

    `may_keep`: whether the client may set how long the model stays loaded. If not, its keep_alive has no effect.
    """
    body = validate(ChatBody, fields)
    prompt = None
    if body.messages:
        prompt = ChatPrompt(
            _read_messages(body.messages),
            read_tools(body.tools or [], _read_tool),
            template_kwargs=_read_think(body.think),
        )
    return _asked(body, prompt, request_id, served, partition, may_keep=may_keep)


def read_generate(
    fields: Json, *, request_id: str, served: Callable[[str], str], partition: str = "", may_keep: bool = False
) -> Asked:
    """Return a checked generation from one prompt; the parameters are those of read_chat."""
    body = validate(GenerateBody, fields)
    for name in ("template", "context", "images"):
        if getattr(body, name):
            raise NotSupported(f"{name} is not supported; leave it out, or use /api/chat", param=name)
    return _asked(body, _read_prompt(body), request_id, served, partition, may_keep=may_keep)


def _asked(
    body: OllamaBody,
    prompt: Prompt | None,
    request_id: str,
    served: Callable[[str], str],
    partition: str,
    *,
    may_keep: bool,
) -> Asked:
    options = validate(OptionsBody, _usual_options(body.options or {}), "options")
    kept_s = None if body.keep_alive is None else keep_alive_s(body.keep_alive)
    is_unload = kept_s == 0 and prompt is None
    kept_s = kept_s if may_keep else None
    output = _read_format(body.format)
    request = None
    model = with_adapter(served(body.model), body.edgeagent, options.edgeagent)
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
            cache=CachePolicy(partition=partition),
            # Ollama's own clients send only fields that they know, but they send any option.
            route=route_of(body.edgeagent, options.edgeagent),
            draft_tokens=drafts_of(body.edgeagent, options.edgeagent),
            keep_alive_s=kept_s,
        )
    return Asked(body.model, model, body.stream is not False, bool(body.think), request, is_unload, kept_s)


def _read_prompt(body: GenerateBody) -> Prompt | None:
    if not body.prompt:
        return None
    if body.suffix:
        return TextPrompt(body.prompt, suffix=body.suffix)
    if body.raw:
        return TextPrompt(body.prompt, parse_special=True)
    system = (Message("system", body.system),) if body.system else ()
    return ChatPrompt((*system, Message("user", body.prompt)), template_kwargs=_read_think(body.think))


def _usual_options(options: Json) -> Json:
    """Return the options as llama-server has them: integers, which Ollama also takes as 40.0, and no -1."""
    usual = dict(options)
    for name in _WHOLE_OPTIONS:
        value = usual.get(name)
        if isinstance(value, float) and value.is_integer():
            usual[name] = int(value)
    if usual.get("repeat_last_n") == -1:
        usual["repeat_last_n"] = MAX_INT32
    if usual.get("top_k") == -1:
        usual["top_k"] = 0
    match usual.get("stop"):
        case "":
            del usual["stop"]
        case list(stops):
            usual["stop"] = [stop for stop in stops if stop != ""]
    return usual


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
            return JsonSchemaFormat(read_schema(schema, "format"))
    raise InvalidRequest(f'format must be "json" or a JSON schema, not {raw[:64]!r}', param="format")


def _read_tool(fields: Json, path: str) -> Tool:
    match fields:
        case {"function": dict(function)}:
            return read_function({**function, "strict": None}, f"{path}.function")
    raise InvalidRequest(f'{path} must be {{"type": "function", "function": {{…}}}}', param=path)


class _OpenCalls:
    """The last message's calls that have no result yet. They get ids here, since most of Ollama's clients send none."""

    def __init__(self) -> None:
        self._num = 0
        self._open: list[tuple[object, ToolCall]] = []

    def begin(self) -> None:
        """Begin another message of the assistant: from here on results answer its calls."""
        self._open = []

    def add(self, client_id: object, name: str, arguments: str) -> ToolCall:
        """Return the call under its own id."""
        call = ToolCall(self._next_id(), name, arguments)
        self._open.append((client_id, call))
        return call

    def close(self, client_id: object, name: object) -> str:
        """Return the id of the call that a result answers: 1. by its id, 2. by its tool's name, 3. by order.

        A result whose call was cut from the history gets an id of its own.
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


def _read_messages(raw: Sequence[Json]) -> tuple[Message, ...]:
    calls = _OpenCalls()
    return tuple(_read_message(fields, calls, f"messages[{index}]") for index, fields in enumerate(raw))


def _read_message(fields: Json, calls: _OpenCalls, path: str) -> Message:
    role = ROLES.get(str(fields.get("role")).lower())
    if role is None:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(ROLES)}, not {fields.get('role')!r:.80}", param=f"{path}.role"
        )
    if fields.get("images"):
        raise NotSupported(f"{path}.images: images are not supported; only text is", param=f"{path}.images")
    content = _text(fields, "content", path)
    match role:
        case "assistant":
            calls.begin()
            made = _read_calls(fields.get("tool_calls"), calls, f"{path}.tool_calls")
            return Message(role, content, _text(fields, "thinking", path), made)
        case "tool":
            name = _text(fields, "tool_name", path) or _text(fields, "name", path)
            return Message(role, content, tool_call_id=calls.close(fields.get("tool_call_id"), name), name=name or None)
    return Message(role, content)


def _text(fields: Json, name: str, path: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise InvalidRequest(f"{path}.{name} must be a string, not {value!r:.80}", param=f"{path}.{name}")
    return value or ""


def _read_calls(raw: object, calls: _OpenCalls, path: str) -> tuple[ToolCall, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) > MAX_TOOLS:
        raise InvalidRequest(f"{path} must be a list of at most {MAX_TOOLS} calls", param=path)
    made: list[ToolCall] = []
    for index, call in enumerate(raw):
        match call:
            case {"function": {"name": str(name), "arguments": dict(arguments)}}:
                text = json.dumps(arguments, ensure_ascii=False)
                made.append(calls.add(call.get("id"), name, text))
            case _:
                raise InvalidRequest(
                    f"{path}[{index}] must have a function with a name and arguments (an object)",
                    param=f"{path}[{index}]",
                )
    return tuple(made)
