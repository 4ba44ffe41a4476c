"""Kept answers on the page: where one came from, that it can be forgotten, and that Regenerate asks the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import Config
from edgeagent.types import MemoryKind
from tests.answers.caches import ModelBackend, caching
from tests.conftest import TinyModel
from tests.page.conftest import Visit, visiting

pytestmark = pytest.mark.slow(seconds=10)


async def ask(visit: Visit, text: str) -> str:
    """Ask in a new conversation, and return what stands below the answer."""
    await visit.tab.click("#new")
    await visit.say(text)
    await visit.ended(1)
    return str(await visit.tab.inner_text(".facts"))


async def test_a_kept_answer_says_so_and_can_be_forgotten(browser: Any, tiny_model: TinyModel, tmp_path: Path) -> None:
    file = Path(shutil.copy(tiny_model(MemoryKind.FULL_ATTENTION), tmp_path / "fake.gguf"))
    backend = ModelBackend(file)
    async with (
        caching(backend, sampled=True) as answers,
        visiting(browser, backend, Config(state_dir=tmp_path), (1280, 800), answers=answers) as visit,
    ):
        await visit.enter()
        assert "kept" not in await ask(visit, "one two three")
        facts = await ask(visit, "one two three")
        assert "kept answer 0 s old" in facts and "exact" in facts
        assert await visit.tab.inner_text(".markdown") == "one two three"

        await visit.tab.click("text=Regenerate")
        await visit.tab.wait_for_selector(".turn .count")
        await visit.ended(1)
        assert "kept" not in await visit.tab.inner_text(".facts")

        assert "kept answer" in await ask(visit, "one two three")
        for _ in range(2):  # the second time it is gone already
            async with visit.tab.expect_response(lambda answer: answer.request.method == "DELETE"):
                await visit.tab.click(".forget")
            await visit.tab.wait_for_selector("text=This answer is forgotten.")
        assert await visit.tab.inner_text(".forget") == "Forgotten"
        assert "kept" not in await ask(visit, "one two three")
        visit.faults = [fault for fault in visit.faults if "404" not in fault]
