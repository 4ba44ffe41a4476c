"""Any JSON in a chat completion's fields gives a request or an InvalidRequest, never an internal failure."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeagent.api.openai.chat_body import ChatBody, read_chat
from edgeagent.errors import InvalidRequest
from edgeagent.types import AnswerSoFar, ChatPrompt, GenerateRequest, Message
from tests.examples import examples

NAMES = sorted(ChatBody.model_fields)
TEXT = st.text(max_size=8) | st.sampled_from(
    ["user", "assistant", "tool", "text", "function", "auto", "required", "json_schema", "json_object", "c1", "-1", "7"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, -1, 1, 2, 20, 21, 2**31 - 1, 2**31, 2**32])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
KEYS = st.sampled_from(["role", "content", "type", "text", "tool_calls", "tool_call_id", "id", "function", "name"])
KEYS |= st.sampled_from(
    ["arguments", "parameters", "strict", "schema", "json_schema", "mode", "tools", "include_usage"]
)
VALUES = st.recursive(
    SCALARS, lambda child: st.lists(child, max_size=3) | st.dictionaries(KEYS | TEXT, child, max_size=4), max_leaves=12
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
        optional={"content": VALUES, "tool_calls": VALUES, "tool_call_id": TEXT, "name": VALUES},
    ),
    max_size=4,
)
FIELDS = st.builds(
    lambda messages, other: {**other, "messages": messages},
    st.just([{"role": "user", "content": "hi"}]) | MESSAGES | VALUES,
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
)


@settings(max_examples=examples(500), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(FIELDS)
def test_any_fields(fields: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidRequest):
        completion = read_chat(fields, completion_id="chatcmpl-1", default_model="fake")
        for request in completion.requests:
            # An accepted request can be encoded for the worker's pipe, and decodes to the same value.
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerateRequest) == request


@settings(max_examples=examples(200))
@given(st.sampled_from(NAMES), VALUES)
def test_one_field_beside_a_message(name: str, value: Any) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], name: value}
    try:
        read_chat(fields, completion_id="chatcmpl-1", default_model="fake")
    except InvalidRequest as error:
        assert error.param is not None
        assert len(error.message) < 500


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_minus_one_is_no_limit_as_to_llama_server(name: str) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], name: -1, "repeat_last_n": -1}
    [request] = read_chat(fields, completion_id="x", default_model="m").requests
    assert (request.max_tokens, request.sampling.repeat_last_n) == (None, -1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "messages is required"),
        ({"messages": []}, "messages must hold at least 1 item"),
        ({"messages": "x"}, "messages must be a list, not 'x'"),
        ({"messages": ["x"]}, "messages[0] must be an object, not 'x'"),
        ({"stop": 5}, "stop must be a string or a list of strings, not 5"),
        ({"stop": ["a"] * 17}, "stop must hold at most 16 items"),
        ({"stream_options": "x"}, "stream_options must be an object, not 'x'"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias must hold at most 1024 items"),
        ({"n": True}, "n must be a valid integer, not true"),
        ({"messages": None}, "messages must be a list, not null"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is required"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "messages[0].role must be one of system, developer, user, assistant, tool, function, not 'wizard'",
        ),
        (
            {"messages": [{"role": "user", "content": {}}]},
            "messages[0].content must be a string or a list of parts, not an object",
        ),
        (
            {"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages[0].content[1]: the type 'image_url' is not supported; send text, input_text, output_text, "
            "summary_text, refusal",
        ),
        ({"tools": [{"type": 5}]}, "tools[0].type must be one of function, not 5"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name must match [A-Za-z0-9_.:/-]{1,128}, not 'a b'",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters of tool 'f' must be a JSON schema, an object, not a list",
        ),
    ],
)
def test_a_refusal_speaks_of_json(fields: dict[str, Any], message: str) -> None:
    messages = {} if "messages" in fields or not fields else {"messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(InvalidRequest) as refused:
        read_chat({**messages, **fields}, completion_id="chatcmpl-1", default_model="fake")
    assert refused.value.message == message


def test_an_answer_that_is_to_go_on_is_no_part_of_the_conversation() -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel", "reasoning_content": "hm"}]
    fields = {"messages": said, "continue_final_message": True, "add_generation_prompt": False}
    (request,) = read_chat(fields, completion_id="c", default_model="m").requests
    assert request.so_far == AnswerSoFar("Hel", "hm")
    assert request.prompt == ChatPrompt((Message("user", "Hi"),))
    (plain,) = read_chat({"messages": said}, completion_id="c", default_model="m").requests
    assert plain.so_far is None and plain.prompt == ChatPrompt(
        (Message("user", "Hi"), Message("assistant", "Hel", "hm"))
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True, "messages": [{"role": "user", "content": "Hi"}]}, "continue_final_message"),
        (
            {"continue_final_message": True, "messages": [{"role": "assistant", "content": "Hi"}]},
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_go_on_is_refused(fields: dict[str, Any], param: str) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    with pytest.raises(InvalidRequest) as caught:
        read_chat({"messages": said} | fields, completion_id="c", default_model="m")
    assert caught.value.param == param
