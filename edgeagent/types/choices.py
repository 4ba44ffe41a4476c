"""What of the engine was chosen for a model on this machine, and the measurements that it was chosen by."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Counts = Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(max_length=64)]


class CandidateTimes(Struct, frozen=True):
    """Seconds that each kind of work took with one candidate, by the work's name.

    Layers are alike, so the first few may stand for all: these are the seconds of `Measurements.num_layers` of them.
    """

    is_flash: bool
    micro_batch: Count
    seconds: Annotated[dict[Name, Seconds], Meta(max_length=32)]


class Measurements(Struct, frozen=True):
    """A calibration: the candidates' times.

    `depth` is the number of used cells of works behind or beside others. `is_whole`: the budget did not cut it off.
    """

    depth: Count
    num_layers: Count
    took_s: Seconds
    is_whole: bool
    candidates: Annotated[tuple[CandidateTimes, ...], Meta(max_length=16)]


class StepTime(Struct, frozen=True, array_like=True):
    """The mean seconds of a kind of step: see engine.costs.step_shape."""

    num_tokens: Annotated[float, Meta(ge=1, le=1 << 31)]
    num_cells: Annotated[float, Meta(ge=0, le=1 << 40)]
    num_pairs: Annotated[float, Meta(ge=0, le=1 << 60)]
    seconds: Seconds


class DraftRecord(Struct, frozen=True):
    """Judged draft tokens of one source and kind of sampler, and those that stood, by position."""

    source: Name
    sampler: Name
    judged: Counts
    stood: Counts


class Learned(Struct, frozen=True):
    """What an engine learnt while it ran. `draft` names the draft's file that `draft_times` are of."""

    times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    draft: Annotated[str, Meta(max_length=4096)] = ""
    draft_times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    records: Annotated[tuple[DraftRecord, ...], Meta(max_length=64)] = ()


class Kept(Struct, frozen=True):
    """What the daemon keeps of a model for its next load: its calibration, the choice that was made, what was learnt.

    The conditions are named, so that measurements made under others can be told apart.
    """

    conditions: Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
    measurements: Measurements | None
    is_flash: bool
    micro_batch: Count
    num_tries: Annotated[int, Meta(ge=0, le=1 << 31)]
    learned: Learned | None = None


class Alternative(Struct, frozen=True):
    """One of the values that a choice was made between, with the milliseconds of each kind of work."""

    value: str
    work_ms: dict[str, float]


class Choice(Struct, frozen=True):
    """A choice, why it was made, and between what; `by` is "option", "measurement", "memory" or "default"."""

    name: str
    value: str
    by: str
    why: str
    alternatives: tuple[Alternative, ...] = ()
