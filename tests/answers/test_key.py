"""What a kept answer's key contains, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from edgeagent.answers.key import FIELDS, KEY_BYTES, LEFT_OUT, Question, computed_by, sharing_key
from edgeagent.config import EngineConfig
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonSchemaFormat,
    MediaPlace,
    Message,
    Need,
    RouteMode,
    SamplingParams,
    TextPrompt,
    Tier,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolChoice,
)

SECRET = bytes(32)
CHAT = ChatPrompt((Message("user", "How far is the moon?"),))
ASKED = GenerateRequest("a", "tiny", CHAT)
OTHER: dict[str, Any] = {
    "prompt": ChatPrompt((Message("user", "How far is the sun?"),)),
    "sampling": SamplingParams(temperature=0),
    "format": JsonSchemaFormat("{}"),
    "max_tokens": 7,
    "stop": ("\n",),
    "choices": ("yes", "no"),
    "logprobs": 2,
    "echo": True,
    "warnings": ("lowered",),
}
"""For each field in the key, a value that is not its default."""


def key(request: GenerateRequest, **given: Any) -> bytes:
    return Question(request, **({"model": "tiny", "identity": "1:2", "partition": ""} | given)).key(SECRET)


def test_each_field_is_in_the_key_or_left_out_for_a_reason() -> None:
    """A new field of GenerateRequest fails here until it is in one of the two."""
    assert {*FIELDS, *LEFT_OUT} == set(GenerateRequest.__struct_fields__)
    assert not set(FIELDS) & LEFT_OUT.keys() and all(LEFT_OUT.values()) and OTHER.keys() == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_in_the_key_changes_it(name: str) -> None:
    changed = replace(ASKED, **{name: OTHER[name]})
    assert key(changed) != key(ASKED) and len(key(changed)) == KEY_BYTES
    assert sharing_key(changed, "tiny") != sharing_key(ASKED, "tiny")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_field_that_is_left_out_does_not_change_it(name: str) -> None:
    values = {
        "id": "b",
        "model": "tiny:latest",
        "client": "kiosk",
        "cache": CachePolicy(lane="1"),
        "tier": Tier.BATCH,
        "need": Need(1.0, 2.0),
        "timeout_s": 5.0,
        "route": RouteMode.LOCAL_ONLY,
        "adapter": "support",
        "asked_route": RouteMode.LOCAL_ONLY,
        "keep_alive_s": 1.0,
        "num_hops": 1,
        "draft_tokens": 3,
    }
    flags = ("prefill_only", "is_ahead", "reports_progress", "is_whole")
    if name in values or name in flags:
        assert key(replace(ASKED, **{name: values.get(name, True)})) == key(ASKED)


def test_the_longest_prompt_is_in_the_key_wherever_it_is_set() -> None:
    limited = {key(replace(ASKED, max_prompt_tokens=9)), key(replace(ASKED, need=Need(max_prompt_tokens=9)))}
    assert len(limited) == 1 and key(ASKED) not in limited


def test_every_part_of_what_is_asked_is_in_the_key() -> None:
    """The values of all nested structs: each changes the key, so nothing in a message or a tool is overlooked."""
    call = ToolCall("call_1", "look", "{}")
    message = Message("assistant", "Let me see.", "hm", (call,), "call_0", "ann")
    prompt = ChatPrompt((message,), (Tool("look", "Look.", "{}", strict=False),), ToolChoice("required", ("look",)))
    asked = replace(ASKED, prompt=prompt)
    keys = [key(asked)]
    for struct, rebuilt in (
        (prompt, lambda it: it),
        (message, lambda it: replace(prompt, messages=(it,))),
        (call, lambda it: replace(prompt, messages=(replace(message, tool_calls=(it,)),))),
        (prompt.tools[0], lambda it: replace(prompt, tools=(it,))),
        (prompt.tool_choice, lambda it: replace(prompt, tool_choice=it)),
    ):
        keys += [key(replace(asked, prompt=rebuilt(changed))) for changed in _changed(struct)]
    keys += [key(replace(ASKED, sampling=changed)) for changed in _changed(SamplingParams(seed=1))]
    assert len(set(keys)) == len(keys)


def _changed(struct: Struct) -> list[Any]:
    """Return a copy for each field, in which this field has another value."""
    return [replace(struct, **{field.name: _another(getattr(struct, field.name))}) for field in fields(struct)]


PLACE = MediaPlace(0, 0)  # in the place of any empty tuple; msgpack does not look at types


def _another(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return "tool" if value in ("user", "assistant") else "none" if value == "required" else f"{value} "
        case None:
            return 1
        case ():
            return (PLACE,)
        case _:
            return ()


def test_kinds_of_prompts_are_told_apart() -> None:
    prompts = (TextPrompt("1"), TokenPrompt((1,)), ChatPrompt((Message("user", "1"),)), TextPrompt("1", suffix=""))
    assert len({key(replace(ASKED, prompt=prompt)) for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(
    "given",
    [{"model": "big"}, {"identity": "1:3"}, {"partition": "kiosk"}, {"day": "2026-01-01"}, {"computed": "q4_0"}],
)
def test_the_model_its_file_the_client_and_the_day_are_in_the_key(given: dict[str, str]) -> None:
    assert key(ASKED, **given) != key(ASKED)


@pytest.mark.parametrize(
    "options",
    [{"kv_type_k": "q4_0"}, {"kv_type_v": "q8_0"}, {"flash_attention": "on"}, {"cache_type": "q8_0"}, {"ctx": 4096}],
)
def test_options_that_change_a_models_numbers_are_told_apart(options: dict[str, Any]) -> None:
    assert computed_by(EngineConfig(**options)) != computed_by(EngineConfig()) == computed_by(EngineConfig(threads=1))


def test_another_version_of_llama_cpp_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = computed_by(EngineConfig())
    monkeypatch.setattr("edgeagent.answers.key.version", lambda name: "0.0.1")
    assert computed_by(EngineConfig()) != before


def test_another_secret_makes_another_key() -> None:
    question = Question(ASKED, "tiny", "1:2", "")
    assert question.key(SECRET) != question.key(bytes(31) + b"1")


def test_only_equal_clients_tiers_and_routes_share() -> None:
    for changed in (
        replace(ASKED, client="kiosk"),
        replace(ASKED, tier=Tier.BATCH),
        replace(ASKED, route=RouteMode.LOCAL_ONLY),
        replace(ASKED, is_whole=True),
        replace(ASKED, cache=CachePolicy(partition="kiosk")),
    ):
        assert sharing_key(changed, "tiny") != sharing_key(ASKED, "tiny")
    assert sharing_key(replace(ASKED, id="b", cache=CachePolicy(lane="2")), "tiny") == sharing_key(ASKED, "tiny")
