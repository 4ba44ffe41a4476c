"""`python -m tests.mutants`: plant a seeded sample of faults, one at a time, and print those that no test notices."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch

from tests.mutants.looked_at import HARMLESS
from tests.mutants.mutate import find_mutants
from tests.mutants.run import Fate, Outcome, Trial, judge_all
from tests.mutants.targets import ROOT, TARGETS

MAX_ALIVE = 0.10


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if at most a tenth of the sample survives, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=400, help="how many changes are tried (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="side by side (default: 2)")
    parser.add_argument("--only", default="*", help="modules by pattern, e.g. 'edgeagent/router/*'")
    options = parser.parse_args(arguments)
    trials = choose(all_trials(options.only), options.sample, options.seed)
    print(f"{len(trials)} changes, seed {options.seed}, {options.jobs} side by side", flush=True)
    began_s = time.monotonic()
    outcomes: list[Outcome] = []
    for outcome in judge_all(ROOT, trials, options.jobs):
        outcomes.append(outcome)
        _tell(outcome, len(outcomes), len(trials))
    return _sum_up(outcomes, time.monotonic() - began_s)


def all_trials(only: str) -> list[Trial]:
    """Return every change of the modules that match a pattern."""
    trials: list[Trial] = []
    for target in TARGETS:
        test_sets = tuple(tests for tests in (target.quick, target.wider) if tests)
        for path in (path for path in target.paths() if fnmatch(path.relative_to(ROOT).as_posix(), only)):
            source = path.read_bytes()
            trials += [Trial(path.relative_to(ROOT), source, mutant, test_sets) for mutant in find_mutants(source)]
    return trials


def choose(trials: Sequence[Trial], sample: int, seed: int) -> list[Trial]:
    """Return a sample in the order of the source; it depends on the source and the seed alone."""
    chosen = random.Random(seed).sample(range(len(trials)), min(sample, len(trials)))
    return [trials[index] for index in sorted(chosen)]


def is_harmless(trial: Trial) -> bool:
    """Return whether a review found that the change has no relevant effect."""
    return (trial.path.as_posix(), trial.line, trial.mutant.text) in HARMLESS


def _tell(outcome: Outcome, number: int, num_all: int) -> None:
    trial = outcome.trial
    known = " (looked at)" if outcome.fate is Fate.ALIVE and is_harmless(trial) else ""
    where = f"{trial.path.as_posix()}:{trial.mutant.line}"
    print(f"{number}/{num_all} {outcome.fate}{known} {where} {outcome.seconds:.0f} s", flush=True)
    if outcome.fate is Fate.ALIVE and not known:
        print(trial.diff(), flush=True)


def _sum_up(outcomes: Sequence[Outcome], seconds: float) -> int:
    alive = [outcome for outcome in outcomes if outcome.fate is Fate.ALIVE]
    num_late = sum(outcome.fate is Fate.TIMED_OUT for outcome in outcomes)
    num_harmless = sum(is_harmless(outcome.trial) for outcome in alive)
    share = len(alive) / max(1, len(outcomes))
    print(
        f"{len(outcomes)} changes in {seconds / 60:.0f} min: {len(alive)} alive ({share:.1%}; {num_harmless} of them "
        f"looked at and harmless), {num_late} killed by a timeout; at most {MAX_ALIVE:.0%} may live"
    )
    return int(share > MAX_ALIVE)


if __name__ == "__main__":
    sys.exit(main())
