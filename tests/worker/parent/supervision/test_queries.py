"""Queries to stub workers over real pipes: answered one at a time, whatever else runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from edgeagent.errors import BackendUnavailable, InvalidRequest, NotSupported, Overloaded, WorkerCrashed
from edgeagent.types import Embed, PurgeCache, QueryAnswer, TextPrompt, Tokenize, WorkerState
from edgeagent.worker.parent.supervision.model_requests import MAX_EMBEDS, MAX_QUERIES
from edgeagent.worker.parent.supervision.supervisor import Supervisor
from tests.stub_worker import SECRET, num_lives
from tests.worker.support import QUICK, Make, Record, eventually, request


async def ready(supervisor: Supervisor) -> Supervisor:
    supervisor.start()
    await eventually(lambda: supervisor.status().state is WorkerState.READY)
    return supervisor


async def test_an_answer_is_put_together_from_its_parts(make: Make) -> None:
    answer = await make().ask(Tokenize("answer 3"))
    assert answer == QueryAnswer("", (0, 1, 2), (b"x", b"x", b"x"))


async def test_questions_wait_while_the_model_loads(make: Make) -> None:
    supervisor = make("creep 3")
    answers = await asyncio.gather(*(supervisor.ask(Tokenize(f"answer {index}")) for index in range(5)))
    assert [len(answer.tokens) for answer in answers] == list(range(5))


async def test_a_question_waits_for_no_request(make: Make) -> None:
    supervisor = make()
    record = Record()
    supervisor.submit(request("wait 1"), record)
    await record.until(lambda record: record.tokens == [1000])
    assert len((await supervisor.ask(Tokenize("answer 1"))).tokens) == 1
    assert record.num_ends == 0


async def test_a_purge_that_waits_for_the_disk_holds_up_no_question_and_is_no_hang(make: Make, lives: Path) -> None:
    supervisor = await ready(make(limits=replace(QUICK, hang_timeout_s=0.1)))
    purge = asyncio.create_task(supervisor.ask(PurgeCache()))
    record = Record()
    supervisor.submit(request("stream"), record)
    started_s = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < started_s + 0.5:
        assert (await supervisor.ask(Tokenize("answer 1"))).tokens == (0,)
        await asyncio.sleep(0.01)
    assert not purge.done() and num_lives(lives) == 1
    purge.cancel()


async def test_a_question_that_kills_its_worker_is_quoted_nowhere(make: Make) -> None:
    supervisor = make()
    with pytest.raises(WorkerCrashed, match=r"RuntimeError at stub_worker\.py:") as caught:
        await supervisor.ask(Tokenize("raise"))
    await eventually(lambda: "RuntimeError" in (supervisor.status().cause or ""))
    assert SECRET not in caught.value.message + (supervisor.status().cause or "")


async def test_the_workers_refusal_is_raised(make: Make) -> None:
    with pytest.raises(NotSupported, match="it would not") as caught:
        await make().ask(Tokenize("fail not_supported"))
    assert caught.value.param == "tokens"


async def test_who_stops_waiting_holds_up_nobody(make: Make) -> None:
    supervisor = await ready(make())
    waiting = asyncio.create_task(supervisor.ask(Tokenize("wait")))
    behind = asyncio.create_task(supervisor.ask(Tokenize("answer 0")))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await behind).text == "ask-0"


async def test_the_refusal_of_a_question_that_nobody_waits_for_is_no_fault(make: Make, lives: Path) -> None:
    supervisor = await ready(make())
    waiting = asyncio.create_task(supervisor.ask(Tokenize("fail not_supported")))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await supervisor.ask(Tokenize("answer 0"))).text == "ask-0"
    assert num_lives(lives) == 1


async def test_the_question_under_which_a_worker_dies_fails_and_others_go_on(make: Make, lives: Path) -> None:
    supervisor = await ready(make())
    deadly = asyncio.create_task(supervisor.ask(Tokenize("die")))
    behind = asyncio.create_task(supervisor.ask(Tokenize("answer 2")))
    with pytest.raises(WorkerCrashed):
        await deadly
    assert len((await behind).tokens) == 2
    assert num_lives(lives) == 2


async def test_a_worker_that_hangs_over_a_question_is_replaced(make: Make, lives: Path) -> None:
    supervisor = await ready(make(limits=replace(QUICK, hang_timeout_s=0.05)))
    with pytest.raises(WorkerCrashed, match="a question about text took longer"):
        await supervisor.ask(Tokenize("wait"))
    assert (await supervisor.ask(Tokenize("answer 0"))).text == ""
    assert num_lives(lives) == 2


async def test_an_answer_without_end_breaks_the_protocol(make: Make) -> None:
    with pytest.raises(WorkerCrashed, match="broke the protocol"):
        await make().ask(Tokenize("endless"))


async def test_too_many_questions_are_refused(make: Make) -> None:
    supervisor = make("stall")
    waiting = [asyncio.create_task(supervisor.ask(Tokenize("wait"))) for _ in range(MAX_QUERIES)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await supervisor.ask(Tokenize("wait"))
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    another = asyncio.create_task(supervisor.ask(Tokenize("wait")))
    await asyncio.sleep(0)
    assert not another.done()
    await supervisor.stop()
    for task in (*waiting[1:], another):
        with pytest.raises(BackendUnavailable):
            await task


async def test_text_that_cannot_be_encoded_is_refused(make: Make) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent to the model's process"):
        await make().ask(Tokenize("\ud800"))


def embed(command: str) -> Embed:
    return Embed((TextPrompt(command),))


async def test_embeddings_come_a_frame_each(make: Make) -> None:
    answer = await make().ask(embed("vectors 3"))
    assert [embedding.num_tokens for embedding in answer.embeddings] == [0, 1, 2]


async def test_questions_about_text_wait_for_no_embedding(make: Make) -> None:
    supervisor = await ready(make())
    waiting = asyncio.create_task(supervisor.ask(embed("wait")))
    behind = asyncio.create_task(supervisor.ask(embed("vectors 1")))
    assert len((await supervisor.ask(Tokenize("answer 1"))).tokens) == 1
    assert not waiting.done() and not behind.done()
    waiting.cancel()
    assert len((await behind).embeddings) == 1
    # The worker was told to drop the first query. Its number is the second, since the text query was sent earlier.
    assert (await supervisor.ask(Tokenize("answer 0"))).text == "ask-1"


async def test_embeddings_under_which_a_worker_dies_fail_once_and_others_go_on(make: Make, lives: Path) -> None:
    supervisor = await ready(make())
    deadly = asyncio.create_task(supervisor.ask(embed("die")))
    behind = asyncio.create_task(supervisor.ask(embed("vectors 2")))
    with pytest.raises(WorkerCrashed) as caught:
        await deadly
    assert caught.value.retry_after_s == 1.0
    assert len((await behind).embeddings) == 2
    assert num_lives(lives) == 2


async def test_long_embeddings_hang_only_where_no_step_ends(make: Make, lives: Path) -> None:
    supervisor = await ready(make(limits=replace(QUICK, hang_timeout_s=0.05)))
    long = asyncio.create_task(supervisor.ask(embed("busy")))
    await eventually(lambda: (status := supervisor.status().worker) is not None and status.num_steps > 20)
    assert num_lives(lives) == 1
    long.cancel()
    with pytest.raises(WorkerCrashed, match="one step took longer"):
        await supervisor.ask(embed("wait"))
    assert num_lives(lives) == 1 or supervisor.status().num_restarts == 1


async def test_too_many_embeddings_are_refused(make: Make) -> None:
    supervisor = make("stall")
    waiting = [asyncio.create_task(supervisor.ask(embed("wait"))) for _ in range(MAX_EMBEDS)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="16 requests for embeddings"):
        await supervisor.ask(embed("wait"))
    text = asyncio.create_task(supervisor.ask(Tokenize("wait")))
    await asyncio.sleep(0)
    assert not text.done()
    await supervisor.stop()
    for task in (*waiting, text):
        with pytest.raises(BackendUnavailable):
            await task
