"""lm-eval, the evaluation harness: its models `gguf` (log likelihoods, by echo) and `local-completions`."""

from __future__ import annotations

import asyncio
import json
import math
import urllib.request

from cases import BASE_URL, MODEL, URL, case, main
from lm_eval.api.instance import Instance
from lm_eval.models.gguf import GGUFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI


def instance(kind: str, *arguments: object) -> Instance:
    """Return one request of a task."""
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@case("gguf, log likelihoods of two continuations")
async def _() -> None:
    model = GGUFLM(base_url=URL)
    asked = [instance("loglikelihood", "Set a timer for", ending) for ending in (" 7 minutes.", " qq zz ##.")]
    (likely, _), (unlikely, _) = await asyncio.to_thread(model.loglikelihood, asked, disable_tqdm=True)
    assert math.isfinite(likely) and likely > unlikely, (likely, unlikely)


@case("gguf, a text until a stop string")
async def _() -> None:
    asked = [instance("generate_until", "Hello!", {"until": ["\n\n"], "max_gen_toks": 16})]
    [text] = await asyncio.to_thread(GGUFLM(base_url=URL).generate_until, asked, disable_tqdm=True)
    assert isinstance(text, str)


@case("local-completions, a text until a stop string")
async def _() -> None:
    model = LocalCompletionsAPI(
        base_url=f"{BASE_URL}/completions", model=MODEL, tokenizer_backend=None, tokenized_requests=False
    )
    asked = [instance("generate_until", "Hello!", {"until": ["\n\n"], "max_gen_toks": 16})]
    [text] = await asyncio.to_thread(model.generate_until, asked, disable_tqdm=True)
    assert isinstance(text, str)


def tokens_of(string: str, *_: object, **__: object) -> list[int]:
    """Return a text's tokens, which the server knows: a GGUF's tokenizer is in no folder of Hugging Face's."""
    asked = urllib.request.Request(f"{URL}/tokenize", json.dumps({"content": string}).encode())
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked) as reply:
        tokens: list[int] = json.load(reply)["tokens"]
    return tokens


@case("local-completions, log likelihoods of two continuations")
async def _() -> None:
    asked = [instance("loglikelihood", "Set a timer for", ending) for ending in (" 7 minutes.", " qq zz ##.")]
    model = LocalCompletionsAPI(base_url=f"{BASE_URL}/completions", model=MODEL, tokenizer_backend=None)
    # With a tokenizer, lm-eval sends token ids, and knows where a continuation begins.
    model.tokenizer, model.tokenized_requests, model.tok_encode = object(), True, tokens_of
    found = await asyncio.to_thread(model.loglikelihood, asked, disable_tqdm=True)
    (likely, _), (unlikely, _) = found
    by_text = await asyncio.to_thread(GGUFLM(base_url=URL).loglikelihood, asked, disable_tqdm=True)
    assert math.isfinite(likely) and likely > unlikely, found
    assert all(abs(one - other) < 0.5 for (one, _), (other, _) in zip(found, by_text, strict=True)), (found, by_text)


main()
