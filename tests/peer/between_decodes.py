"""Measures what the worker does between two decodes: `python -m tests.peer.between_decodes`.

The worker's loop, engine, samplers, texts and pipe are real. Only the device is scripted: it takes a fixed time for a
step, and computes alone, as a GPU does. The tables show two figures for one, four and sixteen streams:

- The device's idle time, as a share of the whole. It is idle from the end of a step to the submission of the next.
- The CPU time of the main thread in that gap, in milliseconds. Other programs disturb it less.

With `--blocking`, a step takes the worker's main thread, as on a CPU. All that is not done in another thread then
counts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, cast

import numpy as np

from edgeagent.engine.cache.block import Payload
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Logits, Slice
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.process_settings import keep_collections_short, switch_threads_often
from edgeagent.text.output.stream import OutputStream
from edgeagent.types import GenerateRequest, MemoryKind, TokenPrompt
from edgeagent.worker.child.frame_writer import FrameWriter
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.protocol import Stop, Submit
from tests.fakes import warm_costs
from tests.text.fake_vocabulary import FakeVocabulary
from tests.worker.child.generator.fake_host import FakeEmbedder

MIXES = {
    "greedy": ResolvedSampling(temperature=0.0),
    "the defaults": ResolvedSampling(),
    "top-p alone": ResolvedSampling(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0),
}
NUM_ROWS = 32  # different rows of logits, more than the processor's caches hold
WARM_UP_STEPS = 40
SPIN_S = 0.001


class Device:
    """A runner whose device computes for `step_s` on its own. It records when it was idle, and the CPU time meanwhile.

    Its logits are those of a trained model: a few likely tokens and a long tail.
    """

    memory_kind = MemoryKind.FULL_ATTENTION
    num_cells, num_sequences, max_batch, max_whole, max_outputs = 1 << 16, 64, 512, 512, 512
    row_cost, max_rewind, attention_tile, min_prompt_chunk = 0.1, 512, 0, 1
    max_branches = 1

    def place_media(self, seq_id: int, stretches: object) -> None: ...

    can_shift = can_mix = False

    def __init__(self, num_vocab: int, step_s: float, *, is_blocking: bool) -> None:
        self.num_vocab, self._step_s, self.is_blocking = num_vocab, step_s, is_blocking
        random = np.random.default_rng(0)
        self._rows = random.normal(0.0, 2.0, (2 * NUM_ROWS, num_vocab)).astype(np.float32)
        for row in self._rows:
            row[random.integers(0, num_vocab, 50)] += np.linspace(18.0, 8.0, 50, dtype=np.float32)
        self._first_row = self._num_rows = 0
        self._lengths = [0] * self.num_sequences
        self._ends_at_s = self._cpu_s = 0.0
        self.idle_s: list[float] = []
        """How long the device was idle before each step."""
        self.cpu_s: list[float] = []
        """The main thread's CPU time between two steps."""

    def restore_shifted(self, seq_id: int, payload: Payload, end: int, wanted: range, shift: int) -> bool:
        """Refuse: no cells are moved."""
        return False

    def apply_shift(self) -> None:
        """Do nothing: no cells are moved."""

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Compute a batch."""
        self.submit(slices, min_tokens)
        self.wait()

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Begin a batch."""
        now_s = time.perf_counter()
        if self._ends_at_s:
            self.idle_s.append(max(0.0, now_s - self._ends_at_s))
            self.cpu_s.append(time.thread_time() - self._cpu_s)
        for part in slices:
            self._lengths[part.seq_id] = part.start + len(part.tokens)
        self._first_row = (self._first_row + 1) % NUM_ROWS
        self._num_rows = sum(part.num_logits for part in slices)
        self._ends_at_s = now_s + self._step_s
        if self.is_blocking:
            self._sleep()
            self._cpu_s = time.thread_time()

    def wait(self) -> None:
        """Wait for the batch."""
        if not self.is_blocking:
            self._sleep()
            self._cpu_s = time.thread_time()

    def _sleep(self) -> None:
        """Wait for the end of the step. At last this spins, as CUDA does: a timer would come too late."""
        time.sleep(max(0.0, self._ends_at_s - SPIN_S - time.perf_counter()))
        while time.perf_counter() < self._ends_at_s:
            time.sleep(0)  # lets other threads run

    def use_adapter(self, adapter: str) -> None: ...
    def clear_abort(self) -> None: ...
    def request_abort(self) -> None: ...

    def logits(self, index: int) -> Logits:
        """Return a row of logits."""
        row: Logits = self._rows[self._first_row + index]
        return row

    def all_logits(self) -> Logits:
        """Return all rows of logits."""
        return self._rows[self._first_row : self._first_row + self._num_rows]

    def can_trim(self, seq_id: int, length: int) -> bool:
        return length <= self._lengths[seq_id]

    def trim(self, seq_id: int, length: int) -> bool:
        self._lengths[seq_id] = length
        return True

    rewind = trim

    def clear(self, seq_id: int) -> None:
        self._lengths[seq_id] = 0

    def copy(self, source: int, target: int, length: int) -> bool:
        self._lengths[target] = length
        return True

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        return True

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        return memoryview(bytes(16))

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        return False

    def state_bytes(self, seq_id: int) -> int:
        return 0

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        return False

    def length(self, seq_id: int) -> int:
        return self._lengths[seq_id]

    def is_end(self, token: int) -> bool:
        return False


