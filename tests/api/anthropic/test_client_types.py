"""What is sent and taken, checked against the types of Anthropic's own client.

The tests import the client, not the module: it takes seconds, and each process of a parallel run imports every module.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from edgeagent.api.anthropic.body import CountTokensBody, MessagesBody
from edgeagent.api.wire.body import Body, warning_about
from tests.api.anthropic.messages import body_of
from tests.api.anthropic.test_messages import FAILED, GOLDEN, SCENARIOS, playing
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The client sends these as headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in FAILED])
async def test_the_client_adds_up_events_to_the_whole_answer(daemon: Running, backend: FakeBackend, name: str) -> None:
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import Message, RawMessageStreamEvent

    events: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    backend.script = playing(*SCENARIOS[name])
    whole = Message.model_validate(await body_of(daemon))
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")):
        message = accumulate_event(event=events.validate_python(event), current_snapshot=message, json_bufs=buffers)
    assert Message.model_validate(message.to_dict() | {"id": whole.id}).content == whole.content
    assert (message.stop_reason, message.stop_sequence, message.usage.to_dict()) == (
        whole.stop_reason,
        whole.stop_sequence,
        whole.usage.to_dict(),
    )


async def test_no_field_of_anthropics_api_is_unknown() -> None:
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import message_create_params as beta_create_params

    known: list[tuple[type[Body], type]] = [
        (MessagesBody, message_create_params.MessageCreateParamsBase),
        (MessagesBody, beta_create_params.MessageCreateParamsBase),
        (CountTokensBody, message_count_tokens_params.MessageCountTokensParams),
    ]
    for body, params in known:
        assert warning_about(body, dict.fromkeys(params.__annotations__.keys() - HEADERS)) is None
