"""An answer that began elsewhere continues from its text as if it had begun here; greedy answers are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.errors import ContextLengthExceeded, NotSupported
from edgeagent.store.names.catalog import builtin_model
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    JsonSchemaFormat,
    MemoryKind,
    Message,
    Prompt,
    ReasoningDelta,
    SamplingParams,
    TextDelta,
    TextPrompt,
    Tool,
    replace,
)
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Delivered, Load
from tests.conftest import TinyModel
from tests.local_template import open_here

LINE = TextPrompt("the 10 and")
CHAT = ChatPrompt((Message("user", "What is a good breakfast?"),))


class Answer:
    """The output of one request by steps: its text, its reasoning, its token ids, and how many of these it delivers."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self.num_delivered: list[int] = []
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.tokens: list[list[int]] = []
        self.num_cached = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def num_tokens(self) -> int:
        return self.prepared.num_output_tokens

    def until(self, num_steps: int, before: AnswerSoFar = AnswerSoFar()) -> AnswerSoFar:  # noqa: B008 it is frozen
        num_tokens = before.num_tokens + sum(self.num_delivered[:num_steps])
        reasoning = before.reasoning + "".join(self.reasonings[:num_steps])
        return AnswerSoFar(before.text + "".join(self.texts[:num_steps]), reasoning, num_tokens)


class Runner:
    """Runs requests one after another on a model."""

    def __init__(self, path: Path) -> None:
        # The tests compare answers, which depend on the sizes of steps with flash attention.
        config = EngineConfig(threads=1, ctx=512, flash_attention="off")
        load = Load("tiny", str(path), None, config)
        self.host = Host(load, open_model(load), open_here)
        self._num_requests = 0

    def prepare(self, prompt: Prompt, delivered: Delivered, **fields: object) -> PreparedRequest:
        self._num_requests += 1
        request = GenerateRequest(f"r{self._num_requests}", "", prompt, SamplingParams(temperature=0.0), **fields)  # type: ignore[arg-type]
        return self.host.prepare(request, delivered)

    def ask(
        self, prompt: Prompt, so_far: AnswerSoFar | None = None, tokens: tuple[int, ...] = (), **fields: object
    ) -> Answer:
        delivered = Delivered(tokens, (1,) * len(tokens), so_far=so_far)
        answer = Answer(prepared := self.prepare(prompt, delivered, **fields))
        engine, stream = self.host.engine, prepared.output
        sequence = engine.add(prepared.spec)
        is_done = False
        while not is_done:
            for output in engine.step():
                assert output.error is None
                num_delivered = prepared.num_delivered
                deltas = list(stream.feed(output.tokens))
                prepared.settle(sequence, engine.context_length)
                is_done = output.finish_reason is not None or stream.stopped is not None
                if is_done:
                    engine.cancel(sequence.id)
                    deltas += stream.cut() if output.finish_reason is FinishReason.LENGTH else stream.finish()
                answer.tokens.append(list(output.tokens))
                answer.num_delivered.append(prepared.num_delivered - num_delivered)
                answer.texts.append("".join(delta.text for delta in deltas if isinstance(delta, TextDelta)))
                answer.reasonings.append("".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)))
        while engine.has_work:
            engine.step()
        answer.num_cached = sequence.num_cached
        return answer


@pytest.fixture(scope="module")
def tiny(tiny_model: TinyModel) -> Runner:
    return Runner(tiny_model(MemoryKind.FULL_ATTENTION))


@pytest.fixture(scope="module")
def bundled() -> Iterator[Runner]:
    yield Runner(builtin_model().path)


@pytest.mark.parametrize("question", ["What is a good breakfast?", "Tell me a story about a cat and a dog."])
def test_a_greedy_answer_is_the_same_wherever_it_is_cut(bundled: Runner, question: str) -> None:
    """Cut at every delta, and within words, where another model's tokens may have ended."""
    prompt = ChatPrompt((Message("user", question),))
    whole = bundled.ask(prompt, max_tokens=40)
    num_tokens = whole.num_tokens
    assert len(whole.text) > 30
    for num_steps in range(1, len(whole.texts), 4):
        so_far = whole.until(num_steps)
        rest = bundled.ask(prompt, so_far, max_tokens=40)
        assert so_far.text + rest.text == whole.text
        assert rest.num_tokens == num_tokens
        assert rest.num_cached > 0
    for num_chars in range(2, len(whole.text), 9):
        so_far = AnswerSoFar(whole.text[:num_chars], "", 1)
        assert so_far.text + bundled.ask(prompt, so_far).text == whole.text


