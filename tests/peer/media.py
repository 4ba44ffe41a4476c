"""Compares questions about images and sounds with llama.cpp's own server: `python -m tests.peer.media`.

The text models are of the shelf, and their projectors have random weights: only times and equality mean anything. Both
servers have the same threads, context and number of sequences, and are asked by turns. It prints the tables of
docs/figures.md, one for each shape. `--tiny` takes tiny versions, to try this program, and `--only` parts of it.

The words are compared on a tiny version with exact weights, without flash attention: what is rounded depends on the
size of a batch, and random weights have many tokens that are nearly equally likely.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import json
import math
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import httpx
import platformdirs
import psutil

from edgeagent.bench.stats import quantile
from tests.peer.build import binary, default_folder
from tests.peer.servers import Child, edgeagent_command, free_port
from tests.peer.shelf import SHAPES, TWINS, cached_model, make_model
from tests.peer.shelf.shapes import SEEING, SEEING_TWIN, Shape
from tests.projectors import TINY, Kind, Size, make_projector, png, wav

T = TypeVar("T")
PEER = Path(platformdirs.user_cache_dir("edgeagent")) / "peer"
FIRST, SECOND = "What is this, and what is beside it?", "Who made it, and what would you do with it?"
PARTS = ("words", "first", "second", "streams", "memory")
NUM_STREAMS, STREAM_TOKENS = 4, 600
NUM_ANSWERS, NUM_WORDS = 8, 16  # greedy answers that are compared, and their tokens
SAVED_S = 12.0  # after a question until the daemon is killed: blocks that are not full wait for 5 s
NUM_FILES = 200  # whose memory is given back
CACHE_BYTES = 4 << 20  # of the daemon whose memory is measured: it is full after fewer than a hundred small files


@dataclass(frozen=True, slots=True)
class Shown:
    """A text model, its projector, and the files that it is asked about: images with sides of `side` pixels, or sounds
    of half a minute.
    """

    shape: Shape
    twin: Shape
    kind: Kind
    side: int
    patch: int

    def size(self, *, is_tiny: bool) -> Size:
        if is_tiny:
            return TINY
        # LFM2's encoder sees tiles of 512 pixels.
        image = 256 if self.kind == "lfm2" else self.side
        return Size(width=384, num_ffn=1536, num_layers=6, num_heads=6, patch=self.patch, image=image)

    def part(self, seed: int, *, is_tiny: bool) -> dict[str, Any]:
        """Return a file as a part of a message."""
        if self.kind == "ultravox":
            sound = base64.b64encode(wav(seed, 1.0 if is_tiny else 30.0)).decode()
            return {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
        side = 64 if is_tiny else self.side
        image = base64.b64encode(png(seed, side, side)).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}


SHOWN = {
    "gemma3": Shown(SHAPES["gemma-3-1b"], TWINS["gemma-3-1b"], "gemma3", 896, 14),
    "qwen2-vl": Shown(SEEING, SEEING_TWIN, "qwen2vl_merger", 896, 14),
    "lfm2": Shown(SHAPES["lfm2-350m"], TWINS["lfm2-350m"], "lfm2", 1024, 16),
    "ultravox": Shown(SHAPES["llama-3.2-1b"], TWINS["llama-3.2-1b"], "ultravox", 0, 0),
}


@dataclass(slots=True)
class Answer:
    """The text of an answer, when each part of it arrived after the question, and its counts of tokens."""

    text: str = ""
    arrived_s: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0

    @property
    def first_ms(self) -> float:
        return 1000 * self.arrived_s[0]


class Peer:
    """A server that is asked."""

    def __init__(self, child: Child, url: str) -> None:
        self.child, self._url = child, url
        self._model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]

    def ask(
        self, content: str | list[dict[str, Any]], max_tokens: int = 1, stop: threading.Event | None = None
    ) -> Answer:
        """Ask, and read the answer as it comes. Leave it when `stop` is set."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        answer, began_s = Answer(), time.perf_counter()
        with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=600) as response:
            if response.status_code != 200:
                raise SystemExit(f"{self._url}: {response.read().decode()}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                for choice in event.get("choices", ()):
                    text = choice["delta"].get("content") or choice["delta"].get("reasoning_content")
                    if text:
                        answer.text += text
                        answer.arrived_s.append(time.perf_counter() - began_s)
                if usage := event.get("usage"):
                    answer.num_prompt = usage["prompt_tokens"]
                    answer.num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                if stop is not None and stop.is_set():
                    break
        # A token may be a part of a character, which is sent with a later one.
        answer.arrived_s = answer.arrived_s or [time.perf_counter() - began_s]
        return answer

    def gaps_ms(self, about: list[dict[str, Any]]) -> tuple[list[float], list[float], float]:
        """Return the gaps of streams before a question about a file, those until its first token, and when it came."""
        answers, stop = [list[float]() for _ in range(NUM_STREAMS)], threading.Event()
        threads = [
            threading.Thread(target=self._stream, args=(index, times, stop)) for index, times in enumerate(answers)
        ]
        for thread in threads:
            thread.start()
        while min(map(len, answers)) < 40:
            time.sleep(0.05)
        began_s = time.perf_counter()
        first_ms = self.ask(about).first_ms
        ended_s = time.perf_counter()
        stop.set()
        for thread in threads:
            thread.join()
        before, gaps = list[float](), list[float]()
        for times in answers:
            for earlier, later in itertools.pairwise(times[10:]):  # first come the prompts
                # All of this is false if one is NaN.
                if earlier < later <= began_s:
                    before.append(1000 * (later - earlier))
                elif earlier < ended_s and later > began_s:
                    gaps.append(1000 * (later - earlier))
        return before, gaps, first_ms

    def _stream(self, index: int, times: list[float], stop: threading.Event) -> None:
        """Ask again and again until `stop`, and record when each part of the answers came; NaN before each answer."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Count from {index} on."}],
            "temperature": 0,
            "max_tokens": STREAM_TOKENS,
            "stream": True,
        }
        while not stop.is_set():
            times.append(math.nan)
            with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=600) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        times.append(time.perf_counter())
                    if stop.is_set():
                        return

    def memory_bytes(self) -> int:
        """Return the memory of the server and of the processes that it started."""
        process = psutil.Process(self.child.pid)
        return sum(each.memory_full_info().uss for each in (process, *process.children(recursive=True)))


@contextlib.contextmanager
def serving(command: list[str], health: str, url: str) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory() as folder:
        child = Child(command, Path(folder, "log"), health)
        try:
            yield Peer(child, url)
        finally:
            child.stop()


@contextlib.contextmanager
def edgeagent(model: Path, projector: Path, threads: int, *flags: str) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        given = ["--mmproj", str(projector), "--ctx", "8192", "--parallel", str(NUM_STREAMS + 1), "--batch", "1024"]
        command = edgeagent_command(model, Path(folder, "state"), port, *given, "--threads", str(threads), *flags)
        url = f"http://127.0.0.1:{port}"
        with serving(command, f"{url}/ready", url) as peer:
            yield peer


@contextlib.contextmanager
def llama_server(program: Path, model: Path, projector: Path, threads: int, *flags: str) -> Iterator[Peer]:
    port = free_port()
    # A micro-batch holds a whole image: llama.cpp asserts it for embeddings that attend to each other. So does
    # edgeagent's --batch.
    command = [str(program), "-m", str(model), "--mmproj", str(projector), "-c", "8192", "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads), "-np", str(NUM_STREAMS + 1), "-kvu", "--jinja"]
    command += ["-b", "2048", "-ub", "1024", *flags]
    url = f"http://127.0.0.1:{port}"
    with serving(command, f"{url}/health", url) as peer:
        yield peer


@dataclass(slots=True)
class Table:
    """The rows of a shape. Each has edgeagent's figure, the other server's, and whether the bar is met."""

    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, title: str, own: str, *other: str, bar: str = "–", is_met: bool | None = None) -> None:
        self.rows.append(
            (title, own, *(other or ("–",)), bar, "" if is_met is None else "met" if is_met else "**missed**")
        )

    def lines(self, title: str) -> Iterator[str]:
        yield f"| {title} | edgeagent | llama-server | bar | |"
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(row)} |" for row in self.rows)


class Comparison:
    """One shape on both servers."""

    def __init__(self, shown: Shown, options: argparse.Namespace, folder: Path) -> None:
        self._shown, self._options = shown, options
        shape = shown.twin if options.tiny else shown.shape
        self._model = cached_model(options.models, shape)
        self._projector = make_projector(
            folder / "mmproj.gguf", shown.kind, width=shape.width, size=shown.size(is_tiny=options.tiny)
        )
        self._seeds = itertools.count(1)
        self.table = Table()

    def about(self, text: str, seed: int) -> list[dict[str, Any]]:
        return [self._shown.part(seed, is_tiny=self._options.tiny), {"type": "text", "text": text}]

    def run(self) -> None:
        parts = self._options.only
        if "words" in parts:
            self._compare_words()
        compare = {"first": self._compare_first, "second": self._compare_second, "streams": self._compare_streams}
        chosen = [each for name, each in compare.items() if name in parts]
        if chosen:
            given = self._model, self._projector, self._options.threads
            with contextlib.ExitStack() as stack:
                budget = "--itl-budget-ms", f"{self._options.budget_ms:g}"
                peers = [stack.enter_context(edgeagent(*given, *budget))]
                if not self._options.alone:
                    peers.append(stack.enter_context(llama_server(self._options.llama_server, *given)))
                for peer in peers:
                    peer.ask(self.about("Warm up.", 0))
                for each in chosen:
                    each(peers)
        if "memory" in parts:
            self._measure_memory()

    def _compare_words(self) -> None:
        """Compare greedy answers, as `comparable` texts."""
        with tempfile.TemporaryDirectory() as folder:
            options = argparse.Namespace(**{**vars(self._options), "tiny": True})
            exact = Comparison(self._shown, options, Path(folder))
            exact._model = make_model(Path(folder, "exact.gguf"), self._shown.twin, "F32")
            threads, program = self._options.threads, self._options.llama_server
            num_same = 0
            with (
                edgeagent(exact._model, exact._projector, threads, "--flash-attention", "off") as own,
                llama_server(program, exact._model, exact._projector, threads, "-fa", "off") as other,
            ):
                for seed in range(NUM_ANSWERS):
                    about = exact.about(FIRST, seed)
                    texts = [comparable(peer.ask(about, NUM_WORDS).text) for peer in (own, other)]
                    # llama-server leaves out what follows the beginning of a character at the end.
                    num_same += texts[0] == texts[1] or texts[0].startswith(texts[1] + "\ufffd")
        title = f"the same {NUM_WORDS} greedy tokens"
        self.table.add(title, f"{num_same} of {NUM_ANSWERS}", bar="all", is_met=num_same == NUM_ANSWERS)

    def _compare_first(self, peers: list[Peer]) -> None:
        """Ask about a new file, each peer in turn."""
        taken, num_prompt = [list[float]() for _ in peers], [0 for _ in peers]
        for turn in range(self._options.rounds):
            about = self.about(FIRST, next(self._seeds))
            for index in in_turn(range(len(peers)), turn):
                answer = peers[index].ask(about)
                taken[index].append(answer.first_ms)
                num_prompt[index] = answer.num_prompt
        self.table.add("tokens of the question", *map(str, num_prompt))
        title, cells = "first question: first token", milliseconds(taken)
        if self._options.alone:
            self.table.add(title, *cells)
            return
        ratio = median(mine / theirs for mine, theirs in zip(*taken, strict=True))
        self.table.add(title, *cells, bar=f"≤ 1.02 × ({ratio:.3f})", is_met=ratio <= 1.02)

    def _compare_second(self, peers: list[Peer]) -> None:
        """Ask a second time about a file, and about a text of the same length; then again after a kill."""
        second, text, after, text_after = ([list[float]() for _ in peers] for _ in range(4))
        for index, peer in enumerate(peers):
            for turn in range(self._options.rounds):
                seed = next(self._seeds)
                num_prompt = peer.ask(self.about(FIRST, seed)).num_prompt
                second[index].append(peer.ask(self.about(f"{seed}: {SECOND}", seed)).first_ms)
                words = text_of(peer, num_prompt, seed)
                peer.ask(f"{words} {FIRST}")
                text[index].append(peer.ask(f"{words} {seed}: {SECOND}").first_ms)
                time.sleep(SAVED_S)
                peer.child.restart()
                peer.ask("Warm up.")
                questions: list[tuple[list[float], str | list[dict[str, Any]]]] = [
                    (after[index], self.about(f"And then: {SECOND}", seed)),
                    (text_after[index], f"{words} And then: {SECOND}"),
                ]
                for asked, question in in_turn(questions, turn):
                    asked.append(peer.ask(question).first_ms)
        for title, times, bar in (
            ("second question: first token", second, 1.2),
            ("– after kill -9 and a restart", after, 1.5),
        ):
            ratio = median(times[0]) / median(text[0])
            self.table.add(title, *milliseconds(times), bar=f"≤ {bar} × a text's ({ratio:.2f})", is_met=ratio <= bar)
        self.table.add("– of a text", *milliseconds(text))
        self.table.add("– of a text, after it too", *milliseconds(text_after))
        seed, elsewhere = next(self._seeds), list[list[float]]()
        for peer in peers:
            peer.ask(self.about(FIRST, seed))
            moved = [{"type": "text", "text": "Look at this."}, *self.about(FIRST, seed)]
            elsewhere.append([peer.ask(moved).first_ms])
        self.table.add("the same file behind another text: first token", *milliseconds(elsewhere))

    def _compare_streams(self, peers: list[Peer]) -> None:
        cells, before, p95s_ms = list[str](), list[str](), list[float]()
        for peer in peers:
            usual, gaps, first_ms = peer.gaps_ms(self.about(FIRST, next(self._seeds)))
            before.append(f"{quantile(usual, 0.95):.0f} ms (most {max(usual):.0f})")
            p95s_ms.append(quantile(gaps, 0.95))
            cells.append(f"{p95s_ms[-1]:.0f} ms (most {max(gaps):.0f}; answered after {first_ms:.0f})")
        title = f"{NUM_STREAMS} streams while a file is read: gaps, p95"
        most_ms = self._options.budget_ms
        self.table.add(title, *cells, bar=f"≤ {most_ms:g} ms", is_met=p95s_ms[0] <= most_ms)
        self.table.add("– before it", *before)

    def _measure_memory(self) -> None:
        """Ask about many small files, and compare the memory with that after the first ones."""
        shown, options = self._shown, argparse.Namespace(**{**vars(self._options), "tiny": True})
        with tempfile.TemporaryDirectory() as folder:
            tiny = Comparison(shown, options, Path(folder))
            flags = ("--cache-memory-bytes", str(CACHE_BYTES))
            with edgeagent(tiny._model, tiny._projector, options.threads, *flags) as own:
                for seed in range(NUM_FILES // 2):
                    own.ask(tiny.about(FIRST, seed))
                before = own.memory_bytes()
                for seed in range(NUM_FILES // 2, NUM_FILES // 2 + NUM_FILES):
                    own.ask(tiny.about(FIRST, seed))
                grown = (own.memory_bytes() - before) / 2**20
        self.table.add(f"memory after {NUM_FILES} more files", f"{grown:+.1f} MiB", bar="≤ 8 MiB", is_met=grown <= 8)


def comparable(text: str) -> str:
    """Return a text without what the servers write differently: white space before it, and bytes that are no UTF-8."""
    return re.sub("\ufffd+", "\ufffd", text).lstrip()


def milliseconds(times: list[list[float]]) -> list[str]:
    """Return the median of each list of times as a cell of the table."""
    return [f"{median(each):.0f} ms" for each in times]


def in_turn(parts: Sequence[T], turn: int) -> Sequence[T]:
    """Return the parts, in another order at every second turn."""
    return parts if turn % 2 else parts[::-1]


def text_of(peer: Peer, num_tokens: int, seed: int) -> str:
    """Return a text of about as many tokens. It begins with `seed`, so that it is not cached."""
    words = [str(seed), *map(str, range(num_tokens))]
    num_taken = peer.ask(" ".join(words[: num_tokens // 2])).num_prompt
    return " ".join(["0", *words[: max(1, num_tokens // 2 * num_tokens // max(1, num_taken))]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHOWN, action="append", help="default: all")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part of the comparison; default: all")
    parser.add_argument("--alone", action="store_true", help="leave llama-server out, and the words, which need it")
    parser.add_argument("--tiny", action="store_true", help="take tiny versions, to try this program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget-ms", type=float, default=100.0, help="edgeagent's --itl-budget-ms")
    parser.add_argument("--models", type=Path, default=PEER / "models", help="where the shapes' models are kept")
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    options = parser.parse_args()
    options.only = [part for part in options.only or PARTS if not (options.alone and part == "words")]
    if not options.alone and not options.llama_server.exists() and options.only != ["memory"]:
        parser.error(
            f"there is no llama-server at {options.llama_server}: compile it with `python tests/peer/build.py`, name "
            "another one with --llama-server, or leave it out with --alone"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with this process
    for name in options.shape or SHOWN:
        with tempfile.TemporaryDirectory() as folder:
            comparison = Comparison(SHOWN[name], options, Path(folder))
            comparison.run()
        print("\n".join(comparison.table.lines(name)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
