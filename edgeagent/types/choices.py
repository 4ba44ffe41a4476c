"""Engine settings that were chosen for a model on this machine, and the measurements behind them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Counts = Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(max_length=64)]


class FormTimes(Struct, frozen=True):
    """The measured seconds of one form of attention: flash attention or not.

    `prompt_s`: a chunk of a prompt; `turn_s`: a short turn; `tile_s`: the same, padded to a whole tile of attention
    (None if such batches are never padded); `token_s`: a token. All of them behind a text, and with the first
    `Measurements.num_layers` layers only, since all layers take about the same time.
    """

    is_flash: bool
    prompt_s: Seconds
    turn_s: Seconds
    token_s: Seconds
    tile_s: Seconds | None = None


class Measurements(Struct, frozen=True):
    """The result of measuring the forms of attention. `depth`: how many KV cells the text before had."""

    depth: Count
    num_layers: Count
    forms: Annotated[tuple[FormTimes, ...], Meta(max_length=4)]


class StepTime(Struct, frozen=True, array_like=True):
    """The mean time of steps of about the same size. See engine.costs.step_shape for the other fields."""

    num_tokens: Annotated[float, Meta(ge=1, le=1 << 31)]
    num_cells: Annotated[float, Meta(ge=0, le=1 << 40)]
    num_pairs: Annotated[float, Meta(ge=0, le=1 << 60)]
    seconds: Seconds


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
    """What the daemon keeps for the next load of a model: measured forms of attention, the choice, what was learned.

    `conditions` describes the model, the settings and the machine. If they differ at the next load, the measurements
    are not reused. `is_flash`: the chosen form. `num_loads`: how many loads there were under these conditions.
    """

    conditions: Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]
    measurements: Measurements | None
    is_flash: bool
    num_loads: Annotated[int, Meta(ge=0, le=1 << 31)]
    learned: LearnedCosts | None = None


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
