"""Measures kept answers: `python -m tests.peer.answers [--entries 100000] [--rounds 300] [--only PART]`, minutes.

Parts, each of which prints rows for docs/figures.md:

- `hits`: the time to the first byte of a kept answer among many, as chat completions, as responses, and on a WebSocket,
  beside that of GET /health on the same daemon; and what a question that is not kept pays for the look-up.
- `misses`: the time to the first byte of a question that nothing kept could answer yet, so that it is embedded after
  its answer, with the bundled model and with SmolLM2; and the time of an embedding of 30 words.
- `similar`: the time to the first byte of an answer to a similar question among many vectors, and of one that is looked
  up among them and not found. The daemon says how much of it was the embedding, and how much the search behind it. So
  "without the embedding" is all else that the client waits for: HTTP, the exact look-up, the search, the answer.
- `streams`: what `tests.peer.similar_answers` measures, with the truth of the rules and of both models, and the search.
  This takes an hour, and no quiet machine.

`make answer-figures` runs all of them.

Questions with and without the cache go to the same daemon by turns, each with a prompt of its own and one token of
answer, so the load of the machine is the same for both. A question is asked once the daemon and its workers compute
nothing: otherwise it would meet the check of the answer before, which a visitor's question seldom does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np
import psutil
from gguf import GGMLQuantizationType
from msgspec import structs
from websockets.sync.client import connect

from edgeagent.answers.answer import Answer, encode
from edgeagent.answers.database import AnswerDatabase
from edgeagent.answers.seal import Seal
from edgeagent.answers.similar.index import Vector, as_bytes, vector_of
from edgeagent.answers.similar.records import Kept, Records
from edgeagent.bench.stats import quantile
from edgeagent.cache_folder import ensure_secret
from edgeagent.state_files import ANSWERS_FILE, SIMILAR_FILE
from edgeagent.types import Finished, FinishReason, Started, Step, TextDelta, Timings, Usage
from tests.integration.conftest import Daemon, serving
from tests.minilm import make_minilm
from tests.patience import patient
from tests.peer import similar_answers, vectors
from tests.smollm2 import MODEL as SMOLLM2

MAX_BYTES = 4 << 30
EMBEDDER = "all-minilm-l6-v2"
FACTS = "You are the guide of a large museum with many rooms. Answer each question in a few words."
_ADJECTIVES = ("red", "old", "small", "green", "wooden", "golden", "heavy", "blue", "silver", "round", "tall", "narrow")
_NOUNS = ("vase", "chair", "clock", "statue", "window", "bridge", "tower", "horse", "lamp", "mirror", "table", "ship")


def fill(state_dir: Path, num_entries: int) -> None:
    """Write answers of about 150 words under random keys, in one transaction, as the daemon would seal them."""
    seal, chance = Seal(ensure_secret(state_dir)), random.Random(1)
    words = [chance.randbytes(3).hex() for _ in range(2000)]
    database = AnswerDatabase(state_dir / ANSWERS_FILE, MAX_BYTES)
    connection = database._connection
    connection.execute("BEGIN")
    end = Finished(FinishReason.STOP, Usage(40, 0, 150), Timings())
    for number in range(num_entries):
        text = " ".join(chance.choices(words, k=150))
        step = Step((TextDelta(text),), tuple(range(150)))
        content = encode(Answer(f"question {number}", "builtin", "", time.time(), Started(40, 0), (step,), end))
        assert content is not None
        key = chance.randbytes(32)
        sealed = seal.seal(key, content)
        row = (key, "", "builtin", sealed, time.time(), number, 0, len(sealed) + 256)
        connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    database.close()


class Asker:
    """Asks on open connections: one for HTTP, and one WebSocket."""

    def __init__(self, daemon: Daemon) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=patient(60))
        self._socket = connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", max_size=None)

    def health_ms(self) -> float:
        """Return the milliseconds of GET /health: what HTTP and the machine cost without any answer."""
        return self._first_byte_ms("GET", "/health", None)[0]

    def embedding(self, text: str) -> tuple[float, Vector]:
        """Return the milliseconds of POST /v1/embeddings for a text, and its vector."""
        body = {"model": EMBEDDER, "input": text}
        took_ms, content = self._first_byte_ms("POST", "/v1/embeddings", body)
        return took_ms, np.asarray(json.loads(content)["data"][0]["embedding"], np.float32)

    def chat(self, question: str, max_tokens: int, answers: str, stop: Sequence[str] = ()) -> tuple[float, str]:
        """Return the milliseconds to the first byte of a chat completion's stream, and the kind of answer it is."""
        messages = [{"role": "system", "content": FACTS}, {"role": "user", "content": question}]
        body = {"messages": messages, "max_tokens": max_tokens, "stop": stop, **_of_all(answers)}
        took_ms, content = self._first_byte_ms("POST", "/v1/chat/completions", body)
        return took_ms, _kind_in(content)

    def response(self, question: str, max_tokens: int, answers: str, stop: Sequence[str] = ()) -> tuple[float, str]:
        """Return the same of a response over HTTP."""
        body = _response_fields(question, max_tokens, answers, stop)
        took_ms, content = self._first_byte_ms("POST", "/v1/responses", body)
        return took_ms, _kind_in(content)

    def socket_response(
        self, question: str, max_tokens: int, answers: str, stop: Sequence[str] = ()
    ) -> tuple[float, str]:
        """Return the same of a response on the WebSocket: to its first frame."""
        fields = _response_fields(question, max_tokens, answers, stop)
        began_s = time.perf_counter()
        self._socket.send(json.dumps({"type": "response.create", **fields}))
        frame = self._socket.recv(timeout=patient(60))
        took_ms = 1000 * (time.perf_counter() - began_s)
        while json.loads(frame)["type"] not in ("response.completed", "response.incomplete"):
            frame = self._socket.recv(timeout=patient(60))
        return took_ms, _kind_in(frame.encode() if isinstance(frame, str) else frame)

    def spent_ms(self, part: str) -> float:
        """Return the milliseconds that this part of all look-ups by similarity has taken so far."""
        text = self._first_byte_ms("GET", "/metrics", None)[1].decode()
        found = re.search(rf'^edgeagent_answer_lookup_seconds_sum{{part="{part}"}} (\S+)$', text, re.MULTILINE)
        return 1000 * float(found[1]) if found else 0.0

    def status(self) -> dict[str, Any]:
        """Return what the daemon says of its kept answers."""
        found: dict[str, Any] = json.loads(self._first_byte_ms("GET", "/edgeagent/answers", None)[1])
        return found

    def _first_byte_ms(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[float, bytes]:
        content = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        began_s = time.perf_counter()
        self._connection.request(method, path, content, headers)
        answer = self._connection.getresponse()
        first = answer.read(1)
        took_ms = 1000 * (time.perf_counter() - began_s)
        whole = first + answer.read()
        assert answer.status == 200, whole
        return took_ms, whole


def _response_fields(question: str, max_tokens: int, answers: str, stop: Sequence[str]) -> dict[str, Any]:
    said = {"input": question, "instructions": FACTS}
    return {**said, "max_output_tokens": max_tokens, "stop": stop, **_of_all(answers)}


def _of_all(answers: str) -> dict[str, Any]:
    return {"temperature": 0, "stream": True, "edgeagent": {"answers": answers}}


def _kind_in(content: bytes) -> str:
    """Return the kind of a kept answer in the events of a stream; "" if a model gave it."""
    found = content.replace(b" ", b"").rpartition(b'"answer":{"kind":"')[2]
    return found.partition(b'"')[0].decode() if b'"answer":{"kind":"' in content.replace(b" ", b"") else ""


class Ask(Protocol):
    """A method of Asker: it returns the milliseconds to the first byte, and the kind of answer it is."""

    def __call__(self, question: str, max_tokens: int, answers: str, stop: Sequence[str] = ()) -> tuple[float, str]: ...


def questions(count: int, seed: int) -> Iterator[str]:
    """Yield questions of 30 words, each a new one, in which no rule sees words of context."""
    chance = random.Random(seed)
    for number in range(count):
        things = [f"the {chance.choice(_ADJECTIVES)} {chance.choice(_NOUNS)}" for _ in range(6)]
        yield f"Which artist made {things[0]} with {', '.join(things[1:5])} and {things[5]} for collector {number}?"


def measure_hits(num_entries: int, num_rounds: int) -> None:
    """Print the rows of kept answers to equal questions."""
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        state_dir.mkdir(mode=0o700)
        fill(state_dir, num_entries)
        flags = ("--answers-exact", "--answers-max-bytes", str(MAX_BYTES), "--cache-disk-bytes", "0")
        with serving(state_dir, *flags) as daemon:
            asker, process = Asker(daemon), psutil.Process(daemon.process.pid)
            health_ms = [asker.health_ms() for _ in range(num_rounds)]
            print("| | median | 95 % | bar (95 %) | CPU of the daemon |\n|---|---|---|---|---|")
            print(f"| GET /health | {median(health_ms):.1f} ms | {quantile(health_ms, 0.95):.1f} ms | – | – |")
            wires: dict[str, Ask] = {
                "chat completion": asker.chat,
                "response": asker.response,
                "response, WebSocket": asker.socket_response,
            }
            for name, ask in wires.items():
                _measure_wire(name, ask, process, num_rounds, num_entries)
            _measure_exact_misses(asker, process, num_rounds)


def _measure_wire(name: str, ask: Ask, process: psutil.Process, num_rounds: int, num_entries: int) -> None:
    asked = [f"What is the number of the room {number}?" for number in range(20)]
    for question in asked:
        ask(question, 40, "use")
    before_s = cpu_s(process)
    hits = [ask(asked[index % 20], 40, "use") for index in range(num_rounds)]
    cpu_ms = 1000 * (cpu_s(process) - before_s) / num_rounds
    kept_ms = [took_ms for took_ms, kind in hits if kind == "exact"]
    print(
        f"| a kept answer among {num_entries:,}: {name} | {median(kept_ms):.1f} ms | {quantile(kept_ms, 0.95):.1f} ms "
        f"| 5 ms | {cpu_ms:.1f} ms | {len(kept_ms)} of {len(hits)} were kept ones",
        flush=True,
    )


def _measure_exact_misses(asker: Asker, process: psutil.Process, num_rounds: int) -> None:
    taken, spent_ms = _by_turns(asker, process, (f"{10_000 + number}: yes or no?" for number in range(2 * num_rounds)))
    added_ms = [use - none for use, none in zip(taken["use"], taken["none"], strict=True)]
    print(f"\n| what a question that is not kept pays, median | {median(added_ms):.1f} ms | 3 ms |")
    added_cpu_ms = (spent_ms["use"] - spent_ms["none"]) / num_rounds
    print(f"| – the daemon's CPU time, with keeping the answer | {added_cpu_ms:.1f} ms | |")
    print(f"| – to the first byte without the cache, median | {median(taken['none']):.1f} ms | |")


def _by_turns(
    asker: Asker, process: psutil.Process, asked: Iterator[str], max_tokens: int = 1, stop: Sequence[str] = ()
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Ask questions with and without the cache; the order of the two changes from pair to pair.

    Return the milliseconds to the first byte, and the daemon's CPU time in milliseconds.
    """
    taken: dict[str, list[float]] = {"use": [], "none": []}
    spent_ms = {"use": 0.0, "none": 0.0}
    for number, question in enumerate(asked):
        mode = "use" if number % 4 in (0, 3) else "none"
        settle(process)
        before_s = cpu_s(process)
        taken[mode].append(asker.chat(question, max_tokens, mode, stop)[0])
        spent_ms[mode] += 1000 * (cpu_s(process) - before_s)
    return taken, spent_ms


@contextmanager
def similar_daemon(folder: Path, model: str, *flags: str) -> Iterator[Daemon]:
    """Serve a model and the embedding model, which is loaded, with two threads each."""
    models = folder / "models"
    if not models.exists():
        models.mkdir()
        make_minilm(models / f"{EMBEDDER}.gguf", GGMLQuantizationType.Q8_0)
        shutil.copyfile(SMOLLM2, models / "smollm2.gguf")
    flags = ("--models-dir", str(models), "--answers-similar", "--threads", "2", "--cache-disk-bytes", "0", *flags)
    with serving(folder / "state", model, *flags) as daemon:
        Asker(daemon).embedding("Hello")
        yield daemon


def measure_misses(num_rounds: int) -> None:
    """Print the rows of questions that are looked up by similarity and not found, and of their embedding."""
    with tempfile.TemporaryDirectory() as folder:
        for model in ("builtin", "smollm2"):
            with similar_daemon(Path(folder), model, "--answers-max-age", "-1") as daemon:
                asker, process = Asker(daemon), psutil.Process(daemon.process.pid)
                for text in questions(6, seed=0):
                    asker.chat(text, 1, "none")
                if model == "builtin":
                    _print_embeddings(asker, num_rounds)
                known = asker.status()["similar"]["num_compared"], asker.status()["similar"]["num_questions"]
                taken, _ = _by_turns(asker, process, questions(2 * num_rounds, seed=1))
                report = asker.status()["similar"]
                _print_first_tokens(model, taken)
                print(
                    f"  refused {report['refused']}; compared {report['num_compared'] - known[0]}, "
                    f"{report['num_questions'] - known[1]} new questions",
                    flush=True,
                )


def _print_first_tokens(model: str, taken: dict[str, list[float]]) -> None:
    ratios = [use / none for use, none in zip(taken["use"], taken["none"], strict=True)]
    use_ms, none_ms = median(taken["use"]), median(taken["none"])
    print(
        f"| {model}: first token of a miss, of that without: median of pairs (ratio of medians) | {median(ratios):.3f} "
        f"({use_ms / none_ms:.3f}) | 1.05 | {use_ms:.1f} and {none_ms:.1f} ms |"
    )


def _print_embeddings(asker: Asker, num_rounds: int) -> None:
    health_ms = [asker.health_ms() for _ in range(num_rounds)]
    taken_ms = [asker.embedding(text)[0] for text in questions(num_rounds, seed=2)]
    print(
        f"| embedding of 30 words, over HTTP: median (95 %) | {median(taken_ms):.1f} ms "
        f"({quantile(taken_ms, 0.95):.1f}) | 15 ms | GET /health takes {median(health_ms):.1f} ms",
        flush=True,
    )


def measure_similar(num_entries: int, num_rounds: int) -> None:
    """Print the rows of answers to similar questions among many vectors."""
    flags = ("--answers-max-error", "0.4", "--answers-max-bytes", str(MAX_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        with similar_daemon(Path(folder), "smollm2", *flags) as daemon:
            asker = Asker(daemon)
            for text in _said("Where do I find the harp of the old king?", 60):
                if asker.chat(text, 40, "use", _STOP)[1] == "similar":
                    break
            real = [asker.embedding(text)[1] for text in questions(500, seed=3)]
        add_vectors(state_dir, real, num_entries)
        with similar_daemon(Path(folder), "smollm2", *flags) as daemon:
            asker, process = Asker(daemon), psutil.Process(daemon.process.pid)
            num_known = asker.status()["similar"]["num_questions"]
            texts = list(_said("Where do I find the harp of the old king?", 60 + num_rounds))[60:]
            wires: dict[str, Ask] = {"chat completion": asker.chat, "response, WebSocket": asker.socket_response}
            asked = [(name, _timed(ask, asker, process, text)) for text in texts for name, ask in wires.items()]
            misses = [_timed(asker.chat, asker, process, text) for text in questions(num_rounds, seed=6)]
            print("| | median | 95 % | bar (95 %) | |")
            for name in wires:
                hits = [timed for each, timed in asked if each == name and timed.kind == "similar"]
                first_ms = [each.first_ms for each in hits]
                _print_parts(f"an answer to a similar question among {num_known:,}: {name}", first_ms, "–")
                print(f"  {len(hits)} of {len(texts)} were such")
                _print_parts("– its embedding", [each.embedding_ms for each in hits], "–")
                rest_ms = [each.first_ms - each.embedding_ms for each in hits]
                _print_parts("– the first byte without the embedding", rest_ms, "5 ms")
            assert not any(each.kind for each in misses)
            _print_parts("what a miss pays beside its embedding", [each.search_ms for each in misses], "3 ms")
            _print_parts("– its embedding", [each.embedding_ms for each in misses], "–")
            # With the settings of the kept ones: only then is a question looked up among them.
            taken, _ = _by_turns(asker, process, questions(2 * num_rounds, seed=1), 40, _STOP)
            _print_first_tokens(f"smollm2, looked up among {num_known:,}", taken)


class _Timed(NamedTuple):
    """A question's time to the first byte, the kind of its answer, and what the daemon says of its look-up."""

    first_ms: float
    kind: str
    embedding_ms: float
    search_ms: float


def _timed(ask: Ask, asker: Asker, process: psutil.Process, text: str) -> _Timed:
    settle(process)
    before = asker.spent_ms("embedding"), asker.spent_ms("search")
    first_ms, kind = ask(text, 40, "use", _STOP)
    return _Timed(first_ms, kind, asker.spent_ms("embedding") - before[0], asker.spent_ms("search") - before[1])


def _print_parts(name: str, taken_ms: Sequence[float], bar: str) -> None:
    print(f"| {name} | {median(taken_ms):.1f} ms | {quantile(taken_ms, 0.95):.1f} ms | {bar} | |", flush=True)


# So the answers to all wordings are equal: "The harp of the old king".
_STOP = (" in", " is", ".", "\n")


def _said(question: str, count: int) -> Iterator[str]:
    """Yield one question with other words around it."""
    before = ("", "Hello, ", "Hi! ", "Excuse me, ", "Good day. ", "Please, ", "Hello there, ", "Hi, ", "Dear guide, ")
    after = ("", " Thank you!", " Thanks!", " Thank you very much.", " Many thanks.", " Thanks a lot!", " Please.")
    middle = (question, question.lower(), question.replace("Where do I find", "Where is"), question.replace("?", ""))
    every = [f"{one}{text}{other}" for text in middle for one in before for other in after]
    random.Random(4).shuffle(every)
    yield from every[:count]


def add_vectors(state_dir: Path, real: Sequence[Vector], num_entries: int) -> None:
    """Add questions to those that the daemon knows, at their place: real vectors, each moved at random."""
    seal, chance = Seal(ensure_secret(state_dir)), np.random.default_rng(5)
    records = Records(state_dir / SIMILAR_FILE, seal)
    learned, kept = records.load()
    assert learned is not None and kept
    model = next(iter(kept.values()))
    added = {}
    for number in range(num_entries - len(kept)):
        vector = real[number % len(real)] + 0.02 * chance.standard_normal(len(real[0]), np.float32)
        content = as_bytes(vector / np.linalg.norm(vector))
        added[chance.bytes(32)] = structs.replace(
            model, text=f"filler {number}", vector=content, observations=(), root=b""
        )
    records.put(learned, added)
    records.close()
    assert isinstance(model, Kept) and len(vector_of(model.vector)) == len(real[0])


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of the daemon's own process so far, without its workers'."""
    times = process.cpu_times()
    return float(times.user + times.system)


def settle(process: psutil.Process) -> None:
    """Wait until the daemon and its workers compute nothing; at most a few seconds."""
    each = [process, *process.children(recursive=True)]
    for _ in range(50):
        before_s = sum(map(cpu_s, each))
        time.sleep(0.06)
        if sum(map(cpu_s, each)) - before_s < 0.015:  # the clock ticks every 10 ms
            return


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--only", choices=("hits", "misses", "similar", "streams"))
    asked = parser.parse_args()
    if asked.only in (None, "hits"):
        measure_hits(asked.entries, asked.rounds)
    if asked.only in (None, "misses"):
        measure_misses(asked.rounds)
    if asked.only in (None, "similar"):
        measure_similar(asked.entries, min(asked.rounds, 150))
    print(f"\nload of the machine {os.getloadavg()[0]:.1f}")
    if asked.only in (None, "streams"):
        for domains, seeds in (("tuned", "5"), ("fresh", "5")):
            similar_answers.main(["--only", "streams", "--domains", domains, "--seeds", seeds])
        similar_answers.main(["--only", "adverse", "--domains", "tuned", "--seeds", "3"])
        similar_answers.main(["--only", "search"])
        vectors.main([])
        for model in ("smollm2", "builtin"):
            print(f"\nThe answerer is {model}:")
            similar_answers.main(["--only", "streams", "--truth", model])


if __name__ == "__main__":
    _main()
