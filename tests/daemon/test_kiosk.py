"""What the owner of a kiosk is told at the start of the daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.config import Config, KioskConfig, ServerConfig
from edgeagent.daemon import kiosk, lifecycle
from edgeagent.daemon.kiosk import check_prompt, warn_of_kiosk
from edgeagent.daemon.state import ExitCode
from edgeagent.errors import BackendUnavailable, ContextLengthExceeded
from edgeagent.kiosk_prompt import MAX_FACTS_BYTES
from edgeagent.types import ModelStatus, WorkerState
from tests.api.services import INFO, Answering, OneModel
from tests.backends.fake import FakeBackend
from tests.daemon.running import RecordingReporter


async def test_a_kiosk_s_model_that_is_not_known_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", "fake"):
        await warn_of_kiosk(FakeBackend(), KioskConfig(model=name))
    assert not caplog.messages
    await warn_of_kiosk(FakeBackend(), KioskConfig(model="quen3"))
    (message,) = caplog.messages
    assert "kiosk.model: " in message and "quen3" in message


def test_the_daemon_does_not_start_with_facts_that_cannot_be_used(tmp_path: Path) -> None:
    facts, reporter = tmp_path / "today.txt", RecordingReporter()
    facts.write_bytes(b"a" * (MAX_FACTS_BYTES + 1))
    config = Config(
        state_dir=tmp_path / "state", server=ServerConfig(port=0), kiosk=KioskConfig(facts_file=facts, model="fake")
    )
    # The status is one after which a service is started again: until then a program may have written another file.
    assert lifecycle._serve_and_report(config, reporter, lambda _: pytest.fail("a service")) == ExitCode.FAILED
    assert reporter.events == [f"error kiosk.facts_file: {facts} cannot be used: it has more than 32768 bytes"]


@pytest.mark.parametrize(("num_chars", "is_told"), [(4000, False), (4096, True)])
async def test_a_prompt_that_does_not_fit_is_an_error_as_soon_as_the_model_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, num_chars: int, is_told: bool
) -> None:
    """The fake's tokens are characters, and its context has 4096 of them."""
    monkeypatch.setattr(kiosk, "_CHECK_S", 0.0)
    facts, models = tmp_path / "today.txt", OneModel(WorkerState.STARTING)
    facts.write_text("a" * num_chars)
    checking = asyncio.create_task(check_prompt(models, KioskConfig(facts_file=facts)))
    await asyncio.sleep(0)
    models.status = structs.replace(models.status, state=WorkerState.READY, info=INFO)
    await checking
    assert len(models.queries) == 1
    assert [(record.levelno, "do not fit" in record.message) for record in caplog.records] == (
        [(logging.ERROR, True)] if is_told else []
    )
    assert not is_told or "have 4115 tokens, but the context holds 4096" in caplog.text


class Loaded(Answering):
    """A model that is loaded."""

    def statuses(self) -> list[ModelStatus]:
        return [ModelStatus(INFO.name, WorkerState.READY, 1.0, INFO)]


@pytest.mark.parametrize(
    ("refusal", "is_told"),
    [(ContextLengthExceeded("The prompt has 32000 characters"), True), (BackendUnavailable("it has ended"), False)],
    ids=["too long", "gone"],
)
async def test_a_refusal_of_the_prompt(caplog: pytest.LogCaptureFixture, refusal: Exception, is_told: bool) -> None:
    models = Loaded((INFO.name,))
    models.answer = refusal
    await check_prompt(models, KioskConfig(instructions="Be kind."))
    assert bool(caplog.messages) == is_told and ("32000 characters" in caplog.text) == is_told


async def test_a_model_that_is_not_here_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    await check_prompt(FakeBackend(), KioskConfig(model="quen3", instructions="Be kind."))
    assert not caplog.messages
