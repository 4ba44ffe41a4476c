"""The body of POST /v1/embeddings: checked, and turned into an Embed query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from edgeagent.api.openai.text_body import TextsOrTokens, read_tokens
from edgeagent.api.wire.fields import MAX_INT32, ModelName, Settings, between, validate
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.types import Embed, TextPrompt, TokenPrompt

MAX_INPUTS = 2048
MAX_CHARS = 1 << 20  # of all texts together


class EmbeddingsBody(Settings):
    """The texts to embed, or their token ids. `dimensions`: return only this many of a vector's first values.

    Unknown fields are ignored.
    """

    input: TextsOrTokens
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, between(1, MAX_INT32)] | None = None


KNOWN = KnownFields.of(EmbeddingsBody, "user")


def read_embeddings(fields: Json) -> tuple[EmbeddingsBody, Embed]:
    """Check a body; return it and its Embed query. Raise InvalidRequest, which names the field or input at fault."""
    body = validate(EmbeddingsBody, fields)
    return body, Embed(read_inputs(body.input, "input"), dimensions=body.dimensions)


def read_inputs(raw: str | Sequence[object], name: str) -> tuple[TextPrompt | TokenPrompt, ...]:
    """Check the inputs to embed, and return them; raise InvalidRequest.

    `raw`: one text, one list of token ids, or a list of texts and lists of token ids. `name`: the field's name, for the
    error.
    """
    match raw:
        case str() | [int(), *_]:
            inputs = [_read_input(raw, name)]
        case []:
            raise InvalidRequest(f"{name} is empty; it must be text, token ids, or a list of either", param=name)
        case _:
            if len(raw) > MAX_INPUTS:
                raise InvalidRequest(f"{name} holds {len(raw)} texts; at most {MAX_INPUTS} at a time", param=name)
            inputs = [_read_input(item, f"{name}[{index}]") for index, item in enumerate(raw)]
    num_chars = sum(len(text.text) for text in inputs if isinstance(text, TextPrompt))
    if num_chars > MAX_CHARS:
        raise InvalidRequest(f"{name} has {num_chars} characters; at most {MAX_CHARS} at a time", param=name)
    return tuple(inputs)


def _read_input(raw: object, path: str) -> TextPrompt | TokenPrompt:
    match raw:
        case "" | []:
            raise InvalidRequest(f"{path} is empty; it must have at least one token", param=path)
        case str():
            return TextPrompt(raw)
        case list():
            return TokenPrompt(read_tokens(raw, path))
    raise InvalidRequest(f"{path} must be text or a list of token ids, not {raw!r:.80}", param=path)
