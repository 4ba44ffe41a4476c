"""What of the engine was chosen for a model on this machine, and the measurements that it was chosen by."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]


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


class Kept(Struct, frozen=True):
    """What the daemon keeps of a model's calibration for its next load, with the choice that was made then.

    The conditions are named, so that measurements made under others can be told apart.
    """

    conditions: Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
    measurements: Measurements | None
    is_flash: bool
    micro_batch: Count
    num_tries: Count


class Alternative(Struct, frozen=True):
    """One of the values that a choice was made between, with the milliseconds of each kind of work."""

    value: str
    work_ms: dict[str, float]


class Choice(Struct, frozen=True):
    """A choice, why it was made, and between what; `by` is "option", "measurement" or "default"."""

    name: str
    value: str
    by: str
    why: str
    alternatives: tuple[Alternative, ...] = ()
