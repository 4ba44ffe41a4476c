"""Compares greedy words with llama-server's: `python -m tests.peer.words [MODEL]`, with SmolLM2 in a minute.

Twenty prompts go to edgeagent at once, and to llama-server one after another. Each word must be llama-server's, or
nearly as likely there (a near tie, see docs/architecture/determinism.md). Behind a near tie, llama-server gets
edgeagent's word, so that the rest can be compared too. It exits with 1 if a word is another one.

With `--record`, it writes llama-server's words alone into WORDS, which tests/integration/test_real_weights.py compares
on every machine: the ids of the tokens, and those that are nearly as likely, with how much smaller their logits are.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.integration.test_real_weights import NUM_RECORDED, PROMPTS, WORDS
from tests.peer.build import binary, default_folder
from tests.peer.servers import Setup, edgeagent, llama_server
from tests.plain_loop import NEAR_TIE
from tests.smollm2 import MODEL

CONTEXT = 4096
PATIENCE_S = 120.0
NUM_LIKELY = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and for each the log-probabilities of the likeliest tokens.

    `is_ended`: the model ended it. llama-server's tokens have the end's token then, and edgeagent's do not.
    """

    tokens: list[int]
    likely: list[dict[int, float]]
    is_ended: bool


class Client:
    """Asks a server on llama-server's own wire."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False)

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        reply = self._http.post(path, json=body)
        reply.raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer

    def tokenize(self, prompt: str, **fields: bool) -> list[int]:
        tokens: list[int] = self._post("/tokenize", content=prompt, **fields)["tokens"]
        return tokens

    def end(self) -> list[int]:
        """Return the token that ends an answer."""
        return self.tokenize(self._http.get("/props").json()["eos_token"], parse_special=True)

    def build(self) -> str:
        """Return the number and the commit of llama-server's build."""
        return str(self._http.get("/props").json()["build_info"])

    def complete(self, prompt: str | list[int], num_words: int) -> Answer:
        fields = {"n_predict": num_words, "temperature": 0, "n_probs": NUM_LIKELY, "return_tokens": True}
        answer = self._post("/completion", prompt=prompt, **fields)
        likely = [
            {entry["id"]: entry["logprob"] for entry in each["top_logprobs"]}
            for each in answer["completion_probabilities"]
        ]
        return Answer(answer["tokens"], likely, is_ended=answer["stop_type"] == "eos")


def near_ties(peer: Client, prompt: str, words: list[int]) -> list[float]:
    """Return how much less likely the words are than llama-server's where they differ, as differences of logits.

    A word that is not among llama-server's likeliest counts as infinitely less likely, and ends the comparison.
    """
    begun, gaps = 0, []
    prompt_tokens = peer.tokenize(prompt, add_special=True)
    while begun < len(words):
        expected = peer.complete(prompt_tokens + words[:begun], len(words) - begun)
        pairs = zip(words[begun:], expected.tokens, expected.likely, strict=True)
        other = next(((at, word, likely) for at, (word, token, likely) in enumerate(pairs) if word != token), None)
        if other is None:
            break
        at, word, likely = other
        gaps.append(max(likely.values()) - likely.get(word, float("-inf")))
        if gaps[-1] > NEAR_TIE:
            break
        begun += at + 1
    return gaps


def record(peer: Client, model: Path) -> None:
    """Write llama-server's words after each prompt into WORDS."""
    answers = []
    for prompt in PROMPTS:
        answer = peer.complete(peer.tokenize(prompt, add_special=True), NUM_RECORDED)
        near: dict[int, dict[int, float]] = {}
        for at, (token, likely) in enumerate(zip(answer.tokens, answer.likely, strict=True)):
            gaps = {other: round(max(likely.values()) - each, 3) for other, each in likely.items() if other != token}
            if ties := {other: gap for other, gap in gaps.items() if gap <= NEAR_TIE}:
                near[at] = ties
        answers.append({"prompt": prompt, "tokens": answer.tokens, "near": near})
    made = {"made_by": "python -m tests.peer.words --record", "build": peer.build(), "model": model.name}
    written = json.dumps({**made, "end": peer.end(), "answers": answers}).replace('{"prompt"', '\n{"prompt"')
    WORDS.write_text(written + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--words", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--record", action="store_true", help="write llama-server's words for the tests")
    options = parser.parse_args()
    setup = Setup(options.model, options.llama_server, options.threads)
    if options.record:
        with llama_server(setup, CONTEXT) as theirs:
            record(Client(theirs.address.url), options.model)
        return
    with edgeagent(setup, CONTEXT) as ours, llama_server(setup, CONTEXT) as theirs:
        client, peer = Client(ours.address.url, ours.address.token), Client(theirs.address.url)
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            answers = list(pool.map(lambda prompt: client.complete(prompt, options.words), PROMPTS))
        end = peer.end()
        words = [answer.tokens + end * answer.is_ended for answer in answers]
        found = [near_ties(peer, prompt, each) for prompt, each in zip(PROMPTS, words, strict=True)]
    for prompt, each, gaps in zip(PROMPTS, words, found, strict=True):
        told = "the same" if not gaps else "differ by " + ", ".join(f"{gap:.2f}" for gap in gaps)
        print(f"{prompt!r:52.52} {len(each):3} words  {told}")
    num_words, num_same = sum(map(len, words)), sum(not gaps for gaps in found)
    wrong = sum(gaps[-1] > NEAR_TIE for gaps in found if gaps)
    print(
        f"{num_words} words of {len(found)} prompts: {num_same} prompts the same, {wrong} with another word", end="; "
    )
    print(f"{sum(map(len, found)) - wrong} near ties (logits differ by at most {NEAR_TIE})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
