"""Decides from a request and the owner's options what the answer cache may do with the request. It is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeagent.config import AnswersConfig
from edgeagent.types import AnswerPolicy, ChatPrompt, Finished, FinishReason, GenerateRequest, RouteMode, Started

KIOSK = "kiosk:"
"""How the partition of a kiosk's visitors begins; the name of the kiosk's token follows."""
_ELSEWHERE = (RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY)


@dataclass(frozen=True, slots=True)
class Use:
    """What the cache may do with a request: give it a kept answer, keep its answer, share its answer as it comes.

    `leads`: others may share the answer that is generated for this request. A request with a limit of time only shares
    that of another, since its own may be refused or cut.
    """

    reads: bool = False
    writes: bool = False
    shares: bool = False
    leads: bool = False


NO_USE = Use()


def use_of(request: GenerateRequest, options: AnswersConfig) -> Use:
    """Return what the cache may do with a request, whatever its model is."""
    policy = request.cache.answers
    has_media = isinstance(request.prompt, ChatPrompt) and bool(request.prompt.media)
    is_asked = not (request.prefill_only or request.is_ahead or request.so_far is not None or has_media)
    if not options.is_on or policy is AnswerPolicy.NONE or not is_asked:
        return NO_USE
    if not (options.sampled or is_repeatable(request)) or not _is_among(request.cache.partition, options.clients):
        return NO_USE
    is_whole_use = policy is AnswerPolicy.USE
    is_limited = request.timeout_s is not None or request.need.first_token_s is not None
    return Use(reads=True, writes=is_whole_use, shares=is_whole_use, leads=is_whole_use and not is_limited)


def is_repeatable(request: GenerateRequest) -> bool:
    """Whether the same request gets the same answer again, if the conditions in docs/architecture/determinism.md hold.

    It is greedy, has a seed, or only asks how likely given texts are.
    """
    sampling = request.sampling
    return sampling.temperature == 0 or sampling.top_k == 1 or sampling.seed is not None or bool(request.choices)


def kept_elsewhere(use: Use, request: GenerateRequest, machine: RouteMode | None) -> Use:
    """Return the use of a request for a model of this machine, that may run at a remote which has it too.

    Such an answer is shared as it comes, but neither given nor kept: it may be another model's of the same name.
    `machine`: the mode of the owner and the machine's policy; None if there are no remotes.
    """
    is_elsewhere = (request.route or machine) in _ELSEWHERE or request.asked_route in _ELSEWHERE
    return _as_it_comes(use) if is_elsewhere else use


def kept_at(use: Use, request: GenerateRequest, *, is_remotes: bool, is_shared: bool, is_elsewhere: bool) -> Use:
    """Return the use of a request if answers are kept at a server. `is_remotes`: a remote's model answers.

    - `is_shared`: other machines may have remotes with models of the same name, so those answers are not kept.
    - `is_elsewhere`: the server is on another machine, so nothing of a request that must stay here is sent there.
    """
    must_stay = is_elsewhere and request.route is RouteMode.LOCAL_ONLY
    return _as_it_comes(use) if must_stay or (is_shared and is_remotes) else use


def _as_it_comes(use: Use) -> Use:
    """Return the use without the store: an answer is shared while it is generated, but neither given nor kept."""
    return Use(shares=use.shares, leads=use.leads)


def partition_of(client: str, options: AnswersConfig) -> str:
    """Return whose answers a client may get: its own, or those of all if the owner shares them."""
    return "*" if options.shared else client


def is_model_among(model: str, options: AnswersConfig) -> bool:
    """Whether the cache is on for a model. `model` may be MODEL+ADAPTER, which MODEL in the options includes."""
    return not options.models or model in options.models or model.rpartition("+")[0] in options.models


def why_not_kept(request: GenerateRequest, started: Started | None, end: Finished) -> str:
    """Return in a few words why an answer that has ended is not kept; "" if it may be."""
    if end.reason is FinishReason.CANCELLED:
        return "cancelled"
    longest = math.inf if request.max_tokens is None else request.max_tokens
    if end.reason is FinishReason.LENGTH and end.usage.num_output_tokens < longest:
        return "cut by the context"
    if end.timings.handovers:
        return "moved"
    if end.timings.num_shifted_tokens:
        return "shifted"
    if started is None or started.num_dropped_items:
        return "shortened"
    return ""


def _is_among(client: str, clients: tuple[str, ...]) -> bool:
    return not clients or client.removeprefix(KIOSK) in clients
