"""A scripted worker process that uses the real protocol, and misbehaves on command.

The command line (`stub_command`) scripts the start of each life, and a request's prompt text scripts the request. Both
are lists of commands, one for each life of the worker (the last one repeats). So "die SIGKILL 2 | answer 3" dies in the
first life, and answers in the second, from the delivered tokens. The commands are the methods of `Stub` below.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from edgeagent.types import (
    ChatPrompt,
    Embed,
    Embedding,
    Finished,
    FinishReason,
    GenerateRequest,
    MemoryKind,
    ModelInfo,
    PurgeCache,
    QueryAnswer,
    SamplingParams,
    Started,
    TextDelta,
    TextPrompt,
    Timings,
    Tokenize,
    Usage,
    WorkerStatus,
)
from edgeagent.worker import protocol
from edgeagent.worker.exit_cause import describe_unwritten
from edgeagent.worker.protocol import (
    AnswerPart,
    Ask,
    Cancel,
    Delivered,
    Failed,
    FromWorker,
    Load,
    LoadFailed,
    LoadProgress,
    Ping,
    Pong,
    Ready,
    StepItem,
    StepResult,
    Stop,
    Submit,
)

SECRET = "the user's own words"
NUM_PROMPT_TOKENS = 7


def stub_command(lives: Path, *starts: str, ignore_sigterm: bool = False) -> tuple[str, ...]:
    """Return the command line of a stub that counts its lives in a file; `starts` script them ("ok" by default)."""
    script = {"lives": str(lives), "starts": starts or ("ok",), "ignore_sigterm": ignore_sigterm}
    return (sys.executable, "-P", "-m", "tests.stub_worker", json.dumps(script))


def num_lives(lives: Path) -> int:
    """Return how many workers were started."""
    return lives.stat().st_size if lives.exists() else 0


class Stub:
    """One life of the worker.

    Methods `start_*` are commands for the start, `do_*` for requests, `ask_*` for queries.
    """

    def __init__(self, lives: Path) -> None:
        with lives.open("ab") as file:
            file.write(b".")
        self.life = num_lives(lives)
        self.live: dict[str, bool] = {}  # id → whether it reacts to a cancel
        self.streams: dict[str, int] = {}
        self.dropped: list[str] = []
        self.busy: set[str] = set()
        self.num_delivered: dict[str, int] = {}
        self.num_steps = 0
        self.preparing_since_s = 0.0
        self.preparing_id = ""
        self.name = "stub"
        self.tokens_per_s = 0.0

    def command(self, commands: list[str]) -> list[str]:
        """Return the words of the command for this life."""
        return commands[min(self.life, len(commands)) - 1].split()

    def run(self, starts: list[str]) -> None:
        """Load, then serve until told to stop."""
        kind, *words = self.command(starts)
        getattr(self, f"start_{kind}")(*words)
        while (message := protocol.read_to_worker(sys.stdin.buffer)) is not None:
            match message:
                case Submit(request, delivered=Delivered(delivered)):
                    assert delivered == tuple(range(1000, 1000 + len(delivered)))
                    self.num_delivered[request.id] = len(delivered)
                    kind, *words = self.command(text_of(request).split("|"))
                    self.live[request.id] = True
                    getattr(self, "do_" + kind.replace("-", "_"))(request.id, *words)
                case Cancel(ask_id) if ask_id.startswith("ask-"):
                    self.dropped.append(ask_id)
                    self.busy.discard(ask_id)
                case Cancel(request_id):
                    if self.live.get(request_id):
                        self.finish(request_id, FinishReason.CANCELLED)
                case Ask(ask_id, Embed(inputs)):
                    assert isinstance(inputs[0], TextPrompt)
                    kind, *words = self.command(inputs[0].text.split("|"))
                    getattr(self, "ask_" + kind)(ask_id, *words)
                case Ask(_, PurgeCache()):
                    pass  # its disk hangs
                case Ask(ask_id, query):
                    assert isinstance(query, Tokenize)
                    kind, *words = self.command(query.text.split("|"))
                    getattr(self, "ask_" + kind)(ask_id, *words)
                case Ping(nonce):
                    self.on_ping(nonce)
                case Stop():
                    for request_id in list(self.live):
                        self.finish(request_id, FinishReason.CANCELLED)
                    return
                case Load():
                    raise AssertionError("a second load")

    def on_ping(self, nonce: int) -> None:
        for request_id, index in self.streams.items():
            self.token(request_id, index)
            self.streams[request_id] += 1
        self.num_steps += len(self.busy)
        status = WorkerStatus(
            num_steps=self.num_steps,
            num_running=len(self.live),
            preparing_since_s=self.preparing_since_s,
            preparing_id=self.preparing_id,
            prefill_tokens_per_s=self.tokens_per_s,
            num_output_tokens_total=int(self.tokens_per_s > 0),
        )
        send(Pong(nonce, status))

    def step(self, request_id: str, *deltas: Started | TextDelta | Finished, tokens: tuple[int, ...] = ()) -> None:
        self.num_steps += 1
        send(StepResult(time.monotonic(), (StepItem(request_id, deltas, tokens),)))

    def token(self, request_id: str, index: int) -> None:
        self.step(request_id, TextDelta(f"{index} "), tokens=(1000 + index,))

    def tokens(self, request_id: str, num: int) -> None:
        if num:
            self.step(request_id, Started(NUM_PROMPT_TOKENS, 0))
        for index in range(self.num_delivered[request_id], num):
            self.token(request_id, index)

    def finish(self, request_id: str, reason: FinishReason, num_tokens: int = 0) -> None:
        num_tokens = num_tokens or self.streams.pop(request_id, 0)
        if self.live.pop(request_id, None) is not None:
            self.step(request_id, Finished(reason, Usage(NUM_PROMPT_TOKENS, 0, num_tokens), Timings()))

    def load(self) -> None:
        message = protocol.read_to_worker(sys.stdin.buffer)
        assert isinstance(message, Load)
        self.name = message.name

    def ready(self) -> None:
        send(Ready(model_info(self.name)))

    def start_ok(self) -> None:
        self.load()
        send(LoadProgress(0.5))
        self.ready()

    def start_stderr(self, num_bytes: str) -> None:
        print("x" * int(num_bytes), file=sys.stderr, flush=True)
        self.start_ok()

    def start_rated(self, tokens_per_s: str) -> None:
        """Be ready, and report that prompts are computed at this speed."""
        self.tokens_per_s = float(tokens_per_s)
        self.start_ok()

    def start_fail(self, code: str) -> None:
        self.load()
        send(LoadFailed(code, "the file is not to its liking"))

    def start_short(self, num_tries: str) -> None:
        """Fail with too little memory until the load was tried this often."""
        load = protocol.read_to_worker(sys.stdin.buffer)
        assert isinstance(load, Load)
        if load.num_tries < int(num_tries):
            send(LoadFailed("model_out_of_memory", "there is no memory", can_take_less=True))
        else:
            self.ready()

    def start_die(self, name: str) -> None:
        self.load()
        die(name)

    def start_exit(self, code: str) -> None:
        sys.exit(int(code))

    def start_raise(self) -> None:
        raise ImportError("libcuda.so.1: cannot open shared object file")

    def start_creep(self, num_steps: str) -> None:
        """Load slowly, with a little progress for each ping."""
        self.load()
        for index in range(int(num_steps)):
            message = protocol.read_to_worker(sys.stdin.buffer)
            while not isinstance(message, Ping):
                if message is None or isinstance(message, Stop):
                    sys.exit(0)
                message = protocol.read_to_worker(sys.stdin.buffer)
            send(Pong(message.nonce, WorkerStatus()))
            send(LoadProgress((index + 1) / int(num_steps)))
        self.ready()

    def start_stall(self, *part: str) -> None:
        """Load forever without progress, but answer pings. `part` is the part that is being tried."""
        self.load()
        send(LoadProgress(0.25, " ".join(part)))
        while (message := protocol.read_to_worker(sys.stdin.buffer)) is not None:
            if isinstance(message, Ping):
                send(Pong(message.nonce, WorkerStatus()))
                send(LoadProgress(0.25, " ".join(part)))

    def start_saving(self) -> None:
        """Be ready; when told to stop, take a while, and report that some prompts were not written to disk."""
        self.start_ok()
        while not isinstance(protocol.read_to_worker(sys.stdin.buffer), Stop):
            pass
        time.sleep(0.5)
        sys.stderr.write(f"edgeagent worker: {describe_unwritten(3 << 20)}\n")
        sys.stderr.flush()
        sys.exit(0)

    def start_deaf(self) -> None:
        """Load, then read nothing more, not even the end of the pipe."""
        self.start_ok()
        while True:
            time.sleep(60)

    def start_garbage(self) -> None:
        os.write(1, b"Hello from a library that prints on stdout\n" * 100)
        self.start_ok()

    def start_early(self) -> None:
        """Report ready twice."""
        self.start_ok()
        self.ready()

    def start_belated(self) -> None:
        """Report ready, and then that the load failed."""
        self.start_ok()
        send(LoadFailed("model_load_failed", "the file is not to its liking"))

    def ask_answer(self, ask_id: str, num: str) -> None:
        """Answer in several parts; the text is the ids of the queries dropped before."""
        for index in range(int(num)):
            send(AnswerPart(ask_id, QueryAnswer(tokens=(index,), pieces=(b"x",)), is_last=False))
        send(AnswerPart(ask_id, QueryAnswer(" ".join(self.dropped)), is_last=True))

    def ask_vectors(self, ask_id: str, num: str) -> None:
        """Answer with this many vectors, each in its own frame."""
        for index in range(int(num)):
            part = QueryAnswer(embeddings=(Embedding(b"\0\0\x80?", index),))
            send(AnswerPart(ask_id, part, is_last=index == int(num) - 1))

    def ask_busy(self, ask_id: str) -> None:
        """Compute forever, a step for each ping, until dropped."""
        self.busy.add(ask_id)

    def ask_wait(self, ask_id: str) -> None:
        """Never answer."""

    def ask_fail(self, ask_id: str, code: str) -> None:
        send(Failed(ask_id, code, "it would not", param="tokens"))

    def ask_die(self, ask_id: str) -> None:
        die("SIGKILL")

    def ask_raise(self, ask_id: str) -> None:
        raise RuntimeError(f"cannot tokenize {SECRET!r}")

    def ask_endless(self, ask_id: str) -> None:
        while True:
            send(AnswerPart(ask_id, QueryAnswer("x"), is_last=False))

    def do_answer(self, request_id: str, num: str) -> None:
        self.tokens(request_id, int(num))
        self.finish(request_id, FinishReason.STOP, int(num))

    def do_stream(self, request_id: str) -> None:
        """Send one token for each ping until cancelled."""
        self.step(request_id, Started(NUM_PROMPT_TOKENS, 0))
        self.streams[request_id] = self.num_delivered[request_id]

    def do_begin(self, request_id: str) -> None:
        """Report the start, then do nothing until cancelled."""
        self.step(request_id, Started(NUM_PROMPT_TOKENS, 0))

    def do_wait(self, request_id: str, num: str = "0") -> None:
        """Send some tokens, then do nothing until cancelled."""
        self.tokens(request_id, int(num))

    def do_deaf(self, request_id: str, num: str = "0") -> None:
        """Send some tokens, then ignore everything except pings."""
        self.tokens(request_id, int(num))
        self.live[request_id] = False

    def do_linger(self, request_id: str, num: str) -> None:
        """Send some tokens after the delivered ones, then do nothing until cancelled."""
        self.tokens(request_id, self.num_delivered[request_id] + int(num))

    def do_die(self, request_id: str, name: str, num: str = "0") -> None:
        self.tokens(request_id, int(num))
        die(name)

    def do_exit(self, request_id: str, code: str, num: str = "0") -> None:
        self.tokens(request_id, int(num))
        sys.exit(int(code))

    def do_raise(self, request_id: str) -> None:
        self.tokens(request_id, 1)
        raise RuntimeError(f"cannot tokenize {SECRET!r}")

    def do_assert(self, request_id: str) -> None:
        self.tokens(request_id, 1)
        print("/build/ggml/src/ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed", file=sys.stderr, flush=True)
        die("SIGABRT")

    def do_terminate(self, request_id: str) -> None:
        self.tokens(request_id, 1)
        print(
            f"terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad {SECRET}",
            file=sys.stderr,
            flush=True,
        )
        die("SIGABRT")

    def do_freeze(self, request_id: str, num: str = "0") -> None:
        self.tokens(request_id, int(num))
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_parts(self, request_id: str) -> None:
        """Send a part of an item, then die; the next life sends the whole item."""
        send(StepResult(time.monotonic(), (StepItem(request_id, (TextDelta("0 "),), is_part=True),)))
        die("SIGKILL")

    def do_prepare(self, request_id: str) -> None:
        """Prepare the prompt forever, while other requests continue."""
        self.live[request_id] = False
        self.preparing_since_s = time.monotonic()
        self.preparing_id = request_id

    def do_spin(self, request_id: str, num: str = "0") -> None:
        """Send some tokens, then compute forever without reading."""
        self.tokens(request_id, int(num))
        while True:
            pass

    def do_fail(self, request_id: str, code: str) -> None:
        del self.live[request_id]
        send(Failed(request_id, code, "it would not", param="prompt"))

    def do_garbage(self, request_id: str) -> None:
        body = b"\xc1 no msgpack"
        write(len(body).to_bytes(4, "little") + body)

    def do_oversized(self, request_id: str) -> None:
        write((1 << 30).to_bytes(4, "little") + b"x" * 64)

    def do_wrong_id(self, request_id: str) -> None:
        self.token("unknown-request", 0)

    def do_after_end(self, request_id: str) -> None:
        self.do_answer(request_id, "1")
        self.token(request_id, 1)

    def do_two_ends(self, request_id: str) -> None:
        end = Finished(FinishReason.STOP, Usage(), Timings())
        self.step(request_id, end, end)

    def do_wrong_pong(self, request_id: str) -> None:
        send(Pong(4_000_000, WorkerStatus()))

    def do_flood(self, request_id: str) -> None:
        self.step(request_id, Started(NUM_PROMPT_TOKENS, 0))
        while True:
            self.token(request_id, 0)

    def do_many_parts(self, request_id: str) -> None:
        for _ in range(1000):
            send(StepResult(time.monotonic(), (StepItem(request_id, (TextDelta("x" * 500_000),), is_part=True),)))

    def do_close_output(self, request_id: str) -> None:
        os.close(1)
        time.sleep(60)


def text_of(request: GenerateRequest) -> str:
    """Return a request's text: its prompt, or its last message."""
    match request.prompt:
        case TextPrompt(text=text):
            return text
        case ChatPrompt(messages=messages):
            return messages[-1].content
    raise AssertionError("the stub reads text")


def model_info(name: str) -> ModelInfo:
    """Return the information of a model that the stub claims to have loaded."""
    return ModelInfo(
        name=name,
        path="/stub.gguf",
        architecture="stub",
        description="stub",
        size_bytes=1,
        num_params=1,
        num_vocab=2,
        context_length=64,
        context_length_trained=64,
        max_sequences=4,
        memory_kind=MemoryKind.FULL_ATTENTION,
        supports_tools=False,
        supports_reasoning=False,
        sampling=SamplingParams(temperature=0.0),
    )


def write(frame: bytes) -> None:
    """Write bytes to the daemon's pipe."""
    while frame:
        frame = frame[os.write(1, frame) :]


def send(message: FromWorker) -> None:
    """Send a message to the daemon."""
    write(protocol.encode(message))


def die(name: str) -> NoReturn:
    """End this process with a signal."""
    os.kill(os.getpid(), signal.Signals[name])
    time.sleep(60)
    raise AssertionError("it survived")


def main(argument: str) -> None:
    """Run one life."""
    script = json.loads(argument)
    if script["ignore_sigterm"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Stub(Path(script["lives"])).run(script["starts"])


if __name__ == "__main__":
    main(sys.argv[1])
