"""Machines with scripted costs: probes for a calibration that compute nothing and advance a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.calibration import Calibration, Sample
from edgeagent.engine.tuning.choices import ContextSize
from edgeagent.engine.tuning.workload import Workload, tokens_of
from edgeagent.types.choices import Measurements
from tests.fakes import FakeClock

CONTEXT_SIZE = ContextSize(num_cells=8192, parallel=4)
NUM_LAYERS = 24
DEPTH = 1024
CANDIDATES = tuple(Attention(form, size) for form in ("on", "off") for size in (512, 128, 64))

Costs = Callable[[Attention, Workload], float]


@dataclass
class Machine:
    """Seconds per token and layer, by candidate and work; `shares` are the core shares of successive samples."""

    cost: Costs
    clock: FakeClock = field(default_factory=FakeClock)
    shares: list[float] = field(default_factory=list)
    open_s: float = 0.0
    num_open: int = 0
    asked: list[tuple[str, int, Workload]] = field(default_factory=list)

    def open(self, attention: Attention) -> FakeProbe:
        self.clock.advance(self.open_s)
        self.num_open += 1
        return FakeProbe(self, attention)

    def calibrate(
        self, candidates: tuple[Attention, ...] = CANDIDATES, budget_s: float = 2.0, *, has_padding: bool = False
    ) -> Measurements | None:
        calibration = Calibration(
            self.open,
            min_layers=1,
            max_layers=NUM_LAYERS,
            depth=DEPTH,
            has_padding=has_padding,
            clock=self.clock,
        )
        return calibration.measure(candidates, CONTEXT_SIZE, budget_s)


@dataclass
class FakeProbe:
    """A probe that takes as long as its machine says, and stops at the deadline, as llama.cpp's does."""

    machine: Machine
    attention: Attention

    def measure(self, work: Workload, num_layers: int, deadline_s: float) -> Sample | None:
        machine = self.machine
        machine.asked.append((self.attention.flash, self.attention.micro_batch, work))
        took_s = machine.cost(self.attention, work) * tokens_of(work) * num_layers
        left_s = deadline_s - machine.clock.now_s
        machine.clock.advance(max(0.0, min(took_s, left_s)))
        if took_s > left_s:
            return None
        return Sample(took_s, machine.shares.pop(0) if machine.shares else 1.0)

    def close(self) -> None:
        self.machine.num_open -= 1


def cheap(form: str, size: int, *, ratio: float = 2.0) -> Costs:
    """Return the costs of a machine on which one form and one size are faster than all others."""

    def cost(attention: Attention, work: Workload) -> float:
        is_quick = attention.micro_batch == size if work.startswith("batch") else attention.flash == form
        return 1e-5 if is_quick else ratio * 1e-5

    return cost
