"""The steps of the demo: what is done, what must happen, and the figures. A step that fails raises StepFailed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tests.cluster.client import Answer, Client
from tests.cluster.cluster import CONTEXT, SERVED_NAME, Cluster
from tests.cluster.endless_model import LOCAL_NAME
from tests.cluster.findings import (
    StepFailed,
    difference,
    expect,
    first_token,
    gap_after,
    gaps,
    is_same_but_its_end,
    moves,
    places,
    say,
    sent_rows,
    whole,
)
from tests.cluster.llama_server import LlamaServer
from tests.cluster.prompts import CANDIDATES
from tests.integration.conftest import Daemon

REMOTE = "cluster"
KEY_VARIABLE, LLAMA_KEY_VARIABLE = "CLUSTER_API_KEY", "LLAMA_SERVER_API_KEY"
# The daemon's own limits: running streams, and waiting requests.
PARALLEL, MAX_WAITING = 4, 4
# The daemon prefers the cluster; a request may be stricter, and most here are.
FLAGS = ("--route", "prefer_remote", "--parallel", str(PARALLEL), "--max-waiting", str(MAX_WAITING), "--ctx", "8192")
LOCAL_FIRST = {"route": "prefer_local"}
LOCAL_ONLY = {"route": "local_only"}
FIRST_TOKEN_LIMIT_S = 4.0
SHORT, LONG, LONGEST = 48, 320, 1500
NUM_PAIRS = 15
# When to break something: all streams have this many pieces, and none is near its end.
MID_STREAM_PIECES = 10
# The most seconds until the daemon notices a change: a remote added, or a cluster that returned.
NOTICE_LIMIT_S = 60.0
# The most seconds that a stream may continue at a remote that the owner has removed.
WITHDRAWAL_LIMIT_S = 1.0
# How often to repeat a break until it interrupts a stream: fast answers may end before it.
MAX_TRIES = 6


@dataclass(slots=True)
class Story:
    """The cluster, the daemon, and the results so far."""

    cluster: Cluster
    daemon: Daemon
    client: Client
    num_streams: int
    undisturbed: dict[str, str] = field(default_factory=dict)
    # Another kind of remote, if it was built.
    llama_server: LlamaServer | None = None
    # The killed parts of the cluster.
    killed: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """One prompt for each stream that is broken at a time, each with an undisturbed answer to compare with."""
        return (list(self.undisturbed) * self.num_streams)[: self.num_streams]

    async def tell(self) -> None:
        """Run every step in order."""
        steps = (
            self.alone,
            self.consent,
            self.way_through,
            self.local_first,
            self.overflow,
            self.kept_here,
            self.worker_killed,
            self.node_killed,
            self.cluster_killed,
            self.cluster_back,
            self.cluster_hangs,
            self.consent_taken_back,
            self.second_kind,
        )
        for number, step in enumerate(steps, 1):
            print(f"\n{number}. {str(step.__doc__).partition(chr(10))[0]}", flush=True)
            began = time.monotonic()
            await step()
            print(f"   ({time.monotonic() - began:.1f} s)", flush=True)

    async def alone(self) -> None:
        """The daemon alone: undisturbed answers, and three times more requests than it accepts."""
        self.undisturbed = await self.texts()
        say(f"{len(self.undisturbed)} answers of {LONG} tokens are kept to compare with.")
        burst = await self.client.ask_all(self.burst(), SHORT)
        refused = [answer for answer in burst if answer.error]
        say(f"Of {len(burst)} requests at once {len(refused)} were refused; {first_token(burst)}.")
        expect(bool(refused), "the daemon alone should have refused some: it was not saturated")

    async def consent(self) -> None:
        """The owner adds the cluster and tests it."""
        added = self.allow()
        expect("What goes there" in added, "remote add did not say what would leave the machine")
        for line in self.command("remote", "test", REMOTE).splitlines():
            say(line.strip())
        took = await self.until(lambda answer: answer.is_remote)
        say(f"The running daemon used it after {took:.1f} s, without a restart.")
        remote = await self.texts()
        same = {prompt: text for prompt, text in self.undisturbed.items() if remote[prompt] == text}
        say(f"{len(same)} of {len(remote)} answers are the same from vLLM, to the last of {LONG} tokens.")
        self.undisturbed = {prompt: text for prompt, text in same.items() if await self.is_steady(prompt, text)}
        say(f"{len(self.undisturbed)} of these vLLM ends alike when it is given their beginning: they will be broken.")
        expect(len(self.undisturbed) >= PARALLEL, "too few to break")

    def allow(self) -> str:
        """Add the cluster as its owner does; return the command's output."""
        return self.command(
            *("remote", "add", REMOTE, self.cluster.url, "--key-env", KEY_VARIABLE),
            *("--ca", str(self.cluster.certificate)),
            *("--model", f"{LOCAL_NAME}={SERVED_NAME}", "--ctx", str(CONTEXT), "--yes"),
            *("--limit", f"first_token_s={FIRST_TOKEN_LIMIT_S}"),
        )

    async def way_through(self) -> None:
        """The cost of the way through the daemon, compared with direct requests to the cluster."""
        cluster = self.cluster
        through: list[Answer] = []
        direct: list[Answer] = []
        async with Client(cluster.url, model=SERVED_NAME, key=cluster.key, certificate=cluster.certificate) as other:
            for prompt in self.prompts[:2] * NUM_PAIRS:
                through.append(whole(await self.client.ask(prompt, SHORT), SHORT))
                direct.append(whole(await other.ask(prompt, SHORT), SHORT))
        expect(all(answer.is_remote for answer in through), f"not all went over: {places(through)}")
        least, middle, token = (
            (of(map(figure, through)) - of(map(figure, direct))) * 1000
            for of, figure in ((min, _first_token_s), (median, _first_token_s), (median, _token_s))
        )
        say(f"Of {len(through)} the quickest first token took {least:+.1f} ms, the middle one {middle:+.1f} ms,")
        say(f"and each further token {token:+.2f} ms. On a busy machine only the quickest says something.")

    async def local_first(self) -> None:
        """A request stays on this machine while there is room."""
        answer = whole(await self.client.ask(self.prompts[0], SHORT, edgeagent=LOCAL_FIRST), SHORT)
        expect(answer.route == "local", f"it went to {answer.route} ({answer.reason})")
        say(f"It ran at {answer.route}: {answer.reason}; the first token after {answer.first_token_s * 1000:.0f} ms.")

    async def overflow(self) -> None:
        """A second flood: requests that this machine cannot take go to the cluster."""
        burst = await self.client.ask_all(self.burst(), SHORT, edgeagent=LOCAL_FIRST)
        for answer in burst:
            whole(answer, SHORT)
        remote = sum(answer.is_remote for answer in burst)
        say(f"All {len(burst)} were answered: {places(burst)}; {first_token(burst)}.")
        expect(0 < remote < len(burst), f"{remote} of {len(burst)} went over")
        rows = json.loads(self.command("egress", "--json"))
        text = json.dumps(rows)
        expect(not any(prompt in text for prompt in self.burst()), "the ledger holds a prompt")
        say(f"`edgeagent egress` has {len(sent_rows(rows))} rows of requests, and no word of any prompt.")

    async def kept_here(self) -> None:
        """Requests with local_only stay here, whatever happens."""
        before = len(sent_rows(json.loads(self.command("egress", "--json"))))
        burst = await self.client.ask_all(self.burst(), SHORT, edgeagent=LOCAL_ONLY)
        after = len(sent_rows(json.loads(self.command("egress", "--json"))))
        refused = sum(bool(answer.error) for answer in burst)
        say(f"{len(burst) - refused} answered here, {refused} refused, {after - before} more rows of requests.")
        expect(not any(answer.is_remote for answer in burst) and after == before, "a local_only request went over")

    async def worker_killed(self) -> None:
        """kill -9 of the model's process while its streams run."""
        await self.broken(self.prompts[:PARALLEL], self.kill_worker, self.worker_back, edgeagent=LOCAL_FIRST)

    async def node_killed(self) -> None:
        """kill -9 of the busier of the two nodes while its streams run."""

        def kill() -> None:
            # All nodes are asked at once and only once: the streams continue while a busy node answers.
            with ThreadPoolExecutor() as threads:
                counts = dict(
                    zip(self.cluster.workers, threads.map(self.cluster.running, self.cluster.workers), strict=True)
                )
            busier = max(counts, key=counts.__getitem__)
            self.cluster.kill(busier)
            say(f"{busier} computed {counts[busier]} of the streams; it is killed.")
            self.killed.append(busier)

        await self.broken(self.prompts, kill, self.cluster_back)

    async def cluster_killed(self) -> None:
        """kill -9 of the rest of the cluster."""

        took = await self.until(lambda answer: answer.is_remote)
        say(f"Requests went to the node that is left {took:.1f} s after these streams.")

        def kill() -> None:
            for part in (*(worker for worker in self.cluster.workers if worker not in self.killed), "router"):
                self.cluster.kill(part)
                self.killed.append(part)

        await self.broken(self.prompts[:PARALLEL], kill, self.cluster_back, comes_home=True)
        answer = whole(await self.client.ask(self.prompts[0], SHORT), SHORT)
        expect(answer.route == "local", f"a request went to {answer.route} although there is no cluster")
        say(f"A new request that prefers the cluster ran at {answer.route} after {answer.first_token_s * 1000:.0f} ms.")

    async def cluster_back(self) -> None:
        """The cluster restarts, and the daemon finds it again."""
        workers = [part for part in self.killed if part != "router"]
        for worker in workers:
            self.cluster.start_worker(worker)
        for worker in workers:
            self.cluster.wait_for_worker(worker)
        if "router" in self.killed:
            self.cluster.restart_router()
        self.killed.clear()
        took = await self.until(lambda answer: answer.is_remote)
        say(f"Requests went over again {took:.1f} s after the router said that it is ready.")

    async def cluster_hangs(self) -> None:
        """The cluster hangs: its sockets are open, and no data arrives."""
        self.cluster.pause("router")
        try:
            asked = [await self.client.ask(prompt, SHORT) for prompt in self.burst()[:4]]
        finally:
            self.cluster.resume("router")
        for answer in asked:
            whole(answer, SHORT)
            expect(not answer.is_remote, "an answer came from a cluster that hangs")
        waits = ", ".join(f"{answer.first_token_s:.2f}" for answer in asked)
        say(f"One after another they waited {waits} s for their first token.")
        expect(
            max(answer.first_token_s for answer in asked[1:]) < FIRST_TOKEN_LIMIT_S, "more than one request paid for it"
        )

    async def consent_taken_back(self) -> None:
        """The owner removes the remote while it answers."""
        for _ in range(MAX_TRIES):
            streams, begun_s = await self.withdraw()
            if any(answer.handovers for answer in streams):
                break
            say("All answers had ended by then, so it is done again.")
            if begun_s is not None:
                self.allow()
        else:
            raise StepFailed("the answers ended too soon each time")
        say(f"{moves(streams)}; the longest gap was {gap_after(streams, begun_s or 0.0):.2f} s.")
        answer = whole(await self.client.ask(self.prompts[0], SHORT), SHORT)
        expect(answer.route == "local", f"a request went to {answer.route} without consent")

    async def withdraw(self) -> tuple[list[Answer], float | None]:
        """Remove the remote while it answers streams; return the streams, and the time when all had begun.

        If all have ended by then, the remote is not removed, and the time is None.
        """
        await self.until(lambda answer: answer.is_remote)
        removed_s = 0.0

        def remove() -> None:
            nonlocal removed_s
            self.command("remote", "rm", REMOTE)
            removed_s = time.monotonic()

        streams, begun_s = await self.client.ask_and(self.prompts[:PARALLEL], LONGEST, MID_STREAM_PIECES, remove)
        if begun_s is None:
            return streams, None
        say(f"It was taken back {removed_s - begun_s:.2f} s after {PARALLEL} streams had begun.")
        for answer in streams:
            whole(answer, LONGEST)
            # A fast answer may have ended before the removal took effect.
            late_s = answer.came_s[-1] - removed_s
            expect(
                answer.route == "local" or late_s <= WITHDRAWAL_LIMIT_S,
                f"{answer.route} went on {late_s:.1f} s after consent was taken back",
            )
        return streams, begun_s

    async def second_kind(self) -> None:
        """llama-server with the same file as the only remote: it is used, and killed."""
        engine = self.llama_server
        if engine is None:
            say("It is not built, so this step is left out: python tests/peer/build.py builds it.")
            return
        say(f"It answered after {engine.start():.1f} s.")
        self.command(
            *("remote", "add", engine.name, engine.url, "--key-env", LLAMA_KEY_VARIABLE, "--yes"),
            *("--model", f"{LOCAL_NAME}={engine.served_name}", "--ctx", str(CONTEXT)),
        )
        took = await self.until(lambda answer: answer.route == f"remote:{engine.name}")
        say(f"The running daemon used it after {took:.1f} s.")
        prompts = self.prompts[:PARALLEL]
        say("The worker is killed:")
        await self.broken(prompts, self.kill_worker, self.worker_back, edgeagent=LOCAL_FIRST)
        say("llama-server is killed:")

        async def restart() -> None:
            engine.start()
            await self.until(lambda answer: answer.is_remote)

        await self.broken(prompts, engine.kill, restart, comes_home=True)

    def kill_worker(self) -> None:
        """Kill the model's process."""
        os.kill(self.daemon.worker_pid(), signal.SIGKILL)

    async def worker_back(self) -> None:
        """Wait until the model's process runs again."""
        await self.until(lambda answer: answer.route == "local", edgeagent=LOCAL_FIRST)

    async def broken(
        self,
        prompts: Sequence[str],
        destroy: Callable[[], None],
        restore: Callable[[], Awaitable[None]],
        *,
        comes_home: bool = False,
        **fields: object,
    ) -> None:
        """Break something while streams run, and compare each answer with its undisturbed text.

        If all streams end before the break, `restore` is called and the break is repeated.
        """
        for _ in range(MAX_TRIES):
            streams, done_s = await self.client.ask_and(prompts, LONG, MID_STREAM_PIECES, destroy, **fields)
            if any(answer.handovers for answer in streams):
                break
            say(f"{places(streams)}: all streams had ended by then, so it is done again.")
            if done_s is not None:
                await restore()
        else:
            raise StepFailed("nothing was broken: the streams ended too soon each time")
        same = ends = 0
        for prompt, answer in zip(prompts, streams, strict=True):
            undisturbed = self.undisturbed[prompt]
            if whole(answer, LONG).text == undisturbed:
                same += 1
            elif is_same_but_its_end(answer.text, undisturbed):
                ends += 1
            else:
                say(f"{prompt!r} differs {difference(answer, undisturbed)}.")
        cut = [answer for answer in streams if answer.handovers]
        say(f"All {len(streams)} streams ended as they should; {len(cut)} changed their place: {moves(streams)}.")
        ending = f", {ends} a word more or less at its end" if ends else ""
        say(f"{same} of {len(streams)} have the text of an undisturbed answer{ending}; {gaps(cut, done_s or 0.0)}.")
        expect(same + ends == len(streams), f"{len(streams) - same - ends} answers differ from undisturbed ones")
        if comes_home:
            expect(all(answer.route == "local" for answer in cut), f"not all came home: {places(cut)}")

    async def is_steady(self, prompt: str, text: str) -> bool:
        """Whether vLLM continues the text unchanged, from a quarter and from half of it."""
        # A space belongs to the word behind it, so tokens end before it.
        cuts = [text.find(" ", len(text) * quarters // 4) for quarters in (1, 2)]
        if -1 in cuts:
            return False
        rests = [await self.cluster.continuation(prompt, text[:cut], LONG // 3) for cut in cuts]
        return all(text[cut:].startswith(rest) for cut, rest in zip(cuts, rests, strict=True))

    async def texts(self, **fields: object) -> dict[str, str]:
        """Return the undisturbed answers to all candidates."""
        found = {}
        for start in range(0, len(CANDIDATES), PARALLEL):
            prompts = CANDIDATES[start : start + PARALLEL]
            for prompt, answer in zip(prompts, await self.client.ask_all(prompts, LONG, **fields), strict=True):
                found[prompt] = whole(answer, LONG).text
        return found

    async def until(self, holds: Callable[[Answer], bool], **fields: Any) -> float:
        """Send requests until an answer meets the condition; return how many seconds that took."""
        began = time.monotonic()
        while True:
            answer = await self.client.ask(self.prompts[0], 8, **fields)
            if not answer.error and holds(answer):
                return time.monotonic() - began
            expect(time.monotonic() - began < NOTICE_LIMIT_S, f"still {answer.route} ({answer.reason or answer.error})")
            await asyncio.sleep(0.2)

    def burst(self) -> list[str]:
        """Three times as many prompts as this machine accepts."""
        return [f"Count to {index}." for index in range(3 * (PARALLEL + MAX_WAITING))]

    def command(self, *words: str) -> str:
        """Run an edgeagent command for the daemon; return what it printed."""
        command = [sys.executable, "-m", "edgeagent", *words, "--state-dir", str(self.daemon.state_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"`edgeagent {' '.join(words[:2])}` failed: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr if words[:2] == ("remote", "add") else done.stdout


def _first_token_s(answer: Answer) -> float:
    return answer.first_token_s


def _token_s(answer: Answer) -> float:
    return answer.token_s