def test_it_goes_on_once_more_with_the_next_worker(bundled: Runner) -> None:
    """The next worker knows the token ids of what followed the text."""
    whole = bundled.ask(CHAT, max_tokens=40)
    so_far = AnswerSoFar(whole.text[:12], "", 5)
    second = bundled.ask(CHAT, so_far, max_tokens=40)
    ids = tuple(token for tokens in second.tokens[:4] for token in tokens)
    third = bundled.ask(CHAT, so_far, ids, max_tokens=40)
    assert so_far.text + "".join(second.texts[:4]) + third.text == whole.text
    assert third.num_tokens == second.num_tokens


def test_raw_text_goes_on_too(tiny: Runner) -> None:
    whole = tiny.ask(LINE, max_tokens=30)
    for num_steps in range(1, 29, 5):
        so_far = whole.until(num_steps)
        rest = tiny.ask(LINE, so_far, max_tokens=30)
        # A random model's tokens differ from those into which its text is tokenized.
        assert rest.prepared.output.num_tokens > 0
        assert rest.num_tokens <= 30


def test_the_limit_counts_what_came_from_elsewhere(bundled: Runner) -> None:
    whole = bundled.ask(CHAT, max_tokens=40)
    so_far = AnswerSoFar(whole.text[:12], "", 30)
    rest = bundled.ask(CHAT, so_far, max_tokens=33)
    assert rest.num_tokens == 33
    with pytest.raises(NotSupported, match="already has its 30 tokens"):
        bundled.prepare(CHAT, Delivered(so_far=so_far), max_tokens=30)


def test_a_stop_string_that_began_elsewhere_ends_here(bundled: Runner) -> None:
    whole = bundled.ask(CHAT, max_tokens=40).text
    stop, place = whole[10:18], 14
    rest = bundled.ask(CHAT, AnswerSoFar(whole[:place], "", 5), stop=(stop,))
    assert rest.prepared.output.stopped == stop
    assert rest.text == ""
    with pytest.raises(NotSupported, match="stop string"):
        bundled.prepare(CHAT, Delivered(so_far=AnswerSoFar(whole[:36], "", 5)), stop=(stop,))


def test_a_format_is_followed_from_within(bundled: Runner) -> None:
    wanted = JsonSchemaFormat('{"type":"array","items":{"enum":["a long word","another"]},"minItems":2,"maxItems":2}')
    whole = bundled.ask(CHAT, format=wanted).text
    for num_chars in range(1, len(whole), 3):
        rest = bundled.ask(CHAT, AnswerSoFar(whole[:num_chars], "", 1), format=wanted)
        assert len(json.loads(whole[:num_chars] + rest.text)) == 2
    with pytest.raises(NotSupported, match="format"):
        bundled.prepare(CHAT, Delivered(so_far=AnswerSoFar("Sure, here", "", 1)), format=wanted)


def test_reasoning_goes_on_as_reasoning_and_is_closed_behind_it(tiny: Runner) -> None:
    chat = ChatPrompt((Message("user", "Hi"),))
    inside = tiny.prepare(chat, Delivered(so_far=AnswerSoFar("", "\nLet me the", 4)))
    assert written(tiny, inside) == "<think>\nLet me"
    assert inside.output.feed(tiny.host.model.tokenize(" the an", parse_special=False)) == (ReasoningDelta(" an"),)
    assert inside.output.num_reasoning_tokens > 4
    behind = tiny.prepare(chat, Delivered(so_far=AnswerSoFar("The end", "Let me\n", 9)))
    assert written(tiny, behind) == "<think>\nLet me\n</think>\n\nThe"
    assert behind.output.feed(tiny.host.model.tokenize(" ending", parse_special=False)) == (TextDelta("ing"),)


def written(runner: Runner, prepared: PreparedRequest) -> str:
    """Return the part of an answer's beginning that is kept; the rest is generated again."""
    return b"".join(map(runner.host.model.piece, prepared.spec.delivered)).decode()


