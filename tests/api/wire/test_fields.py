"""The fields that several routes share: their bounds, the texts of their refusals, and what they become."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field, TypeAdapter
from pydantic_core import PydanticCustomError

from edgeagent.api.openai.chat_body import ChatBody
from edgeagent.api.wire.body import NOT_SUPPORTED, Body, Query, between, validate
from edgeagent.api.wire.fields import (
    MAX_INT32,
    MAX_NAME_CHARS,
    MAX_SEED,
    MAX_STOP_BYTES,
    MAX_STOPS,
    Count,
    EdgeagentBody,
    Fraction,
    MaxTokens,
    ModelName,
    SamplingBody,
    Stops,
    TemplateKwargs,
    drafts_of,
    keep_alive_s,
    route_of,
    template_kwargs,
    tool_choice_of,
    with_adapter,
)
from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.types import RouteMode, SamplingParams, Tool, ToolChoice


def _never(_: object) -> object:
    raise PydanticCustomError(NOT_SUPPORTED, "send text instead")


class Inner(Body):
    size: Annotated[int, between(1, 3)] = 1
    sizes: list[int] = Field(default=[], max_length=2)


class Outer(Body):
    """A body with one field of each kind."""

    share: Fraction | None = None
    count: Count | None = None
    most: MaxTokens | None = None
    model: ModelName | None = None
    stop: Stops | None = None
    inner: Inner | None = None
    messages: Annotated[list[int], Field(min_length=1)] = [0]
    flag: bool = False
    kind: Literal["a", "b"] = "a"
    code: Annotated[str, Field(pattern="^[a-z]{2}$", max_length=2)] = "aa"
    short: Annotated[str, Field(max_length=1)] = ""
    either: bool | str | int = False
    kwargs: TemplateKwargs = {}
    picture: Annotated[object, BeforeValidator(_never)] = None


class Needed(Body):
    input: str


class Page(Query):
    limit: int = 20
    is_full: bool = False
    part: float = 0.0


def refusal(model: type[Body], fields: object, path: str = "") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        validate(model, fields, path)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"share": 1.01}, "share must be from 0 to 1, not 1.01"),
        ({"share": math.nan}, "share must be from 0 to 1, not nan"),
        ({"share": math.inf}, "share must be from 0 to 1, not inf"),
        ({"share": "0.5"}, "share must be a valid number, not '0.5'"),
        ({"count": 0}, f"count must be from 1 to {MAX_INT32}, not 0"),
        ({"count": MAX_INT32 + 1}, f"count must be from 1 to {MAX_INT32}, not {MAX_INT32 + 1}"),
        ({"count": True}, "count must be a valid integer, not true"),
        ({"most": -2}, f"most must be from -1 to {MAX_INT32}, not -2"),
        ({"model": ""}, "model must have at least 1 character, not ''"),
        ({"short": "ab"}, "short must have at most 1 character, not 'ab'"),
        ({"inner": []}, "inner must be an object, not a list"),
        ({"messages": []}, "messages must hold at least 1 item"),
        ({"messages": {}}, "messages must be a list, not an object"),
        ({"inner": {"sizes": [1, 2, 3]}}, "inner.sizes must hold at most 2 items"),
        ({"flag": 1}, "flag must be true or false, not 1"),
        ({"flag": None}, "flag must be true or false, not null"),
        ({"kind": "c"}, "kind must be 'a' or 'b', not 'c'"),
        ({"code": "A"}, "code must match [a-z]{2}, not 'A'"),
    ],
)
def test_a_refusal_names_the_field_and_what_it_must_be(fields: dict[str, Any], message: str) -> None:
    error = refusal(Outer, fields)
    assert error.message == message
    assert error.param == message.split(" ", 1)[0]
    assert type(error) is InvalidRequest


def test_the_ends_of_a_range_are_allowed() -> None:
    low, high = {"share": 0, "count": 1, "most": -1}, {"share": 1, "count": MAX_INT32, "most": MAX_INT32}
    for fields in (low, high):
        outer = validate(Outer, fields)
        assert {"share": outer.share, "count": outer.count, "most": outer.most} == fields


def test_the_schema_of_a_range_names_its_ends() -> None:
    schema = TypeAdapter(Annotated[int, between(2, 5)]).json_schema()
    assert schema == {"type": "integer", "minimum": 2, "maximum": 5}


def test_a_missing_field_is_named() -> None:
    error = refusal(Needed, {})
    assert (error.message, error.param) == ("input is required", "input")


def test_an_unknown_field_is_ignored() -> None:
    assert validate(Needed, {"input": "a", "inptu": "b"}) == Needed(input="a")


@pytest.mark.parametrize(
    ("fields", "path", "param"),
    [
        ({"inner": {"size": 4}}, "", "inner.size"),
        ({"inner": {"sizes": [1, "x"]}}, "", "inner.sizes[1]"),
        ({"inner": {"size": 4}}, "requests[3]", "requests[3].inner.size"),
        ({"messages": ["x"]}, "body", "body.messages[0]"),
        # The branches of a union are not part of the path.
        ({"either": []}, "", "either"),
        ({"kwargs": {"a": []}}, "", "kwargs.a"),
    ],
)
def test_the_path_leads_to_the_wrong_value(fields: dict[str, Any], path: str, param: str) -> None:
    error = refusal(Outer, fields, path)
    assert error.param == param
    assert error.message.startswith(f"{param} must be ")


def test_a_long_value_is_cut_in_the_message() -> None:
    message = refusal(Outer, {"kind": "x" * 1000}).message
    assert message == "kind must be 'a' or 'b', not '" + "x" * 79


@pytest.mark.parametrize(
    ("path", "cls"),
    [
        ("tools[0]", InvalidToolSchema),
        ("functions[12]", InvalidToolSchema),
        ("my_tools[0]", InvalidRequest),
    ],
)
def test_what_is_wrong_inside_a_tool_has_its_own_code(path: str, cls: type[InvalidRequest]) -> None:
    error = refusal(Inner, {"size": 4}, path)
    assert type(error) is cls
    assert error.message == f"{path}.size must be from 1 to 3, not 4"


def test_what_is_not_supported_has_its_own_error() -> None:
    error = refusal(Outer, {"picture": 1})
    assert type(error) is NotSupported
    assert (error.message, error.param) == ("picture: send text instead", "picture")


class TestStops:
    @pytest.mark.parametrize("stop", ["a", ["a"]])
    def test_one_string_is_a_list_of_one(self, stop: object) -> None:
        assert validate(Outer, {"stop": stop}).stop == ["a"]

    @pytest.mark.parametrize("stop", [[], ["é" * (MAX_STOP_BYTES // 2)] * MAX_STOPS])
    def test_the_bounds_are_allowed(self, stop: list[str]) -> None:
        assert validate(Outer, {"stop": stop}).stop == stop

    @pytest.mark.parametrize(
        ("stop", "message"),
        [
            ({}, "stop must be a string or a list of strings, not an object"),
            (["a"] * (MAX_STOPS + 1), f"stop must hold at most {MAX_STOPS} items"),
            ("", f"stop[0] must be 1 to {MAX_STOP_BYTES} bytes long, not ''"),
            (["a", 5], "stop[1] must be a valid string, not 5"),
        ],
    )
    def test_other_stops_are_refused(self, stop: object, message: str) -> None:
        assert refusal(Outer, {"stop": stop}).message == message

    def test_bytes_are_counted_and_not_characters(self) -> None:
        error = refusal(Outer, {"stop": ["a", "é" * (MAX_STOP_BYTES // 2) + "b"]})
        assert error.param == "stop[1]"
        assert error.message.startswith(f"stop[1] must be 1 to {MAX_STOP_BYTES} bytes long, not 'é")


def test_the_length_of_a_models_name_is_bounded() -> None:
    assert validate(Outer, {"model": "m" * MAX_NAME_CHARS}).model == "m" * MAX_NAME_CHARS
    message = refusal(Outer, {"model": "m" * (MAX_NAME_CHARS + 1)}).message
    assert message.startswith(f"model must have at most {MAX_NAME_CHARS} characters, not 'm")


def test_a_query_is_read_from_text() -> None:
    assert validate(Page, {"limit": "5", "is_full": "true", "part": "0.5", "other": "x"}) == Page(
        limit=5, is_full=True, part=0.5
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": "x"}, "limit must be a number, not 'x'"),
        ({"part": "x"}, "part must be a number, not 'x'"),
        ({"is_full": "maybe"}, "is_full must be true or false, not 'maybe'"),
    ],
)
def test_a_query_of_other_text_is_refused(fields: dict[str, str], message: str) -> None:
    assert refusal(Page, fields).message == message


class TestEdgeagentBody:
    def test_an_unknown_name_is_refused(self) -> None:
        error = refusal(EdgeagentBody, {"rout": "local_only"}, "edgeagent")
        assert (error.message, error.param) == (
            "edgeagent.rout is unknown; did you mean edgeagent.route?",
            "edgeagent.rout",
        )
        assert refusal(EdgeagentBody, {"ttft": 1}).message == "ttft is unknown; did you mean ttft_ms?"
        listed = (
            "edgeagent.xyz is unknown; the fields here are adapter, answers, deadline_ms, draft_tokens, itl_ms, max_"
        )
        assert refusal(EdgeagentBody, {"xyz": 1}, "edgeagent").message.startswith(listed)
        nested = refusal(ChatBody, {"messages": [{"role": "user", "content": "a"}], "edgeagent": {"ttft": 100}})
        assert nested.message == "edgeagent.ttft is unknown; did you mean edgeagent.ttft_ms?"

    def test_a_missing_name_is_sought_among_the_unknown_ones(self) -> None:
        message = "input is required, and inputs is unknown: did you mean input?"
        assert refusal(Needed, {"other": 1, "inputs": "a"}).message == message
        assert refusal(Needed, {"other": 1}).message == "input is required"

    def test_an_unknown_route_is_refused(self) -> None:
        message = refusal(EdgeagentBody, {"route": "local"}, "edgeagent").message
        assert message.startswith("edgeagent.route must be 'local_only', ")
        assert message.endswith(", not 'local'")

    def test_every_mode_is_a_route(self) -> None:
        for mode in RouteMode:
            assert route_of(validate(EdgeagentBody, {"route": str(mode)})) is mode

    def test_the_strictest_route_holds(self) -> None:
        far, near = EdgeagentBody(route="remote_only"), EdgeagentBody(route="prefer_local")
        assert route_of(far, None, near, EdgeagentBody()) is RouteMode.PREFER_LOCAL
        assert route_of(near, far) is RouteMode.PREFER_LOCAL

    def test_no_route_is_no_mode(self) -> None:
        assert route_of() is None
        assert route_of(None, EdgeagentBody()) is None

    def test_the_first_number_of_drafts_holds_even_if_it_is_zero(self) -> None:
        assert drafts_of(None, EdgeagentBody(), EdgeagentBody(draft_tokens=0), EdgeagentBody(draft_tokens=4)) == 0
        assert drafts_of(None, EdgeagentBody()) is None

    def test_the_first_adapter_is_part_of_the_models_name(self) -> None:
        bodies = (None, EdgeagentBody(), EdgeagentBody(adapter="b"), EdgeagentBody(adapter="c"))
        assert with_adapter("a", *bodies) == "a+b"
        assert with_adapter("a", *bodies[:2]) == "a"


@pytest.mark.parametrize(
    ("duration", "seconds"), [(0, 0), (2.5, 2.5), ("90", 90), ("1h30m", 5400), (-1, math.inf), ("-1s", math.inf)]
)
def test_keep_alive_is_a_duration(duration: float | str, seconds: float) -> None:
    assert keep_alive_s(duration) == seconds


@pytest.mark.parametrize("duration", ["", "soon", "5 m", math.nan])
def test_a_keep_alive_that_is_not_a_duration_is_refused(duration: float | str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        keep_alive_s(duration)
    told = f"keep_alive must be a number of seconds or a duration such as 5m, not {str(duration)!r}"
    assert (caught.value.message, caught.value.param) == (told, "keep_alive")


def test_a_long_keep_alive_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest, match=f"not '{'x' * 64}'$"):
        keep_alive_s("x" * 1000)


class TestSampling:
    def test_every_field_reaches_the_parameters(self) -> None:
        fields: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 3,
            "min_p": 0.125,
            "repeat_penalty": 1.5,
            "repeat_last_n": -1,
            "presence_penalty": -2,
            "frequency_penalty": 2,
            "seed": 7,
        }
        assert set(fields) | {"logit_bias"} == set(SamplingBody.model_fields)
        assert validate(SamplingBody, fields).sampling() == SamplingParams(**fields)

    def test_null_means_the_models_default(self) -> None:
        assert validate(SamplingBody, dict.fromkeys(SamplingBody.model_fields)).sampling() == SamplingParams()

    @pytest.mark.parametrize(
        ("seed", "drawn"),
        [
            (0, 0),
            (-1, None),
            (-2, 2**32 - 3),
            (2**32 - 2, 2**32 - 2),
            (2**32 - 1, 0),
            (2**32, 1),
            (MAX_SEED, MAX_SEED % (2**32 - 1)),
        ],
    )
    def test_a_seed_is_never_the_number_that_llama_cpp_reads_as_random(self, seed: int, drawn: int | None) -> None:
        assert validate(SamplingBody, {"seed": seed}).sampling().seed == drawn

    def test_biases_become_pairs(self) -> None:
        body = validate(SamplingBody, {"logit_bias": {"0": -100, str(MAX_INT32): 0.5}})
        assert body.sampling().logit_bias == ((0, -100.0), (MAX_INT32, 0.5))

    @pytest.mark.parametrize("key", ["", "x", "-1", "1.0", " 1", "٣", "²", str(MAX_INT32 + 1), "0" * 11])
    def test_a_bias_of_what_is_no_token_is_refused(self, key: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            validate(SamplingBody, {"logit_bias": {key: 1}}).sampling()
        told = f"logit_bias: {key!r} is no token id; keys are integers from 0 to {MAX_INT32}"
        assert (caught.value.message, caught.value.param) == (told, "logit_bias")

    def test_a_bias_outside_its_bounds_is_refused(self) -> None:
        error = refusal(SamplingBody, {"logit_bias": {"7": 101}})
        assert (error.message, error.param) == ("logit_bias.7 must be from -100 to 100, not 101", "logit_bias.7")


class TestToolChoice:
    TOOLS = (Tool("f"), Tool("g"))

    @pytest.mark.parametrize("mode", ["auto", "required"])
    def test_names_narrow_the_choice(self, mode: Literal["auto", "required"]) -> None:
        assert tool_choice_of(mode, (), self.TOOLS) == ToolChoice(mode)
        assert tool_choice_of(mode, ("g",), self.TOOLS) == ToolChoice(mode, ("g",))

    def test_the_mode_none_has_no_names(self) -> None:
        assert tool_choice_of("none", ("g",), self.TOOLS) == ToolChoice("none")

    def test_without_tools_no_call_is_needed(self) -> None:
        assert tool_choice_of("auto", (), ()) == ToolChoice()
        assert tool_choice_of("none", (), ()) == ToolChoice("none")

    @pytest.mark.parametrize(
        ("mode", "names", "tools", "told"),
        [
            ("required", (), (), "tool_choice asks for a call, but there are no tools"),
            ("auto", ("f", "h"), TOOLS, "tool_choice: no tool is named 'h'"),
            ("none", ("h",), TOOLS, "tool_choice: no tool is named 'h'"),
            ("any", (), TOOLS, "tool_choice must be auto, none or required, not 'any'"),
            ("x" * 100, (), TOOLS, f"tool_choice must be auto, none or required, not '{'x' * 64}'"),
        ],
    )
    def test_a_choice_that_cannot_be_kept_is_refused(
        self, mode: str, names: tuple[str, ...], tools: tuple[Tool, ...], told: str
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            tool_choice_of(mode, names, tools)
        assert (caught.value.message, caught.value.param) == (told, "tool_choice")


@pytest.mark.parametrize(
    ("effort", "extra", "expected"),
    [
        (None, None, {}),
        ("none", None, {"enable_thinking": False}),
        ("minimal", None, {"enable_thinking": False, "reasoning_effort": "minimal"}),
        ("high", {}, {"enable_thinking": True, "reasoning_effort": "high"}),
        ("none", {"enable_thinking": True, "x": None}, {"enable_thinking": True, "x": None}),
    ],
)
def test_the_clients_own_template_variables_win(
    effort: str | None, extra: TemplateKwargs | None, expected: TemplateKwargs
) -> None:
    text = template_kwargs(effort, extra)
    assert json.loads(text) == expected
    assert " " not in text
