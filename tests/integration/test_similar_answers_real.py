"""Similar questions are answered without the model, in a real daemon with real vectors, after a restart too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edgeagent.cli import main
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.encoder import Encoder
from edgeagent.engine.llama.model import Model
from tests.integration.conftest import PATIENT, Daemon, serving
from tests.minilm import make_minilm, reference
from tests.patience import patient

FACTS = "You are the museum's guide. The museum opens at 9 and closes at 17. The toilets are in the basement."
BEFORE = ("", "Hello, ", "Hi! ", "Excuse me, ", "Good day. ", "Please, ", "Hello there, ", "Hi, ", "Hey, ", "Well, ")
AFTER = ("", " Thank you!", " Thanks!", " Thank you very much.", " Many thanks.", " Thanks a lot!", " Cheers!", " Bye!")
# One wording with what people say before and after it. The bundled model does not answer all of them alike, so the
# first comparisons may be wrong, and many are tried.
WORDINGS = [f"{before}where are the toilets?{after}" for after in AFTER for before in BEFORE]
FLAGS = ("--answers-similar", "--answers-max-error", "0.4")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_minilm(folder / "all-minilm-l6-v2.gguf")
    return folder


def test_the_vectors_are_those_of_the_weights(models: Path) -> None:
    config = EngineConfig()
    model = Model(models / "all-minilm-l6-v2.gguf", config)
    begin, end = model.frame_tokens
    texts = ["What time do you open on Sunday?", "naïve café: £30 — don't!", "Was kostet der Eintritt?"]
    tokens = [[*begin, *model.tokenize(text, parse_special=False), *end] for text in texts]
    rows = Encoder(model, config).encode(tokens, 1)
    for row, ids in zip(rows, tokens, strict=True):
        assert float(np.dot(row, reference(ids))) > 0.9999


def ask(daemon: Daemon, question: str, **fields: Any) -> dict[str, Any]:
    """Return a greedy answer: its text, and where it comes from."""
    messages = [{"role": "system", "content": FACTS}, {"role": "user", "content": question}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 60, **fields}
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60)).raise_for_status().json()
    origin = reply["edgeagent"].get("cache", {}).get("answer") or {}
    return {"text": reply["choices"][0]["message"]["content"], **origin}


def similar(daemon: Daemon) -> dict[str, Any]:
    """Return what the owner sees of the lookup by similarity."""
    return dict(httpx.get(f"{daemon.url}/edgeagent/answers").raise_for_status().json()["similar"])


def listed(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the kept answers with their texts."""
    reply = httpx.get(f"{daemon.url}/edgeagent/answers/list", params={"whole": "true"}).raise_for_status().json()
    return list(reply["answers"])


def load_embedding_model(daemon: Daemon) -> None:
    """Load the embedding model: until it is there, no answer waits for it."""
    body = {"model": "all-minilm-l6-v2", "input": "Hello"}
    httpx.post(f"{daemon.url}/v1/embeddings", json=body, timeout=patient(60)).raise_for_status()


def first_similar(daemon: Daemon, wordings: Sequence[str]) -> dict[str, Any]:
    """Ask questions until one is answered from similarity, and return that answer."""
    for wording in wordings:
        answer = ask(daemon, wording)
        if answer.get("kind") == "similar":
            return answer
    raise AssertionError(similar(daemon))


def test_similar_questions_are_learned_and_kept(models: Path, tmp_path: Path) -> None:
    flags = ("builtin", "--models-dir", str(models), *FLAGS)
    with serving(tmp_path, *flags, program=PATIENT) as daemon:
        load_embedding_model(daemon)
        own = ask(daemon, WORDINGS[0], edgeagent={"answers": "none"})
        assert "kind" not in own
        found = first_similar(daemon, WORDINGS[:40])
        assert 0.7 < found["similarity"] <= 1
        # It is whole, and one of those that the model gave.
        assert found["text"] in {own["text"], *(each["text"] for each in listed(daemon))}
        # What the guards refuse, and what may not be looked up, is asked of the model.
        assert "kind" not in ask(daemon, "Where are the toilets now?")
        assert "kind" not in ask(daemon, "Where aren't the toilets?")
        assert "kind" not in ask(daemon, "Good morning, where are the toilets?", edgeagent={"answers": "none"})
        status = similar(daemon)
        assert status["is_on"] and status["refused"]["context"] == 1 and status["trouble"] is None
    with serving(tmp_path, *flags, program=PATIENT) as daemon:
        num_kept = similar(daemon)["num_questions"]
        assert num_kept >= status["num_questions"]
        load_embedding_model(daemon)
        again = first_similar(daemon, WORDINGS[40:])
        assert again["text"] and again["age_s"] > 0
        httpx.delete(f"{daemon.url}/edgeagent/answers/{again['id']}").raise_for_status()
        daemon.run("cache", "answers", "forget", "--all")
        assert similar(daemon)["num_questions"] == 0
        assert "kind" not in ask(daemon, WORDINGS[3])


# The first test has the default one, `text`.
@pytest.mark.parametrize("judge", [pytest.param("exact", marks=pytest.mark.slow(seconds=3)), "model"])
def test_each_judge_compares_answers(models: Path, tmp_path: Path, judge: str) -> None:
    with serving(
        tmp_path, "builtin", "--models-dir", str(models), *FLAGS, "--answers-judge", judge, program=PATIENT
    ) as daemon:
        load_embedding_model(daemon)
        assert first_similar(daemon, WORDINGS)["text"]
        status = similar(daemon)
        assert status["num_compared"] > 0 and status["trouble"] is None


def test_without_the_embedding_model_answers_come_as_before(tmp_path: Path) -> None:
    with serving(tmp_path, "builtin", *FLAGS, program=PATIENT) as daemon:
        assert "kind" not in ask(daemon, WORDINGS[0])
        assert ask(daemon, WORDINGS[0])["kind"] == "exact"
        assert "kind" not in ask(daemon, WORDINGS[1])
        # A question of a new place is embedded in idle time, behind its answer.
        limit_s = time.monotonic() + patient(20)
        while (trouble := similar(daemon)["trouble"]) is None and time.monotonic() < limit_s:
            time.sleep(0.05)
        assert trouble is not None and "all-minilm-l6-v2" in trouble


def test_an_embedding_model_that_is_not_here_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"answers.similar = true\nstore.models_dir = {str(tmp_path / 'models')!r}\n")
    (tmp_path / "models").mkdir()
    told = "all-minilm-l6-v2 is not on this machine: run `edgeagent pull all-minilm-l6-v2`"
    with serving(tmp_path / "state", "builtin", "--config", str(config)) as daemon:
        assert told in daemon.run("status")
        main(["doctor", "--config", str(config), "--state-dir", str(daemon.state_dir)])
        assert f"warn  answers        answers.similar is on, but finds nothing: {told}" in capsys.readouterr().out
