"""Turns a request and its prompt into the engine's specification of a sequence."""

from __future__ import annotations

from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.types import GenerateRequest
from edgeagent.worker.child.prompt import ReadPrompt
from edgeagent.worker.protocol import Delivered


def make_spec(
    request: GenerateRequest,
    prompt: ReadPrompt,
    sampler: Sampler,
    delivered: Delivered,
    num_scored: int | None,
    adapter: str,
) -> SequenceSpec:
    """Return the engine's specification of a request.

    `num_scored` is the number of alternatives for each prompt token if log probabilities of the prompt are requested;
    otherwise None. `adapter` is the identity of the request's adapter, "" for none.
    """
    cache = request.cache
    return SequenceSpec(
        id=request.id,
        prompt=prompt.tokens,
        sampler=sampler,
        max_tokens=request.max_tokens,
        tier=request.tier,
        partition=cache.partition,
        read_cache=cache.read and num_scored is None,
        write_cache=cache.write,
        persist=cache.persist,
        pin=cache.pin,
        prefill_only=request.prefill_only or request.max_tokens == 0,
        delivered=delivered.tokens,
        step_lengths=delivered.step_lengths,
        num_prompt_logprobs=num_scored,
        reports_progress=request.reports_progress,
        boundaries=prompt.boundaries,
        num_system=prompt.num_system,
        lane=cache.lane,
        adapter=adapter,
        draft_tokens=request.draft_tokens,
    )
