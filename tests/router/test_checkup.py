"""The checkup of a remote: the requests that it sends, its findings, and the ledger rows that it writes."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.backends.remote.answer import MAX_PROMPT_TOKENS
from edgeagent.backends.remote.network import Stages
from edgeagent.backends.remote.transport import Exchange, Transport
from edgeagent.egress import PROBE, Row
from edgeagent.egress.ledger import Ledger
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import ConfigError
from edgeagent.remotes import EndpointConfig, Key, Limits, Remote, Tls
from edgeagent.remotes.file import RemotesFile
from edgeagent.router.checkup import MAX_ANSWER_BYTES, check
from edgeagent.types import RouteMode
from tests.backends.remote.certificates import Authority, server_context
from tests.backends.remote.fault_server import Act, FaultServer, Script, closed_port, faults, half, models, plain
from tests.patience import patient

CHAT = {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
LISTED = {"/v1/models": models("big", "small")}
SECRET = "sk-hush-0123456789"
DEEP = b"[" * 20_000  # more levels than a parser of JSON takes


def said(body: object, status: int = 200) -> Script:
    return plain(status, json.dumps(body).encode())


async def checked(
    folder: Path, *urls: str, mode: RouteMode = RouteMode.PREFER_LOCAL, key: str = "", **fields: Any
) -> list[dict[str, Any]]:
    remote = Remote("gpu", tuple(EndpointConfig(url, "lab") for url in urls), **fields)
    ledger = Ledger(folder, RemotesFile(folder).find)
    try:
        return await check(remote, mode, key, ledger)
    finally:
        ledger.close()


async def problem(folder: Path, *scripts: Script, gets: dict[str, Script] | None = None, **fields: Any) -> str:
    """Return the problem that is reported for a remote with these answers."""
    async with faults(*scripts, gets=LISTED if gets is None else gets) as server:
        (found,) = await checked(folder, server.url, **fields)
    text: str = found["problem"]
    return text


def requests(folder: Path) -> list[Row]:
    """Return the rows of requests, without those of probes."""
    return [row for row in read_rows(folder_of(folder)) if row.reason != PROBE]


def outcomes(folder: Path) -> list[tuple[str, int, int]]:
    return [(row.outcome, row.num_prompt_tokens, row.num_output_tokens) for row in requests(folder)]


def sent(server: FaultServer) -> list[tuple[str, str]]:
    return [(asked.method, asked.path) for asked in server.asked]


async def test_a_remote_that_does(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        (found,) = await checked(tmp_path, server.url, key=SECRET)
    assert (found["url"], found["region"], found["problem"]) == (server.url, "lab", "")
    assert (found["models"], found["model"]) == (("big", "small"), "big")
    assert found["tls_s"] is None and min(found["connect_s"], found["models_s"], found["token_s"]) > 0
    assert server.num_connections == 1, "the second request goes over the connection of the first"
    assert sent(server) == [("GET", "/v1/models"), ("POST", "/v1/chat/completions")]
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {SECRET}"}
    assert server.posts[0].json == {
        "model": "big",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    (row,) = requests(tmp_path)
    assert (row.reason, row.mode, row.host, row.model) == (
        "remote_test",
        "prefer_local",
        f"127.0.0.1:{server.port}",
        "big",
    )
    assert row.num_bytes == len(server.posts[0].body) and row.request.startswith("test-")
    assert outcomes(tmp_path) == [("completed", 9, 1)]


async def test_each_stage_is_timed_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the connection is not part of the time of the list."""
    really_open = Transport.open

    async def opened(transport: Transport, *args: Any) -> Exchange:
        exchange = await really_open(transport, *args)
        exchange.stages.connection = Stages(1000.0, 2000.0, 4000.0)
        return exchange

    monkeypatch.setattr(Transport, "open", opened)
    began_s = time.monotonic()
    async with faults(said(CHAT), gets=LISTED) as server:
        (found,) = await checked(tmp_path, server.url)
    took_s = time.monotonic() - began_s
    assert (found["name_s"], found["connect_s"]) == (1000.0, 2000.0)
    assert 0 < found["models_s"] + 7000.0 <= took_s
    assert 0 < found["token_s"] <= took_s


