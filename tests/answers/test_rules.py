"""What is kept where: rules that depend on the owner's settings."""

from __future__ import annotations

from pathlib import Path

from edgeagent.answers.answers import Answers
from edgeagent.answers.rules import Use, kept_at
from edgeagent.config import AnswersConfig, Config, EngineConfig
from tests.answers.caches import ModelBackend, asking
from tests.answers.test_answers import ask


def test_answers_of_remotes_are_not_kept_at_a_server() -> None:
    use = Use(reads=True, writes=True, shares=True, leads=True)
    kept = {
        (is_remotes, is_shared): kept_at(
            use, asking("a"), is_remotes=is_remotes, is_shared=is_shared, is_elsewhere=False
        )
        for is_remotes in (False, True)
        for is_shared in (False, True)
    }
    assert kept.pop((True, True)) == Use(shares=True, leads=True)
    assert set(kept.values()) == {use}


async def test_forget_keeps_no_file(tmp_path: Path, model_file: Path) -> None:
    for forget, kinds in ((False, ("", "exact")), (True, ("", "exact")), (False, ("exact",))):
        config = Config(state_dir=tmp_path / str(forget), forget=forget, answers=AnswersConfig(exact=True))
        config.state_dir.mkdir(mode=0o700, exist_ok=True)
        answers = Answers.of(config, ModelBackend(model_file))
        with answers.patience():
            await answers.start()
            assert [(await ask(answers, asking(f"{number}"))).kind for number, _ in enumerate(kinds)] == [*kinds]
        await answers.close()
        assert any(file.name.startswith("answers") for file in config.state_dir.iterdir()) is not forget


async def test_other_kv_cells_make_another_answer(tmp_path: Path, model_file: Path) -> None:
    found = []
    for engine in (EngineConfig(), EngineConfig(kv_type_k="q4_0", kv_type_v="q4_0"), EngineConfig(threads=1)):
        config = Config(state_dir=tmp_path, engine=engine, answers=AnswersConfig(exact=True))
        answers = Answers.of(config, ModelBackend(model_file))
        with answers.patience():
            await answers.start()
            found.append((await ask(answers, asking("1"))).kind)
        await answers.close()
    assert found == ["", "", "exact"]
