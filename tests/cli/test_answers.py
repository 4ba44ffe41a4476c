"""What `edgeagent cache answers stats` says of answers from similarity, beside the bound that the owner set."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from edgeagent.cli import answers
from edgeagent.client import Address

SIMILAR: dict[str, Any] = {
    "is_on": True,
    "num_questions": 12,
    "max_error": 0.01,
    "measured_error": None,
    "expected_error": None,
    "num_checked": 0,
    "num_found_wrong": 0,
    "num_compared": 3400,
    "refused": {},
    "trouble": None,
}
ERROR = "At most 1.00% of these answers may be wrong."


@pytest.mark.parametrize(
    ("similar", "said"),
    [
        (None, None),
        ({}, f"Similar questions: 12 are known, and 3,400 comparisons were made. {ERROR} None was checked so far."),
        (
            {"measured_error": 0.0412, "num_checked": 50, "num_found_wrong": 2, "is_on": False},
            f"{ERROR} Measured: 4.12% (2 wrong of 50 checked). The checks contradict the bound, so no answer is given",
        ),
        ({"expected_error": 0.004}, f"{ERROR} Expected since the start: 0.40%. None was checked so far."),
        ({"refused": {"names": 2, "numbers": 1200}}, "Refused by rules: numbers 1,200, names 2."),
        ({"trouble": "it is not on this machine"}, "No answer is given from similarity at the moment: it is not on"),
    ],
)
def test_stats_of_similar_questions(
    similar: dict[str, Any] | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"is_on": True, "store": "sqlite", "trouble": None, "num_answers": 1, "num_bytes": 9, "max_bytes": 10}
    report |= {"outcomes": {}, "similar": None if similar is None else SIMILAR | similar}
    monkeypatch.setattr(answers, "daemon_of", lambda _: Address("http://127.0.0.1:1", ""))
    monkeypatch.setattr(answers, "ask", lambda *_: report)
    done = CliRunner().invoke(answers.answers_app, ["stats"], catch_exceptions=False)
    text = " ".join(done.output.split())
    assert done.exit_code == 0 and (("Similar" not in text) if said is None else said in text)
