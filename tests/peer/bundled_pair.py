"""Measures what the bundled model's draft gains or costs on short questions: `python -m tests.peer.bundled_pair`.

Three daemons answer the same questions in turn: one without drafts, one with the bundled draft, and another one without
drafts, which shows the noise. The questions are the held-out wordings of the model's recipe. The first answers do not
count, because the daemons are still learning. The script prints tokens per second, from the first token of each answer.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import tomllib
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.peer.servers import Child, edgeagent_command, free_port

HELD_OUT = Path(__file__).resolve().parents[2] / "models" / "builtin" / "recipe" / "data" / "held_out.toml"
DRAFTS = {"none": "none", "auto": "auto", "none again": "none"}
NUM_UNCOUNTED = 20


def questions(number: int, seed: int) -> list[str]:
    """Return different questions; each blank of a wording is filled with "seven"."""
    wordings = tomllib.loads(HELD_OUT.read_text(encoding="utf-8")).values()
    lines = [line for text in wordings if isinstance(text, str) for line in text.splitlines() if len(line) > 8]
    random.Random(seed).shuffle(lines)
    return [re.sub(r"\{[^}]*\}", "seven", line) for line in lines[:number]]


def rates(number: int, seed: int) -> dict[str, float]:
    """Return the tokens per second of each daemon."""
    num_tokens: dict[str, int] = defaultdict(int)
    took_ms: dict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        urls = {}
        for name, draft in DRAFTS.items():
            folder, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
            command = edgeagent_command("builtin", folder / "state", port, "--draft", draft)
            urls[name] = f"http://127.0.0.1:{port}"
            stack.callback(Child(command, folder / "log", f"{urls[name]}/ready").stop)
        client = stack.enter_context(httpx.Client(timeout=60, trust_env=False))
        names = list(DRAFTS)
        for index, question in enumerate(questions(number + NUM_UNCOUNTED, seed)):
            body = {"model": "default", "temperature": 0, "messages": [{"role": "user", "content": question}]}
            names.append(names.pop(0))
            for name in names:
                timings = (
                    client.post(f"{urls[name]}/v1/chat/completions", json=body).raise_for_status().json()["timings"]
                )
                if index >= NUM_UNCOUNTED:
                    num_tokens[name] += timings["predicted_n"]
                    took_ms[name] += timings["predicted_ms"]
    return {name: num_tokens[name] * 1000 / took_ms[name] for name in DRAFTS}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=5, help="how often to do all of it, with other questions")
    arguments = parser.parse_args()
    for seed in range(arguments.rounds):
        found = rates(arguments.questions, seed)
        print(", ".join(f"{name} {rate:.0f} ({rate / found['none']:.3f})" for name, rate in found.items()), flush=True)


if __name__ == "__main__":
    main()
