"""Random sequences of events and steps: each response that is asked for ends exactly once."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeagent.errors import WorkerCrashed
from edgeagent.types import FinishReason, ReasoningDelta, TextDelta, ToolCallStarted
from tests.api.realtime.realtime_client import RealtimeClient, message
from tests.backends.fake import finished
from tests.examples import examples

STEPS: dict[str, tuple[Any, ...]] = {
    "text": (TextDelta("x"),),
    "reasoning": (ReasoningDelta("x"),),
    "call": (ToolCallStarted(0, "call_1", "f"), finished(FinishReason.TOOL_CALLS)),
    "cut": (ToolCallStarted(0, "call_2", "f"), finished(FinishReason.LENGTH)),
    "end": (TextDelta("x"), finished()),
    "cancelled": (finished(FinishReason.CANCELLED),),
}


class Sessions(RuleBasedStateMachine):
    """Any interleaving of items, settings, responses, cancels and what the backend does."""

    @initialize()
    def connect(self) -> None:
        self.client = RealtimeClient()
        self.asked: list[str] = []

    @rule(text=st.sampled_from("ab"), place=st.sampled_from([None, "root"]), name=st.sampled_from([None, "i1", "i2"]))
    def say(self, text: str, place: str | None, name: str | None) -> None:
        self.client.send("conversation.item.create", item=message(text, id=name), previous_item_id=place)

    @rule(which=st.integers(0, 9))
    def delete(self, which: int) -> None:
        items = [event["item"]["id"] for event in self.client.events if event["type"] == "conversation.item.added"]
        self.client.send("conversation.item.delete", item_id=items[which % len(items)] if items else "none")

    @rule(is_apart=st.booleans(), source=st.sampled_from([None, "text", "known", "unknown"]), is_wrong=st.booleans())
    def respond(self, is_apart: bool, source: str | None, is_wrong: bool) -> None:
        response: dict[str, Any] = {"conversation": "none"} if is_apart else {}
        match source:
            case "text":
                response["input"] = [message("x")]
            case "known" | "unknown":
                name = "i1" if source == "known" else "nothing"
                response["input"] = [message("x"), {"type": "item_reference", "id": name}]
        if is_wrong:
            response["tool_choice"] = "required"
        self.asked.append(f"e{len(self.asked)}")
        self.client.send("response.create", response=response, event_id=self.asked[-1])

    @rule(instructions=st.sampled_from(["", "Be brief."]), ahead=st.booleans())
    def set(self, instructions: str, ahead: bool) -> None:
        self.client.send("session.update", session={"instructions": instructions, "edgeagent": {"ahead": ahead}})

    @rule(which=st.integers(0, 20), act=st.sampled_from([*STEPS, "fail", "admit", "cancel"]))
    def act(self, which: int, act: str) -> None:
        if not self.client.live:
            return
        request_id = list(self.client.live)[which % len(self.client.live)]
        match act:
            case "fail":
                self.client.fail(request_id, WorkerCrashed("x"))
            case "admit":
                self.client.take(self.client.session.announce(self.client.live[request_id]))
            case "cancel":
                self.client.send("response.cancel", response_id=request_id)
            case _:
                self.client.step(request_id, *STEPS[act])

    @rule()
    def cancel(self) -> None:
        self.client.send("response.cancel")

    @invariant()
    def each_ends_once(self) -> None:
        events = self.client.events
        begun = [event["response"]["id"] for event in events if event["type"] == "response.created"]
        over = [event["response"]["id"] for event in events if event["type"] == "response.done"]
        assert len(set(over)) == len(over) and set(over) <= set(begun) and len(set(begun)) == len(begun)
        refused = [event["error"]["event_id"] for event in events if event["type"] == "error"]
        own = [name for name in refused if name is not None]
        assert len(set(own)) == len(own) and set(own) <= set(self.asked)
        assert len(begun) + len(own) <= len(self.asked)
        main = [each for _, each in self.client.realtime._under_way() if each.conversation_id is not None]
        assert len(main) <= 1

    def teardown(self) -> None:
        for request_id in list(self.client.live):
            self.client.fail(request_id, WorkerCrashed("x"))
        self.each_ends_once()
        events = self.client.events
        num_begun = sum(event["type"] == "response.created" for event in events)
        num_refused = sum(event["type"] == "error" and event["error"]["event_id"] is not None for event in events)
        assert num_begun == sum(event["type"] == "response.done" for event in events)
        assert num_begun + num_refused == len(self.asked)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
