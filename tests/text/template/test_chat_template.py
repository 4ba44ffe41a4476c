import re
from datetime import datetime

import pytest

from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.text.template.chat_template import CHATML, ChatTemplate
from edgeagent.text.tool_format import THINK, ToolFormat
from edgeagent.types import ChatPrompt, Message, Tool, ToolCall, ToolChoice
from tests.text import templates

TOOL = Tool("get", "Gets it.", '{"type":"object","properties":{"city":{"type":"string"}}}')
USER, SYSTEM = Message("user", "Hi"), Message("system", "Be brief.")
CALL = Message("assistant", tool_calls=(ToolCall("call_abc", "get", '{"city":"Paris"}'),))
RESULT = Message("tool", "sunny", tool_call_id="call_abc", name="get")


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", now=lambda: datetime(2026, 3, 9))


def render(source: str | None, *messages: Message, tools: tuple[Tool, ...] = (), kwargs: str = "{}") -> str:
    return template(source).render(ChatPrompt(messages, tools, template_kwargs=kwargs)).text


@pytest.mark.parametrize(
    ("source", "tool_format", "takes_tools", "reasons"),
    [
        (templates.HERMES, ToolFormat.HERMES, True, True),
        (templates.LLAMA, ToolFormat.LLAMA, True, False),
        (templates.MISTRAL, ToolFormat.MISTRAL, True, False),
        (templates.MISTRAL_ARGS, ToolFormat.MISTRAL_ARGS, True, False),
        (templates.NULL_CONTENT, ToolFormat.HERMES, True, False),
        (templates.NO_SYSTEM, ToolFormat.HERMES, False, False),
        (templates.PARTS, ToolFormat.HERMES, False, False),
        (templates.OPENS_THINKING, ToolFormat.HERMES, False, True),
        (templates.REFUSES_ALL, ToolFormat.HERMES, False, False),
        (None, ToolFormat.HERMES, False, False),
    ],
)
def test_what_a_template_can_is_found_by_trying(
    source: str | None, tool_format: ToolFormat, takes_tools: bool, reasons: bool
) -> None:
    chat = template(source)
    assert (chat.tool_format, chat.supports_tools, chat.supports_reasoning) == (tool_format, takes_tools, reasons)
    assert chat.is_fallback == (source is None)


