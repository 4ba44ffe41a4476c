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
    """The measured times of one candidate setting: flash attention or not, and a micro-batch size in tokens.

    `seconds` maps the name of each kind of work to its time. All layers take about the same time, so only the first
    `Measurements.num_layers` layers were measured.
    """

    is_flash: bool
    micro_batch: Count
    seconds: Annotated[dict[Name, Seconds], Meta(max_length=32)]


class Measurements(Struct, frozen=True):
    """The result of a calibration: the times of all candidates.

    `depth`: how many KV cells were in use, for the kinds of work that need earlier tokens or other sequences.
    `num_layers`: how many layers were measured. `took_s`: how long the calibration took. `is_whole`: it ended within
    its time budget, so nothing is missing.
    """

    depth: Count
    num_layers: Count
    took_s: Seconds
    is_whole: bool
    candidates: Annotated[tuple[CandidateTimes, ...], Meta(max_length=16)]


class StepTime(Struct, frozen=True, array_like=True):
    """The mean time of steps of about the same size. See engine.costs.step_shape for the other fields."""

    num_tokens: Annotated[float, Meta(ge=1, le=1 << 31)]
    num_cells: Annotated[float, Meta(ge=0, le=1 << 40)]
    num_pairs: Annotated[float, Meta(ge=0, le=1 << 60)]
    seconds: Seconds


class StepSums(Struct, frozen=True, array_like=True):
    """Sums over all steps of one kind. The kind depends on the number of tokens; see engine.costs.work_done.

    num_pairs: pairs of a token and an earlier token of its sequence. num_products: pairs of a token and a used KV cell
    of any sequence.
    """

    kind: Name
    num_steps: Sum
    num_tokens: Sum
    num_pairs: Sum
    num_products: Sum
    seconds: Sum


class DraftRecord(Struct, frozen=True, rename={"verified": "judged", "accepted": "stood"}):
    """Counts of verified and of accepted draft tokens by position, for one draft source and one kind of sampler.

    In files, these fields have the names that `rename` gives.
    """

    source: Name
    sampler: Name
    verified: Counts
    accepted: Counts


class LearnedCosts(Struct, frozen=True):
    """What an engine learned from its steps: their mean times, and how many draft tokens were accepted.

    `draft` identifies the file of the draft model: its path, size and time of change; "" without a draft model.
    `draft_times` and `records` are reused only with the same draft model.
    """

    times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    draft: Annotated[str, Meta(max_length=4096)] = ""
    draft_times: Annotated[tuple[StepTime, ...], Meta(max_length=128)] = ()
    records: Annotated[tuple[DraftRecord, ...], Meta(max_length=64)] = ()


class SavedTuning(Struct, frozen=True):
    """What the daemon keeps for the next load of a model: its calibration, the chosen setting, and what was learned.

    `conditions` describes the model, the settings and the machine. If they differ at the next load, the measurements
    are not reused. `is_flash` and `micro_batch` are the chosen setting. `num_tries`: how many loads ran a calibration
    under these conditions. `work`: sums over the steps of requests; older steps count less. Its `seconds` are for the
    chosen setting. They are estimates for steps that ran with another setting.
    """

    conditions: Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
    measurements: Measurements | None
    is_flash: bool
    micro_batch: Count
    num_tries: Annotated[int, Meta(ge=0, le=1 << 31)]
    learned: LearnedCosts | None = None
    work: Annotated[tuple[StepSums, ...], Meta(max_length=8)] = ()


class Alternative(Struct, frozen=True):
    """One of the values that could be chosen, with the milliseconds that each kind of work is expected to take."""

    value: str
    work_ms: dict[str, float]


class SettingChoice(Struct, frozen=True):
    """The value chosen for the setting `name`, the reason in words (`why`), and the alternatives.

    `by` says what decided: "option", "measurement", "memory", "model" (the value follows from the model's shape),
    "trial" (something was tried and failed, for example loading a draft model), or "default".
    """

    name: str
    value: str
    by: str
    why: str
    alternatives: tuple[Alternative, ...] = ()
