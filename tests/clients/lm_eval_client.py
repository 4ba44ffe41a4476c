"""lm-eval, the evaluation harness: its models `gguf` (log likelihoods, by echo) and `local-completions`."""

from __future__ import annotations

import asyncio
import math

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


main()
