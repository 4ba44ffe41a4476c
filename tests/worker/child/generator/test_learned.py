"""What a worker has learnt reaches the next worker of the same model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.speculation.proposals import MODEL
from edgeagent.types import MemoryKind
from edgeagent.types.choices import DraftRecord, LearnedCosts, SavedTuning
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.learned import TuningSender, WarmStart
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import FromWorker, Load, SaveTuning
from tests.conftest import TinyModel
from tests.worker.child.test_opening import make_load


class Outbox:
    def __init__(self) -> None:
        self.sent: list[FromWorker] = []

    def put(self, message: FromWorker | None) -> None:
        assert message is not None
        self.sent.append(message)


@pytest.fixture
def load(tiny_model: TinyModel) -> Load:
    path = tiny_model(MemoryKind.FULL_ATTENTION)
    made = make_load(path, ctx=512, batch=128, gpu_layers=0, draft_tokens=4)
    return msgspec.structs.replace(made, draft_path=str(path))


def begin(load: Load, saved_tuning: bytes = b"") -> Host:
    made = msgspec.structs.replace(load, saved_tuning=saved_tuning)
    return Host(made, open_model(made))


def test_costs_and_drafts_begin_with_what_an_earlier_worker_learnt(load: Load) -> None:
    first = begin(load)
    for _ in range(20):
        first.engine.cost_model.observe(StepShape.alone(96, 0), 1.5)
    record = DraftRecord(MODEL, "greedy", (9.0, 8.0, 0.0, 0.0), (9.0, 4.0, 0.0, 0.0))
    first.engine.proposals.experience.learn([record])
    saved_tuning = first.saved_tuning
    first.close()
    second = begin(load, saved_tuning)
    assert second.engine.cost_model.predict(StepShape.alone(96, 0)) == pytest.approx(1.5, rel=0.2)
    assert record in second.engine.proposals.experience.records()
    second.close()


def test_another_draft_is_expected_nothing_of(load: Load, tmp_path: Path) -> None:
    assert load.draft_path is not None
    first = begin(load)
    first.engine.proposals.experience.learn([DraftRecord(MODEL, "greedy", (9.0,), (9.0,))])
    saved_tuning = first.saved_tuning
    first.close()
    other = tmp_path / "other.gguf"
    other.write_bytes(Path(load.draft_path).read_bytes())
    second = begin(msgspec.structs.replace(load, draft_path=str(other)), saved_tuning)
    assert second.engine.proposals.experience.records() == ()
    second.close()


def test_under_other_conditions_it_is_not_used(load: Load) -> None:
    first = begin(load)
    first.engine.cost_model.observe(StepShape.alone(96, 0), 1.5)
    saved_tuning = first.saved_tuning
    first.close()
    changed = make_load(Path(load.path), ctx=512, batch=64, gpu_layers=0)
    second = begin(changed, saved_tuning)
    assert not second.engine.cost_model.knows([96])
    second.close()


def test_a_forged_record_is_no_record() -> None:
    good = msgspec.json.encode(LearnedCosts(records=(DraftRecord("draft model", "greedy", (1.0,), (1.0,)),)))
    assert msgspec.json.decode(good, type=LearnedCosts).records
    for bad in (b'{"times":[[0,0,0,1]]}', b'{"times":[[1,0,0,-1]]}', b'{"records":[{"verified":[1e99]}]}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(bad, type=LearnedCosts)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"conditions":{},"learned":1}', type=SavedTuning)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b'{"conditions":{"a":1}}'])
def test_what_is_not_ours_is_not_used(content: bytes) -> None:
    costs = CostModel(512)
    WarmStart({"a": "b"}, content).init_costs(costs)
    assert not costs.knows([1])


class FakeEngine:
    num_live = 0
    num_steps = 0

    def status(self) -> FakeEngine:
        return self


def test_it_is_sent_when_there_is_more_of_it_and_nobody_waits() -> None:
    engine, outbox, now = FakeEngine(), Outbox(), [0.0]
    tuning_sender = TuningSender(engine, lambda: b"tuning", outbox, lambda: now[0])  # type: ignore[arg-type]
    engine.num_steps = 5
    tuning_sender.send_if_due()
    assert outbox.sent == []
    now[0] = 61.0
    engine.num_live = 1
    tuning_sender.send_if_due()
    assert outbox.sent == []
    engine.num_live = 0
    tuning_sender.send_if_due()
    assert outbox.sent == [SaveTuning(b"tuning")]
    now[0] = 200.0
    tuning_sender.send_if_due()
    tuning_sender.send_if_due(is_last=True)
    assert len(outbox.sent) == 1, "there is no more of it"
    engine.num_steps = 6
    tuning_sender.send_if_due(is_last=True)
    assert len(outbox.sent) == 2


def test_means_of_steps_are_taken_over() -> None:
    old, new = CostModel(512), CostModel(512)
    for num_tokens in (1, 4, 16, 64, 256):
        for depth in (0, 1000):
            old.observe(StepShape.alone(num_tokens, depth), 0.01 + num_tokens * 0.001 + depth * num_tokens * 1e-7)
    new.learn(old.learned())
    for num_tokens in (1, 4, 16, 64, 256):
        shape = StepShape.alone(num_tokens, 1000)
        expected = old.predict(shape)
        assert expected is not None and new.predict(shape) == pytest.approx(expected, rel=0.1)
    assert new.knows([1, 4]) and not new.knows([3])