async def test_no_connection_is_left_open(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        await checked(tmp_path, server.url)
        async with asyncio.timeout(patient(5)):
            # Listing the system's connections has no event to wait for.
            while any(  # noqa: ASYNC110
                each.raddr and each.raddr.port == server.port for each in psutil.Process().net_connections()
            ):
                await asyncio.sleep(0.01)


async def test_without_a_key_none_is_sent(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        await checked(tmp_path, server.url)
    assert not any("authorization" in asked.headers for asked in server.asked)


async def test_openais_own_limit_has_another_name(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets={"/v1/models": models("gpt", owner="openai")}) as server:
        await checked(tmp_path, server.url)
    assert server.posts[0].json["max_completion_tokens"] == 1


async def test_an_answer_without_counts_is_an_answer(tmp_path: Path) -> None:
    assert await problem(tmp_path, said({"choices": []})) == ""
    assert outcomes(tmp_path) == [("completed", 0, 0)]


@pytest.mark.parametrize(
    ("aliases", "model", "said_of"),
    [
        ({"builtin": "small"}, "small", ""),
        ({"a": "huge", "b": "small"}, "small", "it does not serve huge; it has big, small"),
        ({"a": "huge", "b": "vast"}, "big", "it does not serve huge, vast; it has big, small"),
    ],
)
async def test_the_models_that_the_owner_named(
    aliases: dict[str, str], model: str, said_of: str, tmp_path: Path
) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        (found,) = await checked(tmp_path, server.url, models=aliases)
    assert (found["model"], found["problem"]) == (model, said_of)


async def test_a_remote_without_models_is_asked_for_nothing(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets={"/v1/models": models()}) as server:
        (plain_one,) = await checked(tmp_path, server.url)
        (named,) = await checked(tmp_path, server.url, models={"builtin": "small"})
    assert plain_one["problem"] == "it serves no model"
    assert named["problem"] == "it does not serve small; it has none"
    assert server.posts == [] and outcomes(tmp_path) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            said({"error": {"message": "bad key"}}, 401),
            "it refuses the key (HTTP 401); no key is sent; it says: bad key",
        ),
        (said({}, 403), "it refuses the key (HTTP 403); no key is sent"),
        (plain(404), "it does not know the address (HTTP 404): is the base URL right?"),
        (
            plain(302, headers="Location: http://169.254.169.254/\r\n"),
            "it redirects (HTTP 302), which is never followed",
        ),
        (said({"error": "bro\x1bken" + "x" * 500}, 500), "it answers with HTTP 500; it says: bro ken" + "x" * 192),
        (said({"detail": 1}, 422), "it answers with HTTP 422"),
        (said({}, 400), "it answers with HTTP 400"),
        (said({}, 300), "it redirects (HTTP 300)"),
        (plain(200, b"<html>"), "its /models is not OpenAI's list: is the base URL right?"),
        (said({"data": [1]}), "its /models is not OpenAI's list"),
        (said([]), "its /models is not OpenAI's list"),
        (plain(200, DEEP), "its /models is not OpenAI's list"),
        (plain(500, DEEP), "it answers with HTTP 500"),
        (plain(200, b"x" * (MAX_ANSWER_BYTES + 1)), "its answer is larger than"),
    ],
)
async def test_what_is_wrong_with_the_list_is_told(answer: Script, words: str, tmp_path: Path) -> None:
    found = await problem(tmp_path, said(CHAT), gets={"/v1/models": answer})
    assert found.startswith(words)
    assert "x" * 194 not in found, "no more than 200 characters of it are quoted"
    assert outcomes(tmp_path) == []


async def test_a_refused_key_is_told_with_its_place(tmp_path: Path) -> None:
    gets = {"/v1/models": plain(401)}
    async with faults(said(CHAT), gets=gets) as server:
        remote = Remote("gpu", (EndpointConfig(server.url),), Key("env", "GPU_KEY"))
        (found,) = await check(remote, RouteMode.PREFER_LOCAL, SECRET, Ledger(tmp_path, RemotesFile(tmp_path).find))
    assert found["problem"] == "it refuses the key (HTTP 401); the key is that in env"


