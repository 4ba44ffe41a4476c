"""`edgeagent bench ab` and `edgeagent tune`: values of options, each run by a daemon of its own, measured in turns."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from edgeagent.cli.display import complain, print_json, size_text, table, tell, wrapped
from edgeagent.cli.options import AsJson, ConfigFile, StateDir, settings_of, with_help
from edgeagent.cli.progress import Show, progress
from edgeagent.config import Config
from edgeagent.config_sources import declared_options
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.usable import usable_memory

if TYPE_CHECKING:
    from edgeagent.bench.measure import Measurement
    from edgeagent.bench.scenarios import MeasuredServer, Workload
    from edgeagent.bench.stats import Change
    from edgeagent.types.choices import Profile
    from edgeagent.worker.parent.pool.profile_store import ProfileStore

AB_HELP = """Compare two values of an option: start a daemon for each, and measure them in alternation (A B B A).

It gives the change from the first value to the second with its 95 % interval (Student's t over the rounds), and says
in words whether it is more than chance. Both daemons are private: yours keeps running, so stop other work first. Memory
for the model is needed twice.

\b
edgeagent bench ab threads=1,2                           the default model
edgeagent bench ab flash-attention=on,off qwen3:0.6b
edgeagent bench ab draft=none,auto --rounds 20
edgeagent bench ab batch=512,128 --prompt-tokens 4000
"""
TUNE_HELP = """Find the fastest settings for a model on this machine, and keep them in a profile.

Each setting is compared with the best until then, in alternation: the form of attention, the type of the KV cells, the
number of threads, and the micro-batch. A value is taken if it is faster by more than chance and by at least 3 %.
`edgeagent serve` uses the profile for this model as long as the model's file, llama.cpp and the processor stay the
same, and you set these options as you do now: one that you have set is not tuned. `edgeagent status` shows it.

\b
edgeagent tune                                           the default model, in about two minutes
edgeagent tune qwen3:0.6b --seconds 600                  closer, and with longer prompts
edgeagent tune --only threads                            one setting only
edgeagent tune --show                                    the profiles, and how they were found
edgeagent tune qwen3:0.6b --forget                       back to the defaults

Memory for the model is needed twice. Ctrl-C keeps the earlier profile.
"""

# A setting must be faster by this much to be taken. Rounds on a quiet machine differ by 2 to 3 %.
_MIN_GAIN = 1.03
_PARALLEL = 4  # the daemon's usual number of requests at a time
_ANSWER_TOKENS = 32
# The first round, from which the length of the prompts follows, and the limits of this length.
_FIRST_PROMPT, _SHORTEST_PROMPT, _LONGEST_PROMPT = 128, 64, 1500
# With so many pairs of rounds in the time of a comparison, its interval is narrow enough to show a few percent.
_WANTED_PAIRS = 5

Rounds = Annotated[int, typer.Option("--rounds", min=2, metavar="N", help="How many rounds of each value to measure.")]
PromptTokens = Annotated[
    int, typer.Option("--prompt-tokens", min=64, metavar="N", help="Length of the long prompts in tokens.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=8, metavar="N", help="Length of the answers in tokens.")]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="The seed of the prompts' words; default: a new one.")
]
Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="The model; default: the configured one.")]


class SettingName(StrEnum):
    """The settings that are tuned."""

    ATTENTION = "attention"
    KV_TYPE = "kv-type"
    THREADS = "threads"
    BATCH = "batch"


@dataclass(slots=True)
class _Measuring:
    """Starts private daemons with one model, and makes comparisons of them."""

    runner: asyncio.Runner
    settings: Config
    config_file: Path | None
    model: str
    seed: int
    show: Show
    _num_started: int = 0
    _used: dict[int, ExitStack] = field(default_factory=dict)

    def start(self, flags: Sequence[str]) -> MeasuredServer:
        """Start a daemon with these flags, and return its server once its model is ready.

        Raise EdgeAgentError if it cannot be started, or if memory for one more is lacking.
        """
        from edgeagent.bench.client import find_server
        from edgeagent.bench.measure import measure_token_counting
        from edgeagent.bench.scenarios import MeasuredServer, Prompts
        from edgeagent.cli.temporary import temporary_daemon

        if self._used:
            self._check_memory()
        stack = ExitStack()
        everything = [self.model, *(["--config", str(self.config_file)] if self.config_file else []), *flags]
        address = stack.enter_context(
            temporary_daemon(everything, lambda text: self.show(text, 0, 0), owner=self.settings.state_dir)
        )
        try:
            server = self.runner.run(find_server(address))
            counting = self.runner.run(measure_token_counting(server, self.seed))
        except BaseException:
            stack.close()
            raise
        self._num_started += 1
        measured = MeasuredServer(server, Prompts(self.seed, str(self._num_started), counting))
        self._used[id(measured)] = stack
        return measured

    def stop(self, *servers: MeasuredServer) -> None:
        for each in servers:
            self._used.pop(id(each)).close()

    def close(self) -> None:
        while self._used:
            self._used.popitem()[1].close()

    def rounds(
        self, pair: Sequence[MeasuredServer], scenario: str, workload: Workload, is_enough: Callable[[int], bool]
    ) -> Measurement:
        """Measure rounds on two servers in alternation, until `is_enough` of the number of rounds."""
        from edgeagent.bench.measure import Measurement, measure_round
        from edgeagent.bench.scenarios import SCENARIOS

        measurement = Measurement(SCENARIOS[scenario], [[] for _ in pair])

        async def one(number: int) -> None:
            async for _ in measure_round(measurement, pair, workload, number):
                pass

        number = 0
        while not is_enough(number):
            self.runner.run(one(number))
            number += 1
        return measurement

    def _check_memory(self) -> None:
        here = psutil.Process()
        used = sum(child.memory_info().rss for child in here.children(recursive=True)) / len(self._used)
        # The second daemon may need a little more than the first has now.
        if (free := usable_memory().available) < 1.1 * used:
            raise EdgeAgentError(
                f"two daemons with {self.model} are measured in turns, and the second needs about "
                f"{size_text(int(used))} of memory; {size_text(free)} are free. Stop other programs, or choose a "
                "smaller model"
            )


def flags_of(option: str, value: str) -> list[str]:
    """Return the flags of `edgeagent serve` that set an option, named as in "threads", to a value.

    Raise ConfigError if there is no such option, if it does not change how a model runs, or if the value is wrong.
    """
    wanted = option.strip().lower().replace("_", "-")
    for each in declared_options():
        if each.name != "draft" and not each.name.startswith(("engine.", "cache.")):
            continue
        if wanted in (each.flag.removeprefix("--"), each.name.replace("_", "-")):
            if not each.is_switch:
                try:
                    each.read(value)
                except ValueError as error:
                    raise ConfigError(f"{option}: {error}") from None
                return [each.flag, value]
            if value in ("on", "true", "yes", "1"):
                return [each.flag]
            if value in ("off", "false", "no", "0"):
                return [f"--no-{each.flag.removeprefix('--')}"]
            raise ConfigError(f"{option}: must be on or off, not {value!r}")
    raise ConfigError(f"{option!r} is no option that changes how a model runs; `edgeagent serve --help-all` lists them")


@with_help(AB_HELP)
def ab(
    option: Annotated[str, typer.Argument(metavar="OPTION=A,B", help="An option of serve, and two values of it.")],
    model: Model = None,
    rounds: Rounds = 8,
    prompt_tokens: PromptTokens = 512,
    max_tokens: MaxTokens = 48,
    seed: Seed = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Measure two values of an option in alternation, and print the verdict."""
    from edgeagent.bench.measure import speeds
    from edgeagent.bench.scenarios import Workload
    from edgeagent.bench.stats import paired_change, verdict

    name, _, given = option.partition("=")
    values = [value.strip() for value in given.split(",")]
    if len(values) != 2 or not all(values) or values[0] == values[1]:
        raise ConfigError(f"give two different values, as in threads=1,2, not {option!r}")
    flags = [flags_of(name, value) for value in values]
    settings = settings_of(state_dir, config)
    workload = Workload(prompt_tokens, max_tokens, _PARALLEL)
    with progress("rounds") as show, asyncio.Runner() as runner:
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        measuring = _Measuring(runner, settings, config, model or settings.model, seed, show)
        try:
            pair = [measuring.start(each) for each in flags]

            def is_enough(number: int) -> bool:
                show(option, number, rounds)
                return number == rounds

            measurement = measuring.rounds(pair, "turn", workload, is_enough)
        finally:
            measuring.close()
    changes: list[tuple[str, str, Change | None]] = []
    for metric in measurement.scenario.metrics:
        pairs = [
            (sum(first[metric]) / len(first[metric]), sum(second[metric]) / len(second[metric]))
            for first, second in zip(*measurement.rounds, strict=True)
            if first[metric] and second[metric]
        ]
        changes.append((metric.name, metric.better, paired_change(pairs)))
    changes.append(("speed of all", "higher", paired_change(speeds(measurement))))
    overall = changes[-1][2]
    words = _verdict(name, values, overall)
    figures = [{"figure": figure, **(asdict(change) if change else {})} for figure, _, change in changes]
    record = {"option": name, "values": values, "seed": seed, "figures": figures, "verdict": words}
    rows = [(figure, verdict(change, better)) for figure, better, change in changes]  # type: ignore[arg-type]
    text = table(("figure", f"{name} {values[0]} to {values[1]}"), rows, left_columns=2)
    tell(record, text, wrapped(words), as_json=as_json)


def _verdict(name: str, values: Sequence[str], change: Change | None) -> str:
    if change is None:
        return "Too few rounds to tell."
    if not change.is_shown:
        return f"No difference between {name} {values[0]} and {values[1]} is shown; more --rounds narrow the interval."
    better, factor = (values[1], change.ratio) if change.ratio > 1 else (values[0], 1 / change.ratio)
    return f"{name} {better} is faster: {factor:.2f} times the speed (95 % interval; see the table)."


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is tuned, and its values: the name of each, and the engine options that make it."""

    name: SettingName
    values: tuple[tuple[str, Mapping[str, Any]], ...]


def settings_to_tune(num_cores: int, num_cpus: int, *, is_on_gpu: bool, is_plain: bool = False) -> list[Setting]:
    """Return the settings in the order in which they are tuned: the form of attention first, since others follow it.

    The first value of each is the default. `is_plain`: that of the form of attention is the plain one for this model.
    On a GPU llama.cpp chooses the form.
    """
    threads = sorted(
        {num_cores, max(1, num_cores // 2), max(1, num_cores - 1), num_cpus}, key=lambda n: (n != num_cores, n)
    )
    other: Mapping[str, Any] = {"flash_attention": "on" if is_plain else "off"}
    default_form, other_form = ("plain", "flash") if is_plain else ("flash", "plain")
    found = [
        Setting(SettingName.ATTENTION, ((default_form, {}), (other_form, other))),
        Setting(SettingName.KV_TYPE, (("f16", {}), ("q8_0", {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}))),
        Setting(SettingName.THREADS, tuple((str(n), {} if n == num_cores else {"threads": n}) for n in threads)),
        Setting(SettingName.BATCH, tuple((str(n), {} if n == 512 else {"batch": n}) for n in (512, 128, 1024))),
    ]
    return [each for each in found if not (is_on_gpu and each.name in (SettingName.ATTENTION, SettingName.THREADS))]


def is_possible(options: Mapping[str, Any]) -> bool:
    """Whether a context can have these options together: plain attention needs an unquantized V cache."""
    return not (options.get("flash_attention") == "off" and "kv_type_v" in options)


Seconds = Annotated[int, typer.Option("--seconds", min=5, metavar="N", help="About how long to measure.")]
Only = Annotated[
    list[SettingName] | None,
    typer.Option("--only", metavar="NAME", help=f"Tune this; may be repeated. {', '.join(SettingName)}."),
]
ShowProfiles = Annotated[bool, typer.Option("--show", help="Show the saved profiles, and measure nothing.")]
Forget = Annotated[bool, typer.Option("--forget", help="Delete the profile of MODEL, and measure nothing.")]


@with_help(TUNE_HELP)
def tune(
    model: Model = None,
    seconds: Seconds = 120,
    only: Only = None,
    show_profiles: ShowProfiles = False,
    forget: Forget = False,
    seed: Seed = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Find the fastest settings, and save the profile."""
    from edgeagent.worker.parent.pool.profile_store import ProfileStore

    settings = settings_of(state_dir, config)
    store = ProfileStore(settings.state_dir)
    if show_profiles or forget:
        _show_or_forget(store, model, is_forgotten=forget, as_json=as_json)
        return
    with progress("seconds") as show, asyncio.Runner() as runner:
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        measuring = _Measuring(runner, settings, config, model or settings.model, seed, show)
        try:
            profile = _search(measuring, seconds, only)
        except KeyboardInterrupt:
            complain("interrupted; the earlier settings stay")
            raise typer.Exit(130) from None
        finally:
            measuring.close()
    _print_profiles([profile], as_json=as_json)
    try:
        store.save(profile)
    except (ConfigError, OSError) as error:
        raise EdgeAgentError(
            f"the profile could not be saved in {store.folder} ({error}); make the folder writable, and tune again"
        ) from None
    if not as_json:
        typer.echo("The next load of the model uses it; `edgeagent reload` loads it again now.")


def _search(measuring: _Measuring, seconds: float, only: Sequence[str] | None) -> Profile:
    """Compare the values of each setting with the best until then, and return the profile.

    One value is compared even if the time is over, so that a tuning never ends without a result.
    """
    from edgeagent.bench.measure import speeds
    from edgeagent.bench.stats import paired_change
    from edgeagent.cli.link import ask
    from edgeagent.types.choices import Profile, Trial, TunedOptions, set_options
    from edgeagent.usable import usable_cpus

    began_s = time.monotonic()
    own = set_options(measuring.settings.engine_of(measuring.model))
    best: dict[str, Any] = {}
    leader = measuring.start([])
    loaded = next(each for each in ask(leader.server.address, "/edgeagent/status")["models"] if each["info"])
    is_on_gpu = loaded["info"]["num_gpu_layers"] != 0
    chosen = {choice["name"]: choice["value"] for choice in loaded["info"].get("choices", ())}
    is_plain = chosen.get("flash attention") == "off"
    if not loaded["info"]["can_generate"]:
        raise EdgeAgentError(f"{measuring.model} does not generate text, so there is nothing to tune")
    conditions = loaded["info"]["conditions"]
    settings = [
        each
        for each in settings_to_tune(
            int(conditions["cores"]), len(usable_cpus()), is_on_gpu=is_on_gpu, is_plain=is_plain
        )
        if (not only or each.name in only) and not any(own.keys() & options.keys() for _, options in each.values)
    ]
    num_left = sum(len(each.values) - 1 for each in settings)
    share_s = (seconds - (time.monotonic() - began_s)) / max(1, num_left)
    workload = _suitable_workload(measuring, leader, share_s)
    trials: list[Trial] = []
    for setting in settings:
        its_options = {name for _, options in setting.values for name in options}
        taken = setting.values[0][0]
        for value, options in setting.values[1:]:
            wanted = {name: each for name, each in best.items() if name not in its_options} | dict(options)
            num_left -= 1
            if not is_possible(wanted) or (trials and time.monotonic() >= began_s + seconds):
                continue
            measuring.show(f"{setting.name} {value}", int(min(seconds, time.monotonic() - began_s)), int(seconds))
            until_s = time.monotonic() + (began_s + seconds - time.monotonic()) / (num_left + 1)
            rival = measuring.start([flag for name, each in wanted.items() for flag in flags_of(name, str(each))])
            label = f"{setting.name} {value} against {taken}"

            def is_enough(number: int, label: str = label, until_s: float = until_s) -> bool:
                measuring.show(label, int(min(seconds, time.monotonic() - began_s)), int(seconds))
                return number >= 3 and time.monotonic() >= until_s

            change = paired_change(speeds(measuring.rounds([leader, rival], "turn", workload, is_enough)))
            is_taken = change is not None and change.is_better("higher") and change.ratio >= _MIN_GAIN
            if change is not None:
                figures = (change.ratio, change.low, min(change.high, 1e6))
                trials.append(Trial(setting.name, value, taken, *figures, is_taken))
            if is_taken:
                leader, rival, best, taken = rival, leader, wanted, value
            measuring.stop(rival)
    return Profile(
        model=measuring.model,
        path=loaded["info"]["path"],
        conditions=conditions,
        options=TunedOptions(**best),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        own=own,
        trials=tuple(trials),
    )


def _suitable_workload(measuring: _Measuring, server: MeasuredServer, share_s: float) -> Workload:
    """Return a workload of which enough pairs of rounds fit into `share_s`: the slower the machine, the shorter."""
    from edgeagent.bench.scenarios import Workload

    first = Workload(_FIRST_PROMPT, _ANSWER_TOKENS, _PARALLEL)
    measuring.rounds([server], "turn", first, lambda number: number == 1)
    began_s = time.monotonic()
    measuring.rounds([server], "turn", first, lambda number: number == 1)
    took_s = time.monotonic() - began_s
    factor = share_s / (2 * _WANTED_PAIRS) / max(took_s, 1e-3)
    length = int(min(_LONGEST_PROMPT, max(_SHORTEST_PROMPT, _FIRST_PROMPT * factor)))
    return Workload(length, _ANSWER_TOKENS, _PARALLEL)


def _show_or_forget(store: ProfileStore, model: str | None, *, is_forgotten: bool, as_json: bool) -> None:
    found = [each for each in store.all() if model in (None, each.model, each.path)]
    if is_forgotten:
        if model is None:
            raise ConfigError("name the model whose profile is to be deleted; `edgeagent tune --show` lists them")
        for each in found:
            store.remove(Path(each.path))
        if not found:
            raise EdgeAgentError(f"there is no profile of {model}; `edgeagent tune --show` lists them")
    if as_json or found:
        _print_profiles(found, as_json=as_json)
    else:
        typer.echo("There is no profile; `edgeagent tune MODEL` makes one.")
    if is_forgotten and not as_json:
        typer.echo("It is deleted. The next load of the model uses the defaults.")


def _print_profiles(profiles: Sequence[Profile], *, as_json: bool) -> None:
    if as_json:
        from edgeagent.worker.parent.pool.profile_store import json_of

        print_json([json_of(each) for each in profiles])
        return
    for each in profiles:
        options = ", ".join(f"{name} {value}" for name, value in each.options.given.items()) or "the defaults are best"
        typer.echo(wrapped(f"{each.model}, {each.at[:16]}: {options}"))
        rows = [
            (
                f"  {trial.setting} {trial.value}",
                f"against {trial.against}",
                f"{trial.speed:.3f} times the speed ({trial.low:.3f} to {trial.high:.3f})",
                "taken" if trial.is_taken else "",
            )
            for trial in each.trials
        ]
        if rows:
            typer.echo(table(("", "", "with its 95 % interval", ""), rows, left_columns=4))
