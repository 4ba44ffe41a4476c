"""Engine settings that were chosen for a model on this machine, and the measurements behind them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

Name = Annotated[str, Meta(max_length=256)]
Ratio = Annotated[float, Meta(gt=0, le=1e6)]
Conditions = Annotated[dict[Name, Annotated[str, Meta(max_length=4096)]], Meta(max_length=32)]


class Trial(Struct, frozen=True):
    """A comparison that `edgeagent tune` made: a value of a setting with the value that was best until then.

    `speed`: how many times faster the value is. `low` and `high` are the 95 % interval of `speed`.
    """

    setting: Name
    value: Name
    against: Name
    speed: Ratio
    low: Ratio
    high: Ratio
    is_taken: bool


class TunedOptions(Struct, frozen=True, omit_defaults=True):
    """The engine options of a profile, as in EngineConfig. None: the default."""

    flash_attention: Literal["on", "off"] | None = None
    kv_type_k: Literal["f16", "q8_0"] | None = None
    kv_type_v: Literal["f16", "q8_0"] | None = None
    threads: Annotated[int, Meta(ge=1, le=512)] | None = None
    batch: Annotated[int, Meta(ge=32, le=1 << 16)] | None = None

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def set_options(engine: Struct) -> dict[str, str]:
    """Return the options of an EngineConfig that a profile could choose and that the user has set, by name."""
    usual = type(engine)()
    given = ((name, getattr(engine, name)) for name in TunedOptions.__struct_fields__)
    return {name: str(value) for name, value in given if value != getattr(usual, name)}


class Profile(Struct, frozen=True):
    """The best engine options that `edgeagent tune` found for a model on this machine.

    `conditions` describes the model's file, the machine and llama.cpp's build. If they differ, the profile is not used.
    `at`: when it was measured, as ISO 8601 text. `model`: its name, as it was given to `edgeagent tune`. `own`: the
    options that the user had set, which were not tuned; see `set_options`.
    """

    model: Annotated[str, Meta(max_length=4096)]
    path: Annotated[str, Meta(max_length=4096)]
    conditions: Conditions
    options: TunedOptions
    at: Name
    own: Conditions = {}
    trials: Annotated[tuple[Trial, ...], Meta(max_length=64)] = ()


class SettingChoice(Struct, frozen=True):
    """The value chosen for the setting `name`, and the reason in words (`why`).

    `by` says what decided: "option", "measurement", "memory", "model" (the value follows from the model's shape),
    "trial" (something was tried and failed, for example loading a draft model), or "default".
    """

    name: str
    value: str
    by: str
    why: str
