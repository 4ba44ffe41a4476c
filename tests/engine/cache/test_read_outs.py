"""How long reading prefixes out of the cells may delay others, on a runner with a fixed cost for every operation."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import pytest

from edgeagent.engine.cache.block import Importance, Keyring, Payload, PayloadCodec
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import SequenceSpec
from tests.engine.support import greedy, run
from tests.fakes import FakeClock, FakeRunner, FakeTier
from tests.integrity import check_integrity

BLOCK_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """Costs in seconds: of a batch, a token, reading a token out, and a token for each cell: of others, of its own."""

    batch_s: float = 0.01
    token_s: float = 0.0025
    read_s: float = 0.00005
    foreign_s: float = 0.0
    own_s: float = 0.0


class Timed(FakeRunner):
    """Moves a clock by the machine's costs."""

    def __init__(self, machine: Machine, *, num_cells: int = 8192) -> None:
        super().__init__(num_cells=num_cells, max_batch=512, end_token=-1, max_outputs=64)
        self.machine, self.clock = machine, FakeClock()
        self.num_read = 0

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices)
        ids = {part.seq_id for part in slices}
        num_foreign = sum(len(held) for seq_id, held in self._sequences.items() if seq_id not in ids)
        num_tokens = sum(len(part.tokens) for part in slices)
        token_s = self.machine.token_s + self.machine.foreign_s * num_foreign
        own_s = sum(len(part.tokens) * part.start for part in slices) * self.machine.own_s
        self.clock.advance(self.machine.batch_s + num_tokens * token_s + own_s)

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        self.num_read += end - start
        self.clock.advance((end - start) * self.machine.read_s)
        return super().save(seq_id, start, end)

    def _logits_after(self, prefix: list[int]):  # type: ignore[no-untyped-def]
        return super()._logits_after(prefix[-1:])


class Served:
    """An engine on such a machine, with host memory and a disk."""

    def __init__(self, machine: Machine, *, num_cells: int = 8192) -> None:
        self.runner = Timed(machine, num_cells=num_cells)
        below = FakeTier()
        blocks = BlockTable(
            Keyring(b"fake", b"s" * 32),
            1 << 30,
            below,
            can_cut=True,
            block_tokens=BLOCK_TOKENS,
            clock=self.runner.clock,
        )
        costs = CostModel(self.runner.max_batch)
        for num_tokens in (1, 32):
            costs.observe(StepShape.alone(num_tokens, 0), machine.batch_s + num_tokens * machine.token_s)
        # A prompt's chunk in empty cells, behind its own cells and beside those of others.
        chunk_s = machine.batch_s + 128 * machine.token_s
        own, others = StepShape.alone(128, 512), StepShape(128, 512)
        own_s, crowded_s = (chunk_s + 128 * 512 * cell_s for cell_s in (machine.own_s, machine.foreign_s))
        for shape, took_s in ((StepShape.alone(128, 0), chunk_s), (own, own_s), (others, crowded_s)):
            for _ in range(3):
                costs.observe(shape, took_s)
        self.prefixes = PrefixStore(self.runner, blocks, costs, self.runner.clock)
        self.engine = Engine(self.runner, max_running=4, prefixes=self.prefixes, clock=self.runner.clock)

    def begin(self, name: str, prompt: list[int], max_tokens: int = 4, **options: object) -> float:
        """Add a request and run until its first token; return how many seconds that took."""
        started_s = self.runner.clock()
        sequence = self.engine.add(
            SequenceSpec(name, prompt, greedy(), max_tokens=max_tokens, **options)  # type: ignore[arg-type]
        )
        while not sequence.num_output:
            self.engine.step()
        return self.runner.clock() - started_s

    def finish(self) -> None:
        """Run until nothing is live; idle prefixes are not read out yet."""
        while self.engine.num_live:
            self.engine.step()


