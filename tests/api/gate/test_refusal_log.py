"""The log of refused requests: one line for each subject and minute, with names and without keys."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgeagent.api.gate.refusal_log import MAX_LINES, WINDOW_S, RefusalLog
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import KeyRing, Scope, add_client, ensure_token, remove_client
from tests.api.gate.test_security import num_refused
from tests.backends.fake import FakeBackend
from tests.daemon.logged import logged
from tests.daemon.running import running
from tests.robust.raw import get, upgrade


def test_few_lines_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = RefusalLog(clock=lambda: now_s[0])
    with caplog.at_level(logging.WARNING):
        for number in range(3 * MAX_LINES):
            log.write("forbidden", f"the Origin 'http://{number}'", "/v1/responses")
            log.write("forbidden", "the Origin 'http://0'", "/v1/responses")
        assert len(caplog.messages) == MAX_LINES
        now_s[0] = WINDOW_S
        log.write("forbidden", "the Origin 'http://0'", "/v1/responses")
        now_s[0] = 2 * WINDOW_S
        log.write("forbidden", "the Origin 'http://0'", "/v1/responses")
    line = "refused (forbidden): the Origin 'http://0', at /v1/responses"
    assert caplog.messages[MAX_LINES:] == [f"{line}; {5 * MAX_LINES} more before were not logged", line]


@pytest.mark.parametrize("form", ["console", "json"])
async def test_what_the_log_names(tmp_path: Path, form: str) -> None:
    owner, kiosk = ensure_token(tmp_path), add_client(tmp_path, "kiosk", [Scope.INFER])
    gone = add_client(tmp_path, "gone", [Scope.INFER])
    remove_client(tmp_path, "gone")
    host = "Host: 127.0.0.1:{port}"
    config = Config(server=ServerConfig(token_required=True))
    before = num_refused("forbidden")
    with logged(form=form) as log:  # type: ignore[arg-type]
        async with running(FakeBackend(), config, KeyRing(tmp_path)) as daemon:
            for _ in range(3):
                assert (await get(daemon, host, "Origin: http://evil.example\x85\x9b2J\xad")).status == 403
            assert (await upgrade(daemon, host, "Origin: http://socket.example")).status == 403
            assert (await get(daemon, "Host: rebound.example")).status == 403
            assert (await get(daemon, host, "Referer: http://from.example/")).status == 403
            for token, target, status in (
                (kiosk, "/metrics", 403),
                (gone, "/v1/models", 401),
                ("sk-other", "/v1/models", 401),
                (f"{owner}x", "/secret/path", 401),
            ):
                assert (await get(daemon, host, f"Authorization: Bearer {token}", target=target)).status == status
            assert (await get(daemon, host)).status == 401
    text = log.getvalue()
    lines = [line for line in text.splitlines() if "refused (" in line]
    wanted = ["http://evil.example", "http://socket.example", "rebound.example", "http://from.example/"]
    wanted += [
        "the token of 'kiosk' over TCP, at /metrics",
        "an unknown, removed or expired token",
        "another key",
        "no key",
    ]
    # All unknown tokens count as one subject.
    assert [name for name in wanted if sum(name in line for line in lines) != 1] == []
    assert len(lines) == len(wanted)
    assert not [secret for secret in (owner, kiosk, gone, "sk-other", "/secret/path") if secret in text]
    assert not {"\x85", "\x9b"} & set(text)
    assert num_refused("forbidden") == before + 7