async def test_a_remote_that_quotes_the_key_or_names_no_name(tmp_path: Path) -> None:
    """The output is pasted into reports, and must not move a cursor."""
    gets = {"/v1/models": models("\x1b[2J", "small")}
    counts = {"prompt_tokens": 10**400, "completion_tokens": -3}
    scripts = [said({"error": {"message": f"no such key: {SECRET}"}}, 400), said(CHAT | {"usage": counts})]
    async with faults(*scripts, gets=gets) as server:
        (refused,) = await checked(tmp_path, server.url, key=SECRET)
        (found,) = await checked(tmp_path, server.url, key=SECRET)
    assert refused["problem"] == "it answers with HTTP 400"
    assert found["models"] == ("small",) and found["model"] == "small"
    assert outcomes(tmp_path)[1] == ("completed", MAX_PROMPT_TOKENS, 0)


@pytest.mark.parametrize(
    ("answer", "words", "outcome"),
    [
        (said({"error": {"message": "full"}}, 503), "it answers with HTTP 503; it says: full", "server_error"),
        (said({"hello": 1}), "its answer is not OpenAI's", "garbled"),
        (said([]), "its answer is not OpenAI's", "garbled"),
        (plain(200, DEEP), "its answer is not OpenAI's", "garbled"),
        (said({"choices": [], "usage": {"prompt_tokens": "many"}}), "its answer is not OpenAI's", "garbled"),
        ([Act.CLOSE], "the connection broke before an answer came", "cut"),
    ],
)
async def test_what_is_wrong_with_the_token_is_told(answer: Script, words: str, outcome: str, tmp_path: Path) -> None:
    assert await problem(tmp_path, answer) == words
    assert outcomes(tmp_path) == [(outcome, 0, 0)]


async def test_a_remote_that_hangs_is_left_after_the_limit(tmp_path: Path) -> None:
    # Long enough that a busy machine can list the models.
    words = await problem(tmp_path, half(Act.STALL), limits=Limits(first_token_s=0.8))
    assert words == "no answer within 0.8 s (limits.first_token_s)"
    assert outcomes(tmp_path) == [("timeout", 0, 0)]


async def test_each_endpoint_is_tried_whatever_comes_of_the_others(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        nobody, good = await checked(tmp_path, f"http://127.0.0.1:{closed_port()}/v1", server.url)
    assert nobody["problem"].startswith("no connection: ") and nobody["name_s"] is None
    assert (nobody["models"], nobody["model"]) == ((), "")
    assert good["problem"] == "" and good["model"] == "big"


async def test_what_cannot_be_written_down_is_not_sent(tmp_path: Path) -> None:
    folder_of(tmp_path).write_text("in the way")
    async with faults(said(CHAT), gets=LISTED) as server:
        (found,) = await checked(tmp_path, server.url)
    assert "cannot be kept" in found["problem"] and server.posts == []


@pytest.mark.parametrize(
    ("serves_tls", "scheme", "told"),
    [
        (True, "https", "not trusted: self-signed certificate; name its CA (--ca), or this one certificate (--pin)"),
        (True, "http", "the connection broke before an answer came; does its URL begin with https://?"),
        (False, "https", "; does its URL begin with http://?"),
    ],
)
async def test_what_to_do_about_tls_is_told(serves_tls: bool, scheme: str, told: str, tmp_path: Path) -> None:
    context = server_context(Authority(tmp_path).self_signed("alone")) if serves_tls else None
    async with faults(said(CHAT), gets=LISTED, tls=context) as server:
        (found,) = await checked(tmp_path, f"{scheme}://127.0.0.1:{server.port}/v1")
    assert found["problem"].endswith(told)
    assert not server.posts


async def test_nothing_leaves_where_the_mode_or_the_files_of_tls_forbid_it(tmp_path: Path) -> None:
    async with faults(said(CHAT), gets=LISTED) as server:
        with pytest.raises(ConfigError, match="not even a test"):
            await checked(tmp_path, server.url, mode=RouteMode.LOCAL_ONLY)
        with pytest.raises(ConfigError, match=r"TLS: /none\.pem cannot be used"):
            await checked(tmp_path, server.url, tls=Tls(ca_file="/none.pem"))
    assert server.num_connections == 0