class Words(FakeVocabulary):
    """A vocabulary in which each token is a word."""

    def piece(self, token: int) -> bytes:
        return b" word"

    def is_control(self, token: int) -> bool:
        return False

    def is_end(self, token: int) -> bool:
        return False

    def clear_abort(self) -> None: ...


class DeviceHost:
    """A loaded model on a scripted device, in the place of the host with llama.cpp."""

    num_threads = max_threads = 1

    def __init__(self, device: Device, drafters: Drafters | None) -> None:
        self.runner, self.model = device, Words()
        prefixes = PrefixStore(device, costs=warm_costs(device.max_batch, 0.1))
        self.engine = Engine(device, max_running=16, drafters=drafters, prefixes=prefixes)
        self.embedder, self.itl_budget_s = FakeEmbedder(), 0.1

    def adjust_threads(self) -> None: ...
    def rest_threads(self) -> None: ...


@contextmanager
def pipe() -> Iterator[FrameWriter]:
    """Start a writer on a pipe that another process reads."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0) as reader:
        assert reader.stdin is not None
        writer = FrameWriter(cast(Any, reader.stdin))
        writer.start()
        yield writer
        writer.frames.put(None)
        writer.join()
        reader.stdin.close()


def run(device: Device, mix: ResolvedSampling, num_streams: int, num_steps: int, *, ngrams: bool = False) -> None:
    """Let streams generate `num_steps` tokens each."""
    host = DeviceHost(device, Drafters(ngrams=NgramDrafter()) if ngrams else None)
    with pipe() as writer:
        loop = GeneratorLoop(cast(Host, host), writer.frames)
        for stream in range(num_streams):
            prompt = tuple((7 * stream + 31 * place) % 1000 for place in range(100))
            request = GenerateRequest(
                id=f"{stream:032x}", model="", prompt=TokenPrompt(prompt), max_tokens=num_steps + WARM_UP_STEPS
            )
            submit = Submit(request, time.monotonic())
            sampler = Sampler(mix, device.num_vocab, history=prompt)
            spec = SequenceSpec(request.id, prompt, sampler, max_tokens=request.max_tokens)
            loop.commands.put(submit)
            loop.hand_in(submit, PreparedRequest(spec, OutputStream(host.model), 0.0))
        end = threading.Timer(600, loop.commands.put, (Stop(),))
        end.daemon = True
        end.start()
        loop.turn()
        while host.engine.num_live:
            loop.turn()
        end.cancel()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of each cell")
    parser.add_argument("--step-ms", type=float, nargs="*", default=[2.0, 6.0, 20.0])
    parser.add_argument("--vocab", type=int, nargs="*", default=[152_000, 262_000])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--mix", nargs="*", default=list(MIXES))
    parser.add_argument("--blocking", action="store_true")
    parser.add_argument("--ngrams", action="store_true", help="draft from the text")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    switch_threads_often()
    keep_collections_short()
    print(f"{'':34}" + "".join(f"{f'{streams} streams':>20}" for streams in arguments.streams))
    for num_vocab in arguments.vocab:
        device = Device(num_vocab, 0.0, is_blocking=arguments.blocking)
        for mix in arguments.mix:
            for step_ms in arguments.step_ms:
                cells = []
                for streams in arguments.streams:
                    device._step_s, device._ends_at_s = step_ms / 1000, 0.0
                    profile = cProfile.Profile(time.thread_time)
                    if arguments.profile:
                        profile.enable()
                    run(device, MIXES[mix], streams, arguments.steps, ngrams=arguments.ngrams)
                    profile.disable()
                    idle_ms = 1000 * median(device.idle_s[WARM_UP_STEPS:])
                    cpu_ms = 1000 * median(device.cpu_s[WARM_UP_STEPS:])
                    device.idle_s.clear()
                    device.cpu_s.clear()
                    cells.append(f"{idle_ms / (idle_ms + step_ms):8.1%} {cpu_ms:8.3f} ms")
                    if arguments.profile:
                        pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(45)
                print(
                    f"{num_vocab:8} {mix:14} {step_ms:4g} ms  " + "".join(f"{cell:>20}" for cell in cells), flush=True
                )


if __name__ == "__main__":
    main()