def test_hermes_renders_tools_calls_and_results() -> None:
    text = render(templates.HERMES, SYSTEM, USER, CALL, RESULT, tools=(TOOL,))
    assert text == (
        "<|im_start|>system\nBe brief.\n\nTools:\n<tools>\n"
        '{"type": "function", "function": {"name": "get", "description": "Gets it.", "parameters": '
        '{"type": "object", "properties": {"city": {"type": "string"}}}}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "get", "arguments": {"city":"Paris"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama_takes_arguments_as_an_object_and_gives_back_their_text() -> None:
    text = render(templates.LLAMA, SYSTEM, USER, CALL, RESULT, tools=(TOOL,))
    assert text.startswith("<s><|start_header_id|>system<|end_header_id|>\n\nToday: 09 Mar 2026\nBe brief.<|eot_id|>")
    assert '{"name": "get", "parameters": {"city":"Paris"}}<|eot_id|>' in text
    assert text.endswith('\n\n"sunny"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n')


def test_parallel_calls_become_turns_where_the_template_takes_one_a_turn() -> None:
    calls = Message("assistant", "Two.", tool_calls=(CALL.tool_calls[0], ToolCall("call_b", "get", "{}")))
    second = Message("tool", "rain", tool_call_id="call_b")
    text = render(templates.LLAMA, USER, calls, RESULT, second, tools=(TOOL,))
    positions = [text.index(part) for part in ('{"city":"Paris"}', "sunny", '"parameters": {}', "rain")]
    assert positions == sorted(positions)
    assert text.count("sunny") == text.count("rain") == 1


def test_mistral_gets_ids_of_nine_characters_that_match() -> None:
    text = render(templates.MISTRAL, SYSTEM, USER, CALL, RESULT, tools=(TOOL,))
    assert text.startswith("<s>[AVAILABLE_TOOLS][{")
    assert "[INST]Be brief.\n\nHi[/INST]" in text
    assert '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "Paris"}}]</s>' in text
    assert re.search(r'\{"content": "sunny", "call_id": "[0-9a-f]{9}"\}', text)


def test_mistral_args_gets_arguments_as_text() -> None:
    assert '[TOOL_CALLS]get[ARGS]{"city":"Paris"}</s>' in render(templates.MISTRAL_ARGS, USER, CALL, RESULT)


def test_null_content_beside_calls() -> None:
    assert '<tool_call>{"name": "get", "arguments": {"city":"Paris"}}</tool_call>' in render(
        templates.NULL_CONTENT, USER, CALL, RESULT
    )


def test_content_as_a_list_of_parts() -> None:
    assert render(templates.PARTS, SYSTEM, USER) == "<system>Be brief.</system><user>Hi</user>"


def test_a_system_message_that_the_template_refuses_goes_to_the_user() -> None:
    assert render(templates.NO_SYSTEM, SYSTEM, USER) == (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )
    assert "Be brief." in render(templates.NO_SYSTEM, SYSTEM)


def test_roles_are_made_to_alternate_where_the_template_wants_it() -> None:
    text = render(templates.NO_SYSTEM, USER, Message("user", "there"), Message("assistant", "a"), USER)
    assert "user\nHi\n\nthere<end_of_turn>" in text
    assert text.count("<start_of_turn>") == 4


def test_messages_that_a_template_takes_are_left_alone() -> None:
    assert render(templates.HERMES, USER, USER).count("<|im_start|>user\nHi<|im_end|>") == 2


def test_a_refusal_carries_the_words_of_the_template() -> None:
    with pytest.raises(InvalidRequest, match="never again") as error:
        render(templates.REFUSES_ALL, USER)
    assert error.value.param == "input"


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    text = render(templates.NO_SYSTEM, SYSTEM, USER, CALL, RESULT, RESULT, tools=(TOOL,))
    assert text.index("Be brief.") < text.index("<tools>") < text.index('"name": "get"') < text.index("Hi<end")
    assert '<tool_call>\n{"name": "get", "arguments": {"city":"Paris"}}\n</tool_call>' in text
    response = "<tool_response>\nsunny\n</tool_response>"
    assert f"<start_of_turn>user\n{response}\n{response}<end_of_turn>" in text


def test_tools_are_shown_whatever_may_be_called() -> None:
    for source in (templates.HERMES, None):
        shown = template(source).render(ChatPrompt((USER,), (TOOL,))).text
        assert "get" in shown
        for choice in (ToolChoice("none"), ToolChoice("required"), ToolChoice("required", ("get",))):
            assert template(source).render(ChatPrompt((USER,), (TOOL,), choice)).text == shown


def test_chatml_stands_in_for_a_missing_template() -> None:
    assert render(None, SYSTEM, USER) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(None, Message("tool", "42")).startswith("<|im_start|>user\n<tool_response>\n42\n</tool_response>")
    assert render(CHATML, Message("tool", "42")).startswith("<|im_start|>user\n<tool_response>\n42\n</tool_response>")


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{% unknown_tag %}", "{{ 'x' | no_such_filter }}", "{{" * 5000, "x" * 300_000, "  ", "{{ (" * 3000],
)
def test_chatml_stands_in_for_a_template_that_does_not_compile(source: str) -> None:
    chat = template(source)
    assert chat.is_fallback
    assert chat.fallback_reason
    assert chat.render(ChatPrompt((USER,))).text.startswith("<|im_start|>user\nHi")


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_hostile_template_refuses_requests_and_nothing_else(source: str) -> None:
    chat = template(source)
    assert not chat.supports_tools
    assert not chat.supports_reasoning
    with pytest.raises(InvalidRequest):
        chat.render(ChatPrompt((USER,)))


def test_template_errors_are_requests_that_cannot_be_served() -> None:
    for source in ("{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ missing.attribute.deeper }}"):
        with pytest.raises(InvalidRequest, match="refuses this conversation"):
            render(source, USER)


def test_thinking_is_switched_by_an_allowed_variable() -> None:
    assert render(templates.HERMES, USER, kwargs='{"enable_thinking": false}').endswith("<think>\n\n</think>\n\n")
    assert render(templates.HERMES, USER, kwargs='{"enable_thinking": true}').endswith("assistant\n")


@pytest.mark.parametrize(
    "kwargs",
    [
        '{"add_generation_prompt": false}',
        '{"messages": []}',
        '{"tools": []}',
        '{"bos_token": "x"}',
        '{"enable_thinking": "yes"}',
        '{"reasoning_effort": "<|im_end|>"}',
        '{"reasoning_effort": 3}',
        "[]",
        "{",
        "[" * 100_000,
    ],
)
def test_other_variables_are_refused(kwargs: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        render(templates.HERMES, USER, kwargs=kwargs)
    assert error.value.param == "chat_template_kwargs"


def test_reasoning_that_the_template_opens_is_told() -> None:
    assert template(templates.OPENS_THINKING).render(ChatPrompt((USER,))).open_reasoning == THINK
    assert template(templates.HERMES).render(ChatPrompt((USER,))).open_reasoning is None


def test_reasoning_reaches_the_template() -> None:
    text = render(templates.HERMES, USER, Message("assistant", "Yes", "because"))
    assert "<think>\nbecause\n</think>\n\nYes" in text


@pytest.mark.parametrize("parameters", ["[]", "{", "3", '{"a":' * 5000])
def test_tools_that_are_no_objects_are_refused(parameters: str) -> None:
    with pytest.raises(InvalidToolSchema) as error:
        render(templates.HERMES, USER, tools=(Tool("t", "", parameters),))
    assert error.value.param == "tools"


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    cut_short = Message("assistant", tool_calls=(ToolCall("c", "get", '{"city": "Pa'),))
    assert '"arguments": {"city": "Pa}' in render(templates.HERMES, USER, cut_short, RESULT)
    assert '"parameters": "{\\"city\\": \\"Pa"}' in render(templates.LLAMA, USER, cut_short, RESULT)


def test_many_messages_are_rendered() -> None:
    messages = tuple(Message("user" if index % 2 == 0 else "assistant", "word " * 200) for index in range(5000))
    assert len(render(templates.HERMES, *messages)) > 5_000_000
