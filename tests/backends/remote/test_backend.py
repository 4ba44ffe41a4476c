"""A remote's backend over real connections to a scripted server that behaves correctly."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.api.wire.body import validate
from edgeagent.api.wire.latency import LatencyHeaders
from edgeagent.backends.remote import network
from edgeagent.backends.remote.answer import MIN_CERTAIN_CHARS, EchoGuard
from edgeagent.errors import (
    ConfigError,
    ContextLengthExceeded,
    Forbidden,
    ModelNotFound,
    NotSupported,
    Overloaded,
    RemoteUnavailable,
)
from edgeagent.remotes import Limits, Tls
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    FinishReason,
    MediaPlace,
    Message,
    Need,
    Permit,
    Placement,
    ProbePermit,
    RouteMode,
    TextDelta,
    TextPrompt,
    Tier,
    Tokenize,
    TokenPrompt,
    ToolCall,
    Usage,
    WorkerState,
    replace,
)
from tests.backends.reading import steps_of
from tests.backends.remote.fault_server import Act, Script, faults, half, models, plain, stream
from tests.backends.remote.streams import DONE, ROLE, answer, chunk, cut, usage
from tests.backends.remote.support import KEY, REQUEST, Clock, Rows, ask, backend, permit, until
from tests.media import RED, data_url, media
from tests.patience import patient


async def test_an_answer() -> None:
    rows = Rows()
    async with faults(stream(answer("Good", " day"))) as server, backend(server.url, ledger=rows) as remote:
        got = await ask(remote)
    assert got.text == "Good day"
    assert got.num_tokens == 2
    host = f"127.0.0.1:{server.port}"
    assert got.started.placement == Placement("remote:gpu", "tiny", "queue", host)
    assert got.finished.reason is FinishReason.STOP
    assert got.finished.usage == Usage(7, 0, 2)
    assert (got.finished.timings.route, got.finished.timings.reason) == ("remote:gpu", "queue")
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert rows.rows == [[host, "tiny", len(asked.body), "completed", 7, 2]]


async def test_nothing_of_this_machine_is_in_the_headers() -> None:
    async with faults(stream(answer("a"))) as server, backend(server.url, key=None) as remote:
        await ask(remote)
        await ask(remote, id="r2", num_hops=1)
    assert server.asked[0].headers.keys() == {
        "host",
        "user-agent",
        "accept",
        "x-session-id",
        "x-edgeagent-hops",
        "accept-encoding",
        "content-type",
        "content-length",
    }
    assert server.asked[0].headers["user-agent"] == "edgeagent"
    assert [asked.headers["x-edgeagent-hops"] for asked in server.asked] == ["1", "2"]


async def test_another_edgeagent_learns_the_tier_and_the_times_that_are_asked_for() -> None:
    need = Need(first_token_s=0.5, token_s=0.0405)
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        await ask(remote, tier=Tier.BATCH, need=need)
    headers = validate(LatencyHeaders, server.asked[0].headers)
    assert (headers.tier, headers.ttft_ms, headers.itl_ms, headers.deadline_ms) == ("batch", 500.0, 40.5, None)


async def test_connections_are_kept() -> None:
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        for number in range(5):
            assert (await ask(remote, id=f"r{number}")).text == "a"
            await asyncio.sleep(0.01)
    assert (len(server.asked), server.num_connections) == (5, 1)


async def test_the_session_of_a_conversation() -> None:
    first = (Message("system", "Be brief."), Message("user", "One"))
    later = (*first, Message("assistant", "1"), Message("user", "Two"))
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        for number, messages in enumerate((first, later, (Message("system", "Be brief."), Message("user", "Else")))):
            await ask(remote, id=f"r{number}", prompt=ChatPrompt(messages))
    one, two, other = (asked.headers["x-session-id"] for asked in server.asked)
    assert one == two != other
    assert len(one) == 32


async def test_without_leave_nothing_leaves() -> None:
    async with faults(stream(answer("a"))) as server, backend(server.url) as remote:
        wrong = [
            None,
            Permit("other", "gpu", RouteMode.PREFER_LOCAL, ""),
            Permit(REQUEST.id, "elsewhere", RouteMode.PREFER_LOCAL, ""),
            Permit(REQUEST.id, "gpu", RouteMode.LOCAL_ONLY, ""),
            Permit(REQUEST.id, "gpu", "prefer_local ", ""),  # type: ignore[arg-type]
            ProbePermit("gpu", RouteMode.PREFER_LOCAL),
        ]
        for leave in wrong:
            with pytest.raises(Forbidden):
                await anext(steps_of(remote.generate, REQUEST, leave))
    assert server.num_connections == 0


async def test_aliases() -> None:
    async with faults(stream(answer("a"))) as server, backend(server.url, models={"small": "tiny"}) as remote:
        assert remote.models.default() == remote.models.find("") == remote.models.find("small") == "small"
        await ask(remote, model="small")
        assert server.asked[0].json["model"] == "tiny"
        assert [model.name for model in remote.models.statuses()] == ["small"]
        for name in ("tiny", "large"):
            with pytest.raises(ModelNotFound):
                remote.models.find(name)
            with pytest.raises(ModelNotFound):
                remote.estimate(replace(REQUEST, model=name))
        with pytest.raises(NotSupported):
            remote.reload("small")
        with pytest.raises(NotSupported):
            await remote.ask("small", Tokenize("secret"))


async def test_a_cancel_is_polite() -> None:
    rows = Rows()
    script = half(ROLE, chunk({"content": "One"}), Act.STALL)
    async with faults(script) as server, backend(server.url, ledger=rows) as remote:
        steps = steps_of(remote.generate, REQUEST, permit())
        assert (await anext(steps)).deltas[1].text == "One"  # type: ignore[union-attr]
        asyncio.get_running_loop().call_soon(remote.cancel, REQUEST.id)
        last = await anext(steps)
        assert last.deltas[-1].reason is FinishReason.CANCELLED  # type: ignore[union-attr]
        assert last.deltas[-1].usage.num_output_tokens == 1  # type: ignore[union-attr]
        with pytest.raises(StopAsyncIteration):
            await anext(steps)
        async with asyncio.timeout(patient(5)):
            await server.asked[0].left.wait()
        remote.cancel("unknown")
    assert rows.outcomes == ["cancelled"]


async def test_a_cancel_before_anything_came() -> None:
    async with faults([Act.STALL]) as server, backend(server.url) as remote:
        running = asyncio.create_task(ask(remote))
        await server.arrived.wait()
        remote.cancel(REQUEST.id)
        got = await running
        assert [type(delta).__name__ for delta in got.deltas] == ["Finished"]
        async with asyncio.timeout(patient(5)):
            await server.asked[0].left.wait()


async def test_closing_the_generator_stops_the_remote() -> None:
    rows = Rows()
    async with faults(half(chunk({"content": "One"}), Act.STALL)) as server, backend(server.url, ledger=rows) as remote:
        async with aclosing(steps_of(remote.generate, REQUEST, permit())) as steps:
            await anext(steps)
        async with asyncio.timeout(patient(5)):
            await server.asked[0].left.wait()
        assert remote.status().num_live == 0
    assert rows.outcomes == ["cancelled"]


async def test_withdrawn_leave_cuts_running_streams() -> None:
    rows = Rows()
    async with faults(half(chunk({"content": "One"}), Act.STALL)) as server, backend(server.url, ledger=rows) as remote:
        running = [asyncio.create_task(ask(remote, id=f"r{number}")) for number in range(3)]
        await until(lambda: len(server.asked) == 3)
        await asyncio.sleep(0.05)
        await remote.close_streams("the owner removed this remote")
        for task in running:
            got = await task
            assert isinstance(got.error, RemoteUnavailable)
            assert "the owner removed" in got.error.message
            assert got.error.num_delivered_tokens == 1
        for asked in server.asked:
            async with asyncio.timeout(patient(5)):
                await asked.left.wait()
    assert rows.outcomes == ["withdrawn"] * 3


async def test_an_answer_goes_on_where_the_server_can() -> None:
    gets = {"/v1/models": models("tiny")}
    so_far = AnswerSoFar("The sum", num_tokens=2)
    going_on = answer(" is 4").replace(b'"cached_tokens": 0', b'"cached_tokens": 6')
    async with faults(stream(going_on), gets=gets) as server, backend(server.url) as remote:
        got = await ask(remote, so_far=so_far, max_tokens=10, logprobs=None)
        assert got.text == " is 4"
        assert got.finished.usage == Usage(5, 5, 3)
        (probe, asked) = server.asked
        assert probe.path == "/v1/models" and probe.headers["authorization"]
        assert asked.json["continue_final_message"] is True
        assert asked.json["max_tokens"] == 8
        whole = await ask(remote, so_far=so_far, max_tokens=2)
        assert whole.finished.reason is FinishReason.LENGTH
        assert len(server.posts) == 1


@pytest.mark.parametrize("texts", [("The sum of two and two", " is 4"), ("The sum", " of two and two is", " 4")])
async def test_what_a_server_repeats_is_not_told_again(texts: tuple[str, ...]) -> None:
    """Some builds of llama-server repeat the text of a message that they continue."""
    gets = {"/v1/models": models("tiny", owner="llamacpp")}
    async with faults(stream(answer(*texts)), gets=gets) as server, backend(server.url) as remote:
        got = await ask(remote, so_far=AnswerSoFar("The sum of two and two", num_tokens=6))
        assert got.text == " is 4"
        short = await ask(remote, id="short", so_far=AnswerSoFar("The sum", num_tokens=2))
        assert isinstance(short.error, RemoteUnavailable) and "it is unclear whether" in short.error.message
        assert not remote.status().endpoints[0].cause, "no fault of the endpoint's"


@given(st.text("ab", min_size=1, max_size=20), st.text("abc", max_size=30), st.lists(st.integers(0, 50), max_size=5))
def test_of_any_continuation_only_the_repetition_goes(before: str, text: str, places: list[int]) -> None:
    before = "x" * MIN_CERTAIN_CHARS + before

    def passed(whole: str) -> str:
        guard = EchoGuard(before)
        pieces = [TextDelta(piece.decode()) for piece in cut(whole.encode(), places) if piece]
        told = [delta for piece in pieces for delta in guard.take([piece])] + guard.release()
        return "".join(delta.text for delta in told if isinstance(delta, TextDelta))

    assert passed(before + text) == text
    assert passed(text) == text
    assert passed(before[:-1]) == before[:-1]


async def test_a_cancel_while_it_asks_what_the_server_is() -> None:
    gets: dict[str, Script] = {"/v1/models": [Act.STALL]}
    async with faults(stream(answer("x")), gets=gets) as server, backend(server.url) as remote:
        running = asyncio.create_task(ask(remote, so_far=AnswerSoFar("The")))
        await until(lambda: server.asked)
        remote.cancel(REQUEST.id)
        assert (await running).finished.reason is FinishReason.CANCELLED
        assert not server.posts


@pytest.mark.parametrize(
    ("owner", "continues", "is_taken"),
    [("openai", "exact", False), ("openai", "inexact", True), ("vllm", "no", False), ("llamacpp", "exact", True)],
)
async def test_who_may_go_on(owner: str, continues: str, is_taken: bool) -> None:
    gets = {"/v1/models": models("tiny", owner=owner)}
    async with faults(stream(answer("x")), gets=gets) as server, backend(server.url, continues=continues) as remote:
        got = await ask(remote, so_far=AnswerSoFar("The"))
    assert (got.error is None) is is_taken
    assert got.error is None or isinstance(got.error, NotSupported)
    assert len(server.posts) == is_taken


async def test_the_model_that_answers_is_told() -> None:
    other = answer("a").replace(b'"tiny"', b'"tiny-2026-08-06"')
    async with faults(stream(other)) as server, backend(server.url) as remote:
        got = await ask(remote)
    assert got.started.placement is not None
    assert got.started.placement.model == "tiny-2026-08-06"


async def test_another_of_its_models_is_refused() -> None:
    gets = {"/v1/models": models("tiny", "huge")}
    wrong = answer("a").replace(b'"tiny"', b'"huge"')
    async with faults(stream(wrong), gets=gets) as server, backend(server.url, probes=True) as remote:
        remote.warm()
        await until(remote.models.statuses)
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable)
        assert "another model" in got.error.message
        assert got.text == ""
        with pytest.raises(ModelNotFound):
            remote.models.find("unlisted")
        assert remote.models.default() == "tiny"


async def test_estimates() -> None:
    clock = Clock()
    rows = Rows()
    async with (
        faults(stream(answer("a", "b"))) as server,
        backend(server.url, ledger=rows, clock=clock, context_length=100) as remote,
    ):
        first = remote.estimate(REQUEST)
        assert (first.obstacle, first.is_local, first.is_full, first.first_token_s) == ("", False, False, None)
        await ask(remote)
        assert remote.estimate(REQUEST).first_token_s == 0.0
        assert remote.estimate(REQUEST).token_s == 0.0
        long = replace(REQUEST, prompt=ChatPrompt((Message("user", "x" * 1000),)))
        assert remote.estimate(long).obstacle == "context"
        for changed in (replace(REQUEST, echo=True), replace(REQUEST, prompt=TokenPrompt((1,)))):
            assert remote.estimate(changed).obstacle == "unsupported"
        assert remote.estimate(replace(REQUEST, prompt=TextPrompt("a"))).obstacle == ""
        rows.over_budget = "the day's budget of 5 tokens is spent"
        expected = remote.estimate(REQUEST)
        assert (expected.obstacle, expected.trouble, expected.retry_after_s) == ("budget", rows.over_budget, 60.0)
        refused = await ask(remote)
        assert isinstance(refused.error, RemoteUnavailable) and "budget" in refused.error.message
    assert len(server.asked) == 1


LONG = replace(REQUEST, prompt=ChatPrompt((Message("user", "x" * 4 * 400),)))
FAR_TOO_LONG = "This model's maximum context length is 256 tokens. However, you requested 400"


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({"max_model_len": 256}, 256),
        ({"context_length": 256}, 256),
        ({"meta": {"n_ctx": 256}}, 256),
        ({"edgeagent": {"context_length": 256}}, 256),
        ({"max_model_len": None, "context_length": 256}, 256),
        ({"max_model_len": "256", "meta": [1], "context_length": -1}, 0),
        ({"max_model_len": 1e400, "edgeagent": {"context_length": True}}, 0),
        ({"max_model_len": 1 << 60}, 0),
    ],
)
async def test_the_context_that_a_remote_lists(listed: dict[str, Any], expected: int) -> None:
    row = {"id": "tiny", "owned_by": "vllm"} | listed
    body = json.dumps({"data": [row]}).replace("Infinity", "1e400").encode()
    async with (
        faults(stream(answer("a")), gets={"/v1/models": plain(200, body)}) as server,
        backend(server.url, probes=True) as remote,
    ):
        assert remote.estimate(LONG).obstacle == ""
        remote.warm()
        await until(lambda: remote._cluster.endpoints[0].is_identified)
        assert remote._cluster.endpoints[0].context("tiny") == expected
        assert remote.estimate(LONG).obstacle == ("context" if expected else "")
        assert remote.estimate(REQUEST).obstacle == ""


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (FAR_TOO_LONG, 256),
        ("The decoder prompt (length 400) is longer than the maximum model length of 256. Make sure", 256),
        ("The input (400 tokens) is longer than the model's context length (256 tokens).", 256),
        ("request (400 tokens) exceeds the available context size (256 tokens), try increasing it", 256),
        ("the request exceeds the available context size. try increasing the context size", 0),
        ("the value is too long", 0),
    ],
)
async def test_the_context_that_a_refusal_tells(refusal: str, expected: int) -> None:
    body = json.dumps({"error": {"message": refusal}}).encode()
    async with faults(plain(400, body)) as server, backend(server.url) as remote:
        assert isinstance((await ask(remote, LONG)).error, ContextLengthExceeded)
        assert remote._cluster.endpoints[0].context("tiny") == expected
        assert remote.estimate(LONG).obstacle == ("context" if expected else "")


async def test_what_the_owner_says_of_the_context_holds() -> None:
    body = json.dumps({"error": {"message": FAR_TOO_LONG}}).encode()
    async with faults(plain(400, body)) as server, backend(server.url, context_length=8192) as remote:
        await ask(remote, LONG)
        assert remote.estimate(LONG).obstacle == ""


async def test_a_prompt_that_is_too_long_for_one_endpoint_goes_to_a_longer_one() -> None:
    body = json.dumps({"error": {"message": FAR_TOO_LONG}}).encode()
    async with faults(plain(400, body)) as short, faults(stream(answer("a"))) as long:
        async with backend(short.url, long.url, regions=("here", "there")) as remote:
            remote._cluster.endpoints[1].note_context("tiny", 4096)
            assert (await ask(remote, LONG)).text == "a"
            assert (await ask(remote, LONG)).text == "a"
        assert (len(short.asked), len(long.asked)) == (1, 2), "it is asked once"


async def test_no_more_at_once_than_allowed() -> None:
    limits = Limits(max_concurrent=1)
    async with faults(half(chunk({"content": "a"}), Act.STALL)) as server, backend(server.url, limits=limits) as remote:
        steps = steps_of(remote.generate, REQUEST, permit())
        await anext(steps)
        assert remote.estimate(REQUEST).num_live == 1 and remote.estimate(REQUEST).is_full
        second = await ask(remote, id="second")
        assert isinstance(second.error, Overloaded)
        await steps.aclose()
        assert remote.estimate(REQUEST).num_live == 0
    assert len(server.asked) == 1


async def test_without_a_row_nothing_leaves() -> None:
    rows = Rows(error=RemoteUnavailable("the ledger cannot be written"))
    async with faults(stream(answer("a"))) as server, backend(server.url, ledger=rows) as remote:
        got = await ask(remote)
        assert got.error is rows.error
        assert remote.status().num_live == remote.status().endpoints[0].num_live == 0
    assert server.num_connections == 0


async def test_a_key_that_is_not_found() -> None:
    found: list[str] = []

    def keys(key: object) -> str:
        if not found:
            raise ConfigError("the remote's key should be in KEY, which is not set")
        return found[0]

    clock = Clock()
    async with faults(stream(answer("a"))) as server, backend(server.url, keys=keys, clock=clock) as remote:
        assert remote.estimate(REQUEST).obstacle == "no_key"
        got = await ask(remote)
        assert isinstance(got.error, RemoteUnavailable) and "not set" in got.error.message
        assert remote.status().trouble == "the remote's key should be in KEY, which is not set"
        assert server.num_connections == 0
        found.append("k")
        clock.now_s += 10
        assert (await ask(remote)).text == "a"


async def test_tls_files_that_cannot_be_used() -> None:
    async with backend("https://127.0.0.1:1/v1", tls=Tls(ca_file="/nowhere.pem")) as remote:
        assert remote.status().trouble.startswith("TLS: /nowhere.pem")
        with pytest.raises(RemoteUnavailable, match=r"nowhere\.pem"):
            remote.estimate(REQUEST)
        assert remote.models.statuses() == []


async def test_probes_only_with_leave_and_only_while_used() -> None:
    gets = {
        "/readiness": plain(200, b"ok"),
        "/v1/models": models("tiny"),
        "/metrics": plain(
            200,
            b'vllm:num_requests_waiting{model="tiny"} 3.0\nvllm:num_requests_waiting{model="x"} 1.0\n'
            b'vllm:kv_cache_usage_perc{model="tiny"} 0.25\n',
            kind="text/plain",
        ),
    }
    async with faults(stream(answer("a")), gets=gets) as server:
        async with backend(server.url) as remote:
            remote.warm()
            await ask(remote)
            assert [asked.method for asked in server.asked] == ["POST"]
        server.asked.clear()
        async with backend(server.url, probes=True) as remote:
            remote.warm()
            await until(lambda: remote.status().endpoints[0].num_waiting is not None)
            status = remote.status().endpoints[0]
            assert (status.num_waiting, status.kv_usage, status.breaker) == (4, 0.25, "closed")
            assert {asked.path for asked in server.asked} == {"/readiness", "/v1/models", "/metrics"}
            keyed = [asked.path for asked in server.asked if "authorization" in asked.headers]
            assert keyed == ["/v1/models"]
            assert remote.models.statuses()[0].state is WorkerState.READY


async def test_a_raw_text() -> None:
    text = b'data: {"model":"tiny","choices":[{"text":"ab","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with faults(stream(text)) as server, backend(server.url) as remote:
        assert (await ask(remote, prompt=TextPrompt("Once"))).text == "ab"
        assert server.asked[0].path == "/v1/completions"


async def test_a_slow_reader_holds_the_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend reads no further than its client: only a bounded part of a long answer is buffered here."""
    num_bytes = 0
    read = network._Stream.read

    async def read_counted(self: network._Stream, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        nonlocal num_bytes
        data = await read(self, max_bytes)
        num_bytes += len(data)
        return data

    monkeypatch.setattr(network._Stream, "read", read_counted)
    big = stream(*(chunk({"content": "x" * 60_000}) for _ in range(400)), answer("end"))
    async with faults(big) as server, backend(server.url) as remote:
        steps = steps_of(remote.generate, REQUEST, permit())
        await anext(steps)
        await asyncio.sleep(0.2)
        assert num_bytes < 2 << 20
        num = 1
        async for _ in steps:
            num += 1
        assert num > 100
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("asked", "listed", "sent"),
    [
        ("Tiny-Q4", "/models/tiny-q4.gguf", "/models/tiny-q4.gguf"),
        ("tiny", "lab/Tiny", "lab/Tiny"),
        ("tiny", "tiny", "tiny"),
        ("tiny", "lab/other", None),
    ],
)
async def test_a_model_listed_as_a_file_is_meant_by_its_bare_name(asked: str, listed: str, sent: str | None) -> None:
    gets = {"/v1/models": models(listed, owner="llamacpp")}
    async with faults(stream(answer("a")), gets=gets) as server, backend(server.url, probes=True) as remote:
        remote.stand_by()
        await until(lambda: remote.models.statuses())
        wanted = replace(REQUEST, model=asked)
        if sent is None:
            with pytest.raises(ModelNotFound):
                remote.estimate(wanted)
            return
        assert remote.estimate(wanted).obstacle == ""
        await ask(remote, wanted)
        assert server.posts[0].json["model"] == sent


