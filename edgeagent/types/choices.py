"""Engine settings that were chosen for a model on this machine, and the measurements behind them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Sum = Annotated[float, Meta(ge=0, le=1e18)]
Counts = Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(max_length=64)]


class CandidateTimes(Struct, frozen=True):
    """Seconds that each kind of work took with one candidate setting, by the work's name.

    Layers are alike, so it is enough to measure the first few. The seconds are those of the first
    `Measurements.num_layers` layers.
    """

    is_flash: bool
    micro_batch: Count
    seconds: Annotated[dict[Name, Seconds], Meta(max_length=32)]


class Measurements(Struct, frozen=True):
    """The result of a calibration: the times of all candidates.

    Some kinds of work follow earlier tokens or run beside other sequences. They were measured with `depth` KV cells in
    use. `is_whole`: the calibration ended within its time budget.
    """

    depth: Count
    num_layers: Count
    took_s: Seconds
    is_whole: bool
    candidates: Annotated[tuple[CandidateTimes, ...], Meta(max_length=16)]


class StepTime(Struct, frozen=True, array_like=True):
    """The mean seconds of one kind of step. See engine.costs.step_shape for the other fields."""

    num_tokens: Annotated[float, Meta(ge=1, le=1 << 31)]
    num_cells: Annotated[float, Meta(ge=0, le=1 << 40)]
    num_pairs: Annotated[float, Meta(ge=0, le=1 << 60)]
    seconds: Seconds


class StepSums(Struct, frozen=True, array_like=True):
    """The sums over all steps of one kind. See engine.costs.work_done for the kinds.

    num_pairs: pairs of a token and an earlier token of its sequence. num_products: pairs of a token and a used cell of
    any sequence.
    """

    kind: Name
    num_steps: Sum
    num_tokens: Sum
    num_pairs: Sum
    num_products: Sum
    seconds: Sum


class DraftRecord(Struct, frozen=True, rename={"verified": "judged", "accepted": "stood"}):
    """Counts of verified and of accepted draft tokens by position, for one source and one kind of sampler."""

    source: Name
    sampler: Name
    verified: Counts
    accepted: Counts


class Learned(Struct, frozen=True):
    """What an engine learnt while it ran. `draft` names the file of the draft that `draft_times` belong to."""

    times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    draft: Annotated[str, Meta(max_length=4096)] = ""
    draft_times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    records: Annotated[tuple[DraftRecord, ...], Meta(max_length=64)] = ()


class Kept(Struct, frozen=True):
    """What the daemon keeps for the next load of a model: its calibration, the choice made, and what was learnt.

    `conditions` describes how the measurements were made. Under other conditions, the measurements are not reused.
    `num_tries` counts the loads that have measured under these conditions. `work` sums up the steps of requests
    under these conditions, with the seconds that they take with this choice; older steps count less.
    """

    conditions: Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
    measurements: Measurements | None
    is_flash: bool
    micro_batch: Count
    num_tries: Annotated[int, Meta(ge=0, le=1 << 31)]
    learned: Learned | None = None
    work: Annotated[tuple[StepSums, ...], Meta(max_length=8)] = ()


class Alternative(Struct, frozen=True):
    """One of the values that could be chosen, with the milliseconds that each kind of work is expected to take."""

    value: str
    work_ms: dict[str, float]


class Choice(Struct, frozen=True):
    """A choice, the reason for it, and its alternatives.

    `by` is "option", "measurement", "memory", "model" (it follows from the model's shape), "trial" (a file cannot be
    used) or "default".
    """

    name: str
    value: str
    by: str
    why: str
    alternatives: tuple[Alternative, ...] = ()