def prompt_of(length: int, seed: int = 1) -> list[int]:
    return [1 + (seed * 7 + index * index + index // 49) % 49 for index in range(length)]


def test_nothing_is_read_out_before_the_first_token() -> None:
    served = Served(Machine())
    served.begin("a", prompt_of(1400), 400)
    assert served.runner.num_read == 0
    before_s = served.runner.clock()
    served.finish()
    assert served.runner.num_read > 400, "a disk wants what a long answer has so far"
    assert served.runner.num_read * served.runner.machine.read_s <= 0.02 * (served.runner.clock() - before_s)
    run(served.engine)
    served.engine.close()
    check_integrity(served.engine)


@pytest.mark.parametrize(("foreign_s", "own_s"), [(2e-7, 1e-6), (2e-6, 2e-6)], ids=["flash", "plain"])
def test_new_conversations_in_a_row_are_as_quick_as_the_first(foreign_s: float, own_s: float) -> None:
    served = Served(Machine(foreign_s=foreign_s, own_s=own_s))
    times = []
    for number in range(5):
        times.append(served.begin(f"{number}", prompt_of(1400, number)))
        served.finish()
    assert max(times[1:]) <= 1.05 * times[0], times


def test_where_idle_cells_cost_nothing_no_prompt_waits_for_a_slow_read() -> None:
    served = Served(Machine(token_s=0.0001, read_s=0.0001))
    first_s = served.begin("0", prompt_of(1400, 0))
    served.finish()
    assert served.begin("1", prompt_of(1400, 1)) <= 1.05 * first_s
    served.finish()
    # Reading the first block out measured the cost of the others.
    num_read = served.runner.num_read
    assert served.begin("2", prompt_of(1400, 2)) <= 1.02 * first_s
    assert served.runner.num_read == num_read


def test_what_a_slow_read_left_in_the_cells_is_read_out_when_there_is_time() -> None:
    served = Served(Machine(token_s=0.0001, read_s=0.0001))
    for number in range(3):
        served.begin(f"{number}", prompt_of(1400, number))
        served.finish()
    run(served.engine)
    sequence = served.engine.add(SequenceSpec("again", prompt_of(1400, 1), greedy(), max_tokens=1))
    run(served.engine)
    assert sequence.num_cached >= 1399 - 1
    assert sequence.num_restored
    check_integrity(served.engine)


@pytest.mark.parametrize(("is_blocking", "foreign_s", "stays"), [(False, 0.0, 1), (False, 1e-6, 0), (True, 0.0, 0)])
def test_a_gpu_keeps_saved_prefixes_in_cells_while_they_cost_little(
    is_blocking: bool, foreign_s: float, stays: int
) -> None:
    served = Served(Machine(foreign_s=foreign_s))
    served.runner.is_blocking = is_blocking
    served.begin("a", prompt_of(600))
    run(served.engine)
    assert served.runner.num_read >= 600, "it is in blocks"
    served.begin("b", prompt_of(200, 2), 100)
    served.finish()
    assert (served.prefixes.slots.num_cells_used >= 900) == stays
    sequence = served.engine.add(SequenceSpec("next", [*prompt_of(600), 7, 8], greedy(), max_tokens=1))
    served.finish()
    assert sequence.num_cached == 600
    assert bool(sequence.num_restored) != stays
    check_integrity(served.engine)


def test_a_gpu_gives_up_prefixes_for_cells() -> None:
    served = Served(Machine(), num_cells=2048)
    served.runner.is_blocking = False
    for number in range(4):
        served.begin(f"{number}", prompt_of(900, number))
        run(served.engine)
        check_integrity(served.engine)
    sequence = served.engine.add(SequenceSpec("again", prompt_of(900, 0), greedy(), max_tokens=1))
    served.finish()
    assert sequence.num_cached > 800 and sequence.num_restored


def test_what_must_leave_is_read_out_first() -> None:
    served = Served(Machine(), num_cells=2048)
    for number in range(2):
        served.begin(f"{number}", prompt_of(1400, number))
        served.finish()
    assert served.runner.num_read > 0
    sequence = served.engine.add(SequenceSpec("again", prompt_of(1400, 0), greedy(), max_tokens=1))
    served.finish()
    assert sequence.num_cached > 1300
    check_integrity(served.engine)


def test_what_was_purged_while_it_ran_is_not_read_out_later() -> None:
    served = Served(Machine())
    served.begin("a", prompt_of(600), 300)
    served.engine.purge()
    served.finish()
    run(served.engine)
    assert served.runner.num_read == 0


def refuse(served: Served, reason: str) -> None:
    """Let no block be saved from now on."""
    if reason == "pinned":
        host = served.prefixes.blocks
        host.raise_importance(tuple(host._entries), Importance.PINNED)
        host.max_bytes = host.stats().num_bytes
    else:

        def fail(seq_id: int, start: int, end: int) -> memoryview:
            raise MemoryError

        served.runner.save = fail  # type: ignore[method-assign]


def beside_a_refused_prefix(machine: Machine, reason: str) -> tuple[Served, int]:
    """Let a long answer run beside an idle prefix that cannot be saved. Return the cells in use before it."""
    served = Served(machine)
    served.begin("first", prompt_of(200, 5), 1)
    served.finish()
    run(served.engine)
    refuse(served, reason)
    served.begin("0", prompt_of(1400, 0), 1)
    served.finish()
    run(served.engine)
    assert not served.prefixes.saver.has_unsaved
    num_cells = served.prefixes.slots.num_cells_used
    assert num_cells >= 1400
    served.begin("1", prompt_of(40, 1), 1500)
    served.finish()
    check_integrity(served.prefixes)
    return served, num_cells


@pytest.mark.parametrize("reason", ["pinned", "memory"])
def test_what_cannot_be_saved_stays_while_there_are_cells(reason: str) -> None:
    served, num_cells = beside_a_refused_prefix(Machine(foreign_s=2e-6, own_s=2e-6), reason)
    assert served.prefixes.slots.num_cells_used > num_cells
    assert served.prefixes.match("", prompt_of(1400, 0), 1399).cell_prefix.length == 1399


@pytest.mark.parametrize("ending", ["eviction", "close"])
def test_what_could_not_be_saved_is_tried_again_before_it_leaves(ending: str) -> None:
    served = Served(Machine(foreign_s=2e-6, own_s=2e-6), num_cells=2048 if ending == "eviction" else 8192)
    save = served.runner.save
    refuse(served, "memory")
    served.begin("0", prompt_of(1400, 0), 1)
    served.finish()
    run(served.engine)
    served.runner.save = save  # type: ignore[method-assign]
    match ending:
        case "eviction":
            served.begin("1", prompt_of(1400, 1), 1)
        case _:
            served.engine.close()
    served.finish()
    assert served.prefixes.match("", prompt_of(1400, 0), 1399).known[-1].end > 1300


def test_memory_for_what_is_read_out_next_is_made_ready_while_nothing_runs() -> None:
    served = Served(Machine())
    blocks = served.prefixes.blocks
    blocks.token_bytes = 4.0
    prefixes = PrefixStore(served.runner, blocks, clock=served.runner.clock)
    engine = Engine(served.runner, max_running=4, prefixes=prefixes, clock=served.runner.clock)
    asked: list[tuple[int, int]] = []

    def prepare(num_bytes: int, max_bytes: int) -> bool:
        assert not engine.num_live
        asked.append((num_bytes, max_bytes))
        return len(asked) % 3 != 0

    served.runner.prepare = prepare  # type: ignore[method-assign]
    prefixes.saver._cell_bytes = 4.0
    while engine.has_work:
        engine.step()
    assert asked == [(4 * BLOCK_TOKENS, 8192)] * 3, "a quarter of the cells' bytes"
    engine.add(SequenceSpec("a", prompt_of(100), greedy(), max_tokens=3))
    run(engine)
    assert len(asked) == 6, "what was read out took some of it"


def asked_for(served: Served) -> tuple[int, int]:
    """Return the bytes of a buffer, and of all free buffers, for which the runner is asked."""
    asked: list[tuple[int, int]] = []
    served.runner.prepare = lambda *sizes: bool(asked.append(sizes))  # type: ignore[method-assign, func-returns-value]
    assert not served.prefixes.saver._prepare()
    (sizes,) = asked
    return sizes


def read_out(served: Served) -> Served:
    """Read one prefix out of the cells."""
    served.begin("a", prompt_of(600), 300)
    served.finish()
    run(served.engine)
    assert served.runner.num_read
    return served


def test_two_buffers_stay_ready_although_host_memory_is_full() -> None:
    served = read_out(Served(Machine()))
    num_bytes, _ = asked_for(served)
    host = served.prefixes.blocks
    host.max_bytes = host.stats().num_bytes
    assert asked_for(served) == (num_bytes, 2 * num_bytes)


class Halving:
    """A codec that keeps half of a payload."""

    def pack(self, payload: Payload) -> Payload:
        return payload[: len(payload) // 2]

    def unpack(self, payload: Payload) -> Payload:
        return payload


class Keeping(Halving):
    """A codec that finds nothing to pack."""

    def pack(self, payload: Payload) -> Payload:
        return payload


def packing(codec: PayloadCodec) -> Served:
    served = Served(Machine())
    blocks = served.prefixes.blocks
    blocks._codec, blocks.token_bytes = codec, 4.0
    served.prefixes = PrefixStore(served.runner, blocks, served.prefixes.costs, served.runner.clock)
    served.engine = Engine(served.runner, max_running=4, prefixes=served.prefixes, clock=served.runner.clock)
    return served


def test_buffers_have_the_size_of_what_is_read_and_not_of_what_is_kept() -> None:
    assert asked_for(read_out(packing(Halving())))[0] == asked_for(read_out(Served(Machine())))[0]


def test_two_buffers_are_enough_if_blocks_are_packed_copies() -> None:
    for served in (packing(Halving()), read_out(packing(Halving()))):
        block_bytes, most_bytes = asked_for(served)
        assert most_bytes == 2 * block_bytes


def test_what_a_codec_leaves_as_it_is_needs_as_many_buffers_as_without_it() -> None:
    assert asked_for(read_out(packing(Keeping()))) == asked_for(read_out(Served(Machine())))
