"""A table of how the time of an answer was spent, from the data in its terminal event."""

from __future__ import annotations

from collections.abc import Mapping

from edgeagent.cli.display import aligned
from edgeagent.client import Answer

STAGES = {
    "queue": "waiting for its turn",
    "load": "waiting for the model",
    "render": "template and tokenizer",
    "cache": "prefix cache lookup",
    "prefill": "computing the prompt",
    "first_token": "until the first token",
    "decode": "first to last token",
    "delivery": "engine to client, mean",
}


def stage_table(answers: Mapping[str, Answer]) -> str:
    """Return a table of the milliseconds in each stage, the tokens and the speed, with one column for each answer.

    `answers` maps the title of each column to its answer.
    """
    columns = list(answers.values())
    rows = [["milliseconds", *answers]]
    for stage, meaning in STAGES.items():
        rows.append([meaning, *(_milliseconds(answer, stage) for answer in columns)])
    rows.append(["tokens: prompt (cached) + output", *(_tokens(answer) for answer in columns)])
    rows.append(["tokens per second", *(f"{answer.timings.get('predicted_per_second', 0):.1f}" for answer in columns)])
    if any(answer.timings.get("draft_n") for answer in columns):
        rows.append(["draft tokens accepted", *(_accepted(answer) for answer in columns)])
    return aligned(rows)


def _milliseconds(answer: Answer, stage: str) -> str:
    value = (answer.edgeagent.get("stages_ms") or {}).get(stage)
    return "-" if value is None else f"{value:.1f}"


def _tokens(answer: Answer) -> str:
    cached = (answer.usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return f"{answer.usage.get('input_tokens', 0)} ({cached}) + {answer.usage.get('output_tokens', 0)}"


def _accepted(answer: Answer) -> str:
    drafted = answer.timings.get("draft_n", 0)
    return f"{answer.timings.get('draft_n_accepted', 0)} of {drafted}" if drafted else "-"