async def test_a_remote_that_stands_by_is_probed_once_and_its_distance_is_known() -> None:
    clock = Clock()
    async with (
        faults(stream(answer("a")), gets={"/health": plain(200), "/v1/models": models("tiny")}) as server,
        backend(server.url, probes=True, clock=clock) as remote,
    ):
        assert remote.estimate(REQUEST).first_token_s is None
        for _ in range(3):
            remote.stand_by()
        await until(lambda: remote.estimate(REQUEST).first_token_s is not None)
        await until(lambda: remote.models.statuses())
        num_probes = len(server.asked)
        clock.now_s += 59.0
        remote.stand_by()
        clock.now_s += 2.0

        def is_probed_again() -> bool:
            remote.stand_by()  # no effect while the first probe ends
            return len(server.asked) > num_probes

        await until(is_probed_again)
        assert server.posts == []


async def test_a_remote_that_stands_by_and_is_down_is_not_counted_on() -> None:
    clock = Clock()
    async with backend("http://127.0.0.1:1/v1", probes=True, clock=clock) as remote:

        def is_given_up() -> bool:
            remote.stand_by()
            clock.now_s += 10.0
            return remote.estimate(REQUEST).obstacle == "unreachable"

        await until(is_given_up)


@pytest.mark.parametrize(("owner", "num_prompt"), [("edgeagent", 42), ("vllm", 38)])
async def test_who_counts_the_delivered_part_as_prompt(owner: str, num_prompt: int) -> None:
    told = chunk({"content": " more"}) + chunk(finish="stop") + usage(42, 1) + DONE
    gets = {"/v1/models": models("tiny", owner=owner)}
    async with faults(stream(told), gets=gets) as server, backend(server.url) as remote:
        got = await ask(remote, so_far=AnswerSoFar("The beginning of it", "", 4))
    assert (got.finished.usage.num_prompt_tokens, got.finished.usage.num_output_tokens) == (num_prompt, 5)


