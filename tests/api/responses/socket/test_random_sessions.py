"""Random sequences of frames and steps: each create ends exactly once."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeagent.api.responses.events import TERMINAL
from edgeagent.errors import WorkerCrashed
from edgeagent.types import FinishReason, Message, Step, TextDelta, ToolCallStarted
from tests.api.responses.socket.session_client import Client
from tests.backends.fake import finished
from tests.examples import examples


class Sessions(RuleBasedStateMachine):
    """Any interleaving: each create ends in exactly one terminal message, and responses of a lane never overlap."""

    @initialize()
    def connect(self) -> None:
        self.client = Client()
        self.num_creates: dict[str | None, int] = {}
        self.live: list[str] = []

    @rule(
        lane=st.sampled_from([None, "a", "b"]), is_good=st.booleans(), is_chained=st.booleans(), is_ahead=st.booleans()
    )
    def create(self, lane: str | None, is_good: bool, is_chained: bool, is_ahead: bool) -> None:
        fields: dict[str, Any] = {} if is_good else {"temperature": 9}
        if is_ahead:
            fields |= {"generate": False, "edgeagent": {"ahead": True}}
        if lane:
            fields["stream_id"] = lane
        if is_chained and self.client.started:
            fields["previous_response_id"] = self.client.started[0]
        self.num_creates[lane] = self.num_creates.get(lane, 0) + 1
        self.client.create(**fields)

    @rule(which=st.integers(0, 5), reason=st.sampled_from([None, *FinishReason]))
    def ahead(self, which: int, reason: FinishReason | None) -> None:
        if self.client.ahead:
            deltas = (TextDelta("x"),) if reason is None else (TextDelta("x"), finished(reason))
            self.client.ahead[which % len(self.client.ahead)].put(Step(deltas, (7,), 1.0))

    @rule(is_slow=st.booleans())
    def store(self, is_slow: bool) -> None:
        """Make the store slow, or let it answer all that waits."""
        self.client.is_store_slow = is_slow
        while self.client.fetches and not is_slow:
            self.client.fetch()

    @rule(name=st.sampled_from(["resp_1", "resp_2", "resp_3"]))
    def delete(self, name: str) -> None:
        """Delete a response, as another connection would."""
        self.client.store.remove(name, "")
        self.client.history.forget(name)

    @rule(which=st.integers(0, 20), act=st.sampled_from(["text", "call", "finish", "fail", "admit", "cancel", "steer"]))
    def act(self, which: int, act: str) -> None:
        if not self.client.started:
            return
        request_id = self.client.started[which % len(self.client.started)]
        match act:
            case "text":
                self.client.step(request_id, TextDelta("x"))
            case "call":
                self.client.step(request_id, ToolCallStarted(0, "call_1", "f"), finished(FinishReason.TOOL_CALLS))
            case "steer":
                self.client.send("response.steer", previous_response_id=request_id, input="x")
                if request_id in self.client.cancelled:
                    self.client.step(request_id, finished(FinishReason.CANCELLED))
            case "finish":
                self.client.finish(request_id)
            case "fail":
                self.client.fail(request_id, WorkerCrashed("x"))
            case "admit":
                self.client.announce(request_id)
            case "cancel":
                self.client.send("response.cancel", response_id=request_id)
                if request_id in self.client.cancelled:
                    self.client.step(request_id, finished(FinishReason.CANCELLED))

    @invariant()
    def lanes_are_in_order(self) -> None:
        for lane in (None, "a", "b"):
            current = None
            for event in self.client.events:
                if event.get("stream_id") != lane:
                    continue
                if event["type"] == "error":
                    assert current is None
                elif event["type"] == "response.created":
                    assert current is None
                    current = event["response"]["id"]
                elif event["type"] in TERMINAL:
                    assert current == event["response"]["id"]
                    current = None

    def teardown(self) -> None:
        self.store(False)
        # The list grows during the loop: each end starts the response that waited. Finishing a finished one does
        # nothing.
        for request_id in self.client.started:
            self.client.finish(request_id)
        for lane, num_creates in self.num_creates.items():
            of_lane = [event for event in self.client.events if event.get("stream_id") == lane]
            num_ends = sum(event["type"] in {*TERMINAL, "error"} for event in of_lane)
            began = {event["response"]["id"] for event in of_lane if event["type"] == "response.created"}
            num_successors = len(began & self.successors())
            assert num_ends == num_creates + num_successors
        num_waiting_bytes = self.client.session.num_waiting_bytes
        is_pending = any(event["type"] == "response.steer.pending" for event in self.client.events)
        assert num_waiting_bytes >= 0 if is_pending else num_waiting_bytes == 0

    def successors(self) -> set[str]:
        """Return the responses that no create started: their prompts end with the input of a steer."""
        return {
            request_id
            for request_id, request in self.client.requests.items()
            if request.prompt.messages[-1] == Message("user", "x")
        }


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
