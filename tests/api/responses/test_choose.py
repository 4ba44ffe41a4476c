"""The probabilities of choices, and what is refused before a model is asked."""

from __future__ import annotations

import math

import httpx
import pytest

from edgeagent.api.responses.choose import probabilities_of
from edgeagent.errors import NotSupported
from edgeagent.text.tool_format import REASONING
from edgeagent.types import ChatPrompt, GenerateRequest, RouteMode, Tier, WorkerState, replace
from edgeagent.worker.child.generator.prepared_request import read_choices
from edgeagent.worker.child.prompt import ReadPrompt
from tests.api.services import OneModel
from tests.api.serving import serve
from tests.backends.fake import FakeBackend
from tests.text.fake_vocabulary import FakeVocabulary

BODY = {"input": "hi", "instructions": "be brief", "choices": ["yes", "no"], "calibrate": True}


async def test_a_model_at_a_remote_is_refused() -> None:
    backend = OneModel(WorkerState.READY)
    backend.status = replace(backend.status, is_remote=True)
    async with serve(backend) as address, httpx.AsyncClient() as http:
        reply = await http.post(f"http://{address}/edgeagent/choose", json=BODY)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("not_supported", "model")
    assert "runs at a remote, which cannot say how likely choices are" in error["message"]
    assert not backend.requests


async def test_the_same_is_asked_with_an_empty_message_and_stays_on_this_machine() -> None:
    backend = FakeBackend()
    async with serve(backend) as address, httpx.AsyncClient() as http:
        reply = await http.post(f"http://{address}/edgeagent/choose", json=BODY | {"edgeagent": {"tier": "realtime"}})
    assert reply.status_code == 503  # this backend scores nothing
    first, second = backend.requests
    assert second == replace(first, id=f"{first.id}-empty", prompt=second.prompt)
    assert isinstance(first.prompt, ChatPrompt) and isinstance(second.prompt, ChatPrompt)
    assert [(message.role, message.content) for message in first.prompt.messages] == [
        ("system", "be brief"),
        ("user", "hi"),
    ]
    assert [(message.role, message.content) for message in second.prompt.messages] == [
        ("system", "be brief"),
        ("user", ""),
    ]
    assert first.prompt.template_kwargs == '{"enable_thinking":false}'
    assert (first.choices, first.route, first.tier) == (("yes", "no"), RouteMode.LOCAL_ONLY, Tier.REALTIME)


def test_probabilities_are_those_among_the_choices() -> None:
    found = probabilities_of([math.log(0.2), math.log(0.1), math.log(0.1)])
    assert found == pytest.approx([0.5, 0.25, 0.25])


def test_a_choice_that_is_likely_after_an_empty_input_too_counts_less() -> None:
    logprobs, empty = [math.log(0.2), math.log(0.1)], [math.log(0.4), math.log(0.05)]
    assert probabilities_of(logprobs, empty) == pytest.approx([0.2, 0.8])


def test_what_can_never_be_written_is_not_chosen_because_of_calibration() -> None:
    assert probabilities_of([-9999.0, -30.0], [-9999.0, -20.0]) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("store", [None, True, False])
async def test_the_prompt_is_not_kept_on_disk_if_nothing_is_to_be_stored(store: bool | None) -> None:
    backend = FakeBackend()
    async with serve(backend) as address, httpx.AsyncClient() as http:
        await http.post(f"http://{address}/edgeagent/choose", json=BODY | {"store": store})
    assert [request.cache.persist for request in backend.requests] == 2 * [store is not False]


def test_very_unlikely_texts_have_probabilities_too() -> None:
    assert probabilities_of([-9999.0, -9999.0, -12000.0]) == [0.5, 0.5, 0.0]


def test_a_model_that_is_about_to_reason_can_choose_nothing() -> None:
    request = GenerateRequest("r", "m", ChatPrompt(()), choices=("yes", "no"))
    with pytest.raises(NotSupported, match="always reasons before it answers"):
        read_choices(request, ReadPrompt([1], open_reasoning=REASONING[0]), FakeVocabulary(), 30)