SHOWN = replace(REQUEST, prompt=ChatPrompt((Message("user", "What?", media=(MediaPlace(0, 0),)),), media=(media(RED),)))


async def test_an_image_goes_only_where_images_are_read() -> None:
    async with faults(stream(answer("Red"))) as server, backend(server.url) as remote:
        estimate = remote.estimate(SHOWN)
        assert estimate.obstacle == "media" and "--images" in estimate.trouble
        got = await ask(remote, SHOWN)
        assert isinstance(got.error, NotSupported) and not server.asked
    async with faults(stream(answer("Red"))) as server, backend(server.url, images=True) as remote:
        assert remote.estimate(SHOWN).obstacle == ""
        assert (await ask(remote, SHOWN)).text == "Red"
    (asked,) = server.asked
    assert data_url(RED).encode() in asked.body


async def test_a_remote_of_texts_gets_a_note_for_what_a_tool_shows() -> None:
    call = ToolCall("c", "look", "{}")
    result = Message("tool", "", tool_call_id="c", media=(MediaPlace(0, 0),))
    messages = (Message("assistant", "", tool_calls=(call,)), result)
    request = replace(REQUEST, prompt=ChatPrompt(messages, media=(media(RED),)))
    async with faults(stream(answer("Dark"))) as server, backend(server.url) as remote:
        assert remote.estimate(request).obstacle == ""
        assert (await ask(remote, request)).text == "Dark"
    (asked,) = server.asked
    assert b"image left out" in asked.body and b"base64" not in asked.body
