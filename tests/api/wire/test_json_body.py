"""The JSON of a body: one object, parsed strictly; a large one in a thread; unknown fields told and logged."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from starlette.requests import Request
from starlette.types import Message

from edgeagent.api.wire.body import (
    MAX_INLINE_BYTES,
    WARNINGS_KEY,
    Body,
    WarningLog,
    Warnings,
    read_body,
    read_valid,
    run_inline_or_in_thread,
    warnings_for,
)
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest


class Known(Body):
    model: object = None
    input: object = None


def request_of(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    return Request({"type": "http", "headers": [], WARNINGS_KEY: Warnings(WarningLog())}, receive)


def told(request: Request) -> list[str]:
    return [text.decode() for _, text in warnings_for(request).headers()]


class Numbered(Body):
    a: int


def same(fields: Json) -> Json:
    return fields


def thread_of(_: object = None) -> int:
    return threading.get_ident()


async def test_an_object_is_returned() -> None:
    assert await read_body(request_of(b' {"a": [1, null], "b": {}} '), same) == {"a": [1, None], "b": {}}
    assert await read_body(request_of(b"{}"), same) == {}


async def test_a_models_fields_are_checked_and_others_ignored() -> None:
    assert await read_valid(request_of(b'{"a":1,"b":2}'), Numbered) == Numbered(a=1)
    with pytest.raises(InvalidRequest) as caught:
        await read_valid(request_of(b'{"a":"1"}'), Numbered)
    assert caught.value.param == "a"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[{}]", "a list"),
        (b'"{}"', "a string"),
        (b"5", "a number"),
        (b"0.5", "a number"),
        (b"true", "a boolean"),
        (b"null", "null"),
    ],
)
async def test_another_value_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^the body must be a JSON object, not {kind}$") as caught:
        await read_body(request_of(body), same)
    assert caught.value.param is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the text is not valid JSON: Expecting value at line 1, column 1"),
        (b"{", "the text is not valid JSON: "),
        (b'{"a":NaN}', "NaN is not valid JSON"),
        (b'{"a":1,"a":2}', "the key 'a' appears twice in one object"),
    ],
)
async def test_a_body_is_parsed_strictly(body: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read_body(request_of(body), same)
    assert caught.value.message.startswith(told)


async def test_the_readers_value_and_its_errors_reach_the_caller() -> None:
    def refuse(fields: Json) -> None:
        raise InvalidRequest("no", param=next(iter(fields)))

    assert await read_body(request_of(b'{"a":1}'), lambda fields: fields["a"] + 1) == 2
    with pytest.raises(InvalidRequest) as caught:
        await read_body(request_of(b'{"a":1}'), refuse)
    assert caught.value.param == "a"


@pytest.mark.parametrize("num_bytes", [MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1])
async def test_a_large_body_is_read_in_a_thread(num_bytes: int) -> None:
    body = b"{}".ljust(num_bytes)
    is_inline = await read_body(request_of(body), thread_of) == threading.get_ident()
    assert is_inline == (num_bytes <= MAX_INLINE_BYTES)


@pytest.mark.parametrize("num_bytes", [0, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1])
async def test_the_size_chooses_the_thread(num_bytes: int) -> None:
    is_inline = await run_inline_or_in_thread(num_bytes, thread_of) == threading.get_ident()
    assert is_inline == (num_bytes <= MAX_INLINE_BYTES)


async def test_unknown_fields_are_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    request = request_of(b'{"inptu":"my secret","model":"m"}')
    assert await read_body(request, lambda fields: fields["model"], Known) == "m"
    assert told(request) == ["unknown fields: inptu (did you mean input?)"]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "1 unknown field, perhaps meant as input" in record.getMessage()
    assert "secret" not in caplog.text


async def test_a_refused_body_has_its_unknown_fields_told_too(caplog: pytest.LogCaptureFixture) -> None:
    request = request_of(b'{"inptu":"a"}')
    with pytest.raises(KeyError):
        await read_body(request, lambda fields: fields["input"], Known)
    assert told(request) == ["unknown fields: inptu (did you mean input?)"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("known", [None, Known])
async def test_nothing_is_told_without_an_unknown_field(
    known: type[Body] | None, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"model": "m"} if known else {"anything": 1}
    request = request_of(json.dumps(fields).encode())
    assert await read_body(request, lambda fields: fields, known) == fields
    assert told(request) == []
    assert caplog.records == []
