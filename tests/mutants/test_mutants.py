"""The planted faults themselves: each is a real change, and whether a test notices it is reported correctly."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import psutil
import pytest

from tests.mutants.__main__ import all_trials, choose
from tests.mutants.looked_at import HARMLESS
from tests.mutants.mutate import find_mutants
from tests.mutants.run import BaselineFailed, Fate, Trial, Workbench, judge_all
from tests.mutants.targets import ROOT, TARGETS


def changed(source: str) -> set[str]:
    """Return a source after each of its changes."""
    return {mutant.apply(source.encode()).decode() for mutant in find_mutants(source.encode())}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"(a <= b)"}),
        ("a < b == c", {"(a <= b == c)", "(a < b != c)"}),
        ("x = a or b and c", {"x = (a and (b and c))", "x = a or (b or c)"}),
        ("x = not a", {"x = (a)"}),
        ("x = a + 3", {"x = (a - 3)", "x = a + 4"}),
        ("x += 1.5", {"x -= 1.5", "x += 2.5"}),
        ("x: int = True", {"x: int = False"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("if é: f()", {"if (not (é)): f()", "if é: pass"}),
        ("def f(): return x", {"def f(): return None"}),
        ("def f(): return None", set()),
        ("def f(): raise E('a' + b)", {"def f(): pass"}),
        ("while a() is None: break", {"while (a() is not None): break", "while a() is None: continue"}),
        ("async def f(): await g()", {"async def f(): pass"}),
        ("class A(B, frozen=True): pass", set()),
        ("@dataclass(frozen=True)\nclass A: x: int | None", set()),
        ("x = zip(a, b, strict=True)", set()),
        ("assert a < b\nlogger.info('x', 1)\nx = 'a' + b\ny = f'{a + 1}'", set()),
    ],
)
def test_the_changes_of_a_line(source: str, expected: set[str]) -> None:
    assert changed(source) == expected


def test_changes_of_the_modules_can_be_compiled_and_are_changes() -> None:
    paths = [path for target in TARGETS for path in target.paths()]
    for path in random.Random(2).sample(paths, 8):
        source = path.read_bytes()
        before = ast.dump(ast.parse(source))
        mutants = find_mutants(source)
        for mutant in random.Random(2).sample(mutants, min(10, len(mutants))):
            assert ast.dump(ast.parse(mutant.apply(source))) != before, (path, mutant)


def test_modules_and_tests_that_are_named_exist() -> None:
    for target in TARGETS:
        assert target.paths(), target.modules
        for test in (*target.quick, *target.wider):
            assert (ROOT / test).exists(), test


def test_what_was_looked_at_are_changes_of_the_source_as_it_stands() -> None:
    changes = {(trial.path.as_posix(), trial.line, trial.mutant.text) for trial in all_trials("*")}
    assert not HARMLESS.keys() - changes, "mend these entries of looked_at.py"


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    trials = all_trials("edgeagent/router/*")
    assert choose(trials, 5, 1) == choose(trials, 5, 1) != choose(trials, 5, 2)
    assert choose(trials, 10_000, 1) == trials


MODULE = """
def is_old(age):
    return age >= 18

def unseen(a):
    return a > 0

def count(n):
    while n != 0:
        n -= 1
"""
TEST = """
from grown import count, is_old

def test_old():
    assert is_old(18) and not is_old(17)
    count(3)
"""


_TESTS = ("test_grown.py",)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Without autoloaded plugins, pytest starts several times faster.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "grown.py").write_text(MODULE, encoding="utf-8")
    (folder / "test_grown.py").write_text(TEST, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return folder


def trials_of(repository: Path, *texts: str) -> list[Trial]:
    """Return the trials that insert one of these texts."""
    source = (repository / "grown.py").read_bytes()
    mutants = [mutant for mutant in find_mutants(source) if mutant.text in texts]
    return [Trial(Path("grown.py"), source, mutant, (_TESTS,)) for mutant in mutants]


@pytest.mark.timeout(600)
def test_a_change_is_killed_or_lives(repository: Path) -> None:
    source = (repository / "grown.py").read_bytes()
    trials = trials_of(repository, "(age > 18)", "(a >= 0)")
    outcomes = list(judge_all(repository, trials, jobs=2))
    fates = {outcome.trial.mutant.text: outcome.fate for outcome in outcomes}
    assert fates == {"(age > 18)": Fate.KILLED, "(a >= 0)": Fate.ALIVE}
    assert "-    return age >= 18\n+    return (age > 18)" in trials[0].diff()
    assert (repository / "grown.py").read_bytes() == source


@pytest.mark.slow(seconds=2)
@pytest.mark.timeout(600)
def test_tests_that_hang_are_ended_and_the_next_change_is_judged(repository: Path, tmp_path: Path) -> None:
    hanging, unseen = trials_of(repository, "n += 1", "(a >= 0)")[::-1]
    bench = Workbench.of(repository, tmp_path / "bench")
    children = set(psutil.Process().children(recursive=True))
    assert bench.judge(hanging, {_TESTS: 1.0}).fate is Fate.TIMED_OUT
    assert set(psutil.Process().children(recursive=True)) <= children
    assert bench.judge(unseen, {_TESTS: 300.0}).fate is Fate.ALIVE


@pytest.mark.timeout(600)
def test_tests_that_fail_without_a_change_say_so(repository: Path) -> None:
    (repository / "test_grown.py").write_text("def test_wrong(): assert False", encoding="utf-8")
    with pytest.raises(BaselineFailed, match="1 failed"):
        list(judge_all(repository, trials_of(repository, "n += 1"), jobs=1))
