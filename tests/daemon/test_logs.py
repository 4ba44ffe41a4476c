"""The log lines: their form, their request ids, and content that must never appear."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading

import pytest

from edgeagent.api.wire.request_id import REQUEST_ID
from edgeagent.daemon.logs import ConsoleLines, JsonLines, dropped_record, log_unhandled
from tests.backends.fake import FakeBackend
from tests.daemon.logged import logged
from tests.daemon.running import exchange, running

SECRET = "somebody's own words"
CHAT = {"messages": [{"role": "user", "content": "one two"}]}


def record(message: str, *values: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("edgeagent.x", logging.WARNING, __file__, 1, message, values, None)
    made.__dict__.update(extra)
    return made


def test_console_lines_hold_no_control_characters() -> None:
    line = ConsoleLines().format(record("path %s", "/\x1b[2J\r\n\x00\x9b\u202e\u2028x"))
    assert line.endswith("WARNING edgeagent.x: path /\\x1b[2J\\r\\n\\x00\\x9b\\u202e\\u2028x")


def test_dropped_lines_are_told_in_json() -> None:
    fields = json.loads(dropped_record(3))
    assert (fields["level"], fields["message"]) == ("warning", "(3 lines were dropped: the output was not read)")


def test_json_lines() -> None:
    line = JsonLines().format(record("path %s", "a\nb\x1b", fields={"end": "stop", "n": 3}))
    assert line.isprintable()
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", "edgeagent.x", "path a\nb\x1b")
    assert (fields["end"], fields["n"]) == ("stop", 3)


def test_fields_and_the_request_s_name_on_a_console() -> None:
    token = REQUEST_ID.set("req_1")
    try:
        line = ConsoleLines().format(record("ended", fields={"end": "stop", "first_token_ms": None, "bad": "\n"}))
        assert line.endswith("edgeagent.x: ended end=stop bad=\\n request_id=req_1")
        assert json.loads(JsonLines().format(record("ended")))["request_id"] == "req_1"
    finally:
        REQUEST_ID.reset(token)
    assert "request_id" not in ConsoleLines().format(record("ended"))


def failure() -> Exception:
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(SECRET) from error
    except ValueError as error:
        return error


@pytest.mark.parametrize("lines", [ConsoleLines(), JsonLines()])
def test_exceptions_are_types_and_places(lines: logging.Formatter) -> None:
    error = failure()
    caught = record("it failed", exc_info=(type(error), error, error.__traceback__))
    text = lines.format(caught)
    assert SECRET not in text
    assert "builtins.ValueError" in text
    assert "builtins.KeyError" in text
    assert "in failure" in text


def test_places_of_a_bug() -> None:
    bug = record("it failed", places="  File x, line 1\n    f()\n")
    assert ConsoleLines().format(bug).splitlines()[1:] == ["  File x, line 1", "    f()"]
    assert json.loads(JsonLines().format(bug))["traceback"].startswith("  File x")


def test_levels() -> None:
    with logged("debug") as log:
        logging.getLogger("edgeagent.x").debug("ours")
        logging.getLogger("library").info("theirs")
        logging.getLogger("library").warning("their warning")
        for name in ("uvicorn.error", "asyncio", "websockets.server"):
            logging.getLogger(name).critical(SECRET)
    assert [json.loads(line)["message"] for line in log.getvalue().splitlines()] == ["ours", "their warning"]
    with logged("error") as log:
        logging.getLogger("library").warning("their warning")
        logging.getLogger("edgeagent.x").warning("ours")
    assert log.getvalue() == ""


async def test_what_nobody_caught() -> None:
    class Unfit:
        def __del__(self) -> None:
            raise ValueError(SECRET)

    def raise_it() -> None:
        raise ValueError(SECRET)

    async def never_awaited() -> None:
        raise_it()

    loop = asyncio.get_running_loop()
    with logged("debug") as log:
        loop.set_exception_handler(log_unhandled)
        loop.call_soon(raise_it)
        task = asyncio.create_task(never_awaited())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        thread = threading.Thread(target=raise_it)
        thread.start()
        thread.join()
        Unfit()
        gc.collect()
        loop.set_exception_handler(None)
    messages = [json.loads(line)["message"] for line in log.getvalue().splitlines()]
    assert sorted(messages) == [
        "unhandled in a finalizer: ValueError",
        "unhandled in a thread: ValueError",
        "unhandled in the event loop: ValueError",
        "unhandled in the event loop: ValueError",
    ]
    assert SECRET not in log.getvalue()


async def test_lines_about_a_request_carry_its_name() -> None:
    def broken(_request: object) -> object:
        raise ValueError(SECRET)

    with logged() as log:
        async with running(FakeBackend()) as server:
            response = await server.http.post(f"{server.url}/v1/chat/completions", json=CHAT)
        async with running(FakeBackend(broken)) as server:  # type: ignore[arg-type]
            failed = await server.http.post(f"{server.url}/v1/chat/completions", json=CHAT)
    ended, ended_badly, bug = (json.loads(line) for line in log.getvalue().splitlines())
    assert ended["request_id"] == response.headers["x-request-id"]
    assert ended["generation"].startswith(response.json()["id"])
    assert (ended["message"], ended["model"], ended["end"]) == ("generation ended", "fake", "stop")
    assert (ended["served_by"], ended["reason"]) == ("local", "fake")
    assert (ended["prompt_tokens"], ended["output_tokens"]) == (2, 2)
    assert ended["total_ms"] >= ended["first_token_ms"] >= 0
    assert ended_badly["end"] == "internal_error"
    assert ended_badly["request_id"] == bug["request_id"] == failed.headers["x-request-id"]
    assert "ValueError" in bug["message"]
    assert SECRET not in log.getvalue()


@pytest.mark.parametrize("form", ["console", "json"])
async def test_a_client_cannot_write_lines_of_its_own(form: str) -> None:
    class Broken(FakeBackend):
        def find(self, name: str) -> str:
            raise ValueError(SECRET)

    with logged(form=form) as log:  # type: ignore[arg-type]
        async with running(Broken()) as server:
            target = "/v1/models/x%0d2026%20ERROR%20forged%1b%5b2J%e2%80%ae"
            reply = await exchange(server.port, f"GET {target} HTTP/1.1\r\nHost: {server.url[7:]}\r\n\r\n".encode())
    assert reply.status == 500
    assert not any(line.startswith("2026 ERROR") for line in log.getvalue().splitlines())
    assert not {"\r", "\x1b", "\u202e"} & set(log.getvalue())
