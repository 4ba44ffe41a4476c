"""Prompts computed ahead of time are computed by the draft model too, once there is no other work."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import pytest

from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation import draft_model
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.engine.verification import Output
from edgeagent.errors import InternalError
from tests.engine.speculation.test_draft_blocks import BLOCK_TOKENS, PROMPT, make_draft, pair
from tests.engine.support import greedy, naive, run
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integrity import check_integrity


def to_warm(name: str = "warm", prompt: list[int] = PROMPT, **options: object) -> SequenceSpec:
    return SequenceSpec(name, prompt, greedy(), prefill_only=True, **options)  # type: ignore[arg-type]


def plain_pair(draft_runner: FakeRunner, below: FakeTier | None = None) -> Engine:
    """Return an engine whose target keeps prefixes only in its cells; without `below` its draft does too."""
    draft = DraftModel(draft_runner, clock=FakeClock()) if below is None else make_draft(draft_runner, below)
    return Engine(FakeRunner(num_cells=512), max_running=2, drafters=Drafters(draft), clock=FakeClock())


def test_the_first_answer_is_drafted_for_from_its_first_token_on() -> None:
    runner = FakeRunner(num_cells=512)
    engine = plain_pair(runner)
    engine.add(to_warm())
    run(engine)
    before = runner.num_tokens_computed
    assert before == len(PROMPT) - 1
    engine.add(SequenceSpec("a", PROMPT, greedy(), max_tokens=2, draft_tokens=1))
    assert run(engine) == {"a": naive(PROMPT, 2)}
    assert runner.num_tokens_computed - before < 5
    engine.close()


def test_a_restart_keeps_it() -> None:
    below = FakeTier()
    engine = pair(below)
    engine.add(to_warm())
    run(engine)
    engine.close()
    engine = pair(below)
    engine.add(SequenceSpec("a", PROMPT, greedy(), max_tokens=9, draft_tokens=2))
    assert run(engine) == {"a": naive(PROMPT, 9)}
    draft = engine.proposals.drafters.model
    assert draft is not None
    assert draft._runner.num_tokens_computed < 2 * BLOCK_TOKENS  # type: ignore[attr-defined]
    engine.close()


def test_a_request_goes_before_it_and_finds_room() -> None:
    runner = FakeRunner(num_cells=512, num_sequences=2)
    engine = plain_pair(runner)
    engine.add(to_warm())
    while engine.num_live:
        engine.step()
    engine.step()
    assert 0 < runner.num_tokens_computed < len(PROMPT) - 1, "it has begun"
    for name, prompt in (("a", [7, 8, 9]), ("b", [9, 8, 7])):
        engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=12, draft_tokens=2))
    outputs: list[Output] = []
    while engine.num_live:
        outputs += engine.step()
        check_integrity(engine)
    for name in ("a", "b"):
        (last,) = (output for output in outputs if output.sequence.id == name and output.is_last)
        assert last.sequence.num_drafted > 0
    run(engine)
    before = runner.num_tokens_computed
    engine.add(SequenceSpec("c", PROMPT, greedy(), max_tokens=2, draft_tokens=1))
    run(engine)
    assert runner.num_tokens_computed - before < 5, "it was computed to its end afterwards"
    engine.close()


@pytest.mark.parametrize("options", [{"write_cache": False}, {"partition": "mine"}])
def test_what_must_not_be_kept_is_not_computed(options: dict[str, Any]) -> None:
    runner = FakeRunner(num_cells=512)
    engine = plain_pair(runner)
    engine.add(to_warm(**options))
    while engine.num_live:
        engine.step()
    engine.step()
    engine.purge("mine")
    num_computed = runner.num_tokens_computed
    run(engine)
    assert runner.num_tokens_computed == num_computed < len(PROMPT) - 1
    assert engine.proposals.drafters.model is not None
    assert engine.proposals.drafters.model.prefixes.slots.num_cells_used == 0
    engine.close()


def test_another_partition_is_not_purged() -> None:
    runner = FakeRunner(num_cells=512)
    engine = plain_pair(runner)
    engine.add(to_warm(partition="yours"))
    while engine.num_live:
        engine.step()
    engine.purge("mine")
    run(engine)
    assert runner.num_tokens_computed == len(PROMPT) - 1
    engine.close()


def test_a_draft_model_that_fails_is_not_asked_for_ever() -> None:
    class Broken(FakeRunner):
        def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
            raise InternalError("llama_decode failed with status -3")

    engine = plain_pair(Broken(num_cells=512))
    engine.add(to_warm())
    run(engine)
    assert not engine.has_work
    engine.close()


def test_its_blocks_are_waited_for() -> None:
    below = FakeTier()
    engine = plain_pair(FakeRunner(num_cells=512), below)
    engine.add(to_warm())
    run(engine)
    engine.close()
    runner = FakeRunner(num_cells=512)
    engine = plain_pair(runner, below)
    below.is_slow = True
    engine.add(to_warm())
    while engine.num_live:
        engine.step()
    for _ in range(3):
        engine.step()
    assert engine.has_work
    assert runner.num_tokens_computed == 0
    below.is_slow = False
    run(engine)
    assert 0 < runner.num_tokens_computed < BLOCK_TOKENS
    engine.close()


def test_few_prompts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "_MAX_PROMPTS", 2)
    runner = FakeRunner(num_cells=512)
    engine = plain_pair(runner)
    for number in range(3):
        engine.add(to_warm(str(number), [40 + number, *range(1, 20)]))
    while engine.num_live:
        engine.step()
    run(engine)
    assert runner.num_tokens_computed == 2 * 19
    engine.close()