def test_what_cannot_go_on_is_refused_with_the_reason(tiny: Runner) -> None:
    so_far = AnswerSoFar("the", "", 1)
    for fields, why in (({"logprobs": 0}, "log probabilities"), ({"echo": True}, "echo of the prompt")):
        with pytest.raises(NotSupported, match=why):
            tiny.prepare(LINE, Delivered(so_far=so_far), **fields)
    with pytest.raises(NotSupported, match="call"):
        called = replace(so_far, text='<tool_call>{"name": "now", "arguments": {}}</tool_call>')
        tiny.prepare(replace(CHAT, tools=(Tool("now"),)), Delivered(so_far=called))
    with pytest.raises(ContextLengthExceeded, match="answer so far"):
        tiny.prepare(LINE, Delivered(so_far=AnswerSoFar("x y " * 300, "", 1)))


def test_white_space_that_is_held_back_is_not_said_twice(bundled: Runner) -> None:
    whole = bundled.ask(CHAT, max_tokens=40).text
    place = whole.index(" ") + 1
    so_far = AnswerSoFar("\n" + whole[:place], "", 1)
    rest = bundled.ask(replace(CHAT, tools=(Tool("now"),)), so_far, max_tokens=40)
    assert not rest.text.startswith(" ")


@pytest.mark.parametrize("limit", [4, 6, 9])
def test_what_is_said_again_costs_no_token_of_the_answer(bundled: Runner, limit: int) -> None:
    """Whatever number of tokens a cut word had elsewhere, and has here."""
    whole = bundled.ask(CHAT, max_tokens=40)
    for num_steps in range(1, 4):
        so_far = whole.until(num_steps)
        assert so_far.num_tokens < limit
        rest = bundled.ask(CHAT, so_far, max_tokens=limit)
        assert so_far.text + rest.text == bundled.ask(CHAT, max_tokens=limit).text
        assert rest.num_tokens == limit


def test_the_tokens_that_are_left_are_exact_wherever_it_is_cut_and_cut_again(bundled: Runner) -> None:
    """Text that may begin a stop string is held back: its tokens are generated, and the client does not have them."""
    stops = (" and a long", "e never", ".\n\n\n", "s o")
    whole = bundled.ask(CHAT, max_tokens=24, stop=stops)
    assert whole.num_tokens == 24 == sum(whole.num_delivered)
    assert 0 in whole.num_delivered and any(num > 1 for num in whole.num_delivered), "text is held back, and comes"
    for num_steps in range(1, len(whole.texts) - 1):
        so_far = whole.until(num_steps)
        if not so_far.text:
            continue
        rest = bundled.ask(CHAT, so_far, max_tokens=24, stop=stops)
        assert (so_far.text + rest.text, rest.num_tokens) == (whole.text, 24)
        assert so_far.num_tokens + sum(rest.num_delivered) == 24
        again = rest.until(len(rest.texts) // 2, so_far)
        last = bundled.ask(CHAT, again, max_tokens=24, stop=stops)
        assert (again.text + last.text, last.num_tokens) == (whole.text, 24)


def test_an_estimate_is_raised_to_the_tokens_of_the_text(bundled: Runner) -> None:
    """A foreign server sent them in few frames and did not say how many there are."""
    whole = bundled.ask(CHAT, max_tokens=24)
    for num_steps in range(1, len(whole.texts)):
        exact = whole.until(num_steps)
        if exact.num_tokens < 2:
            continue
        so_far = replace(exact, num_tokens=1, is_estimated=True)
        rest = bundled.ask(CHAT, so_far, max_tokens=24)
        assert (so_far.text + rest.text, rest.num_tokens) == (whole.text, 24)
        nothing = bundled.ask(CHAT, so_far, max_tokens=exact.num_tokens)
        assert (nothing.text, nothing.num_tokens) == ("", exact.num_tokens)


def test_a_model_that_does_not_reason_continues_the_text_alone(bundled: Runner) -> None:
    with pytest.raises(NotSupported, match="does not reason"):
        bundled.prepare(CHAT, Delivered(so_far=AnswerSoFar("", "Let me think", 3)))
    with_reasoning, without = (
        bundled.ask(CHAT, AnswerSoFar("Eggs", reasoning, 4)) for reasoning in ("Let me think", "")
    )
    assert with_reasoning.text == without.text
    assert not any(with_reasoning.reasonings)
