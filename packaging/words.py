"""Find words that have confused readers: `python packaging/words.py [FILE...]`; without files, in the whole repository.

It checks documents and the string literals of Python files: docstrings, help texts and errors. It exits with 1 if it
finds such a word.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A pattern, and what to write instead.
WORDS = {
    r"\b(some|no)body\b": "name who: a client, the owner, another process; or say what is not done",
    r"\bgo(es|ne|ing)? on (with|behind|at)\b": "continue",
    r"\bgone past\b": "exceeded, or passed",
    r"\bin vain\b": "without success, or not found",
    r"\bof (no|little) use\b": "useless, or say what fails",
    r"\bis of use\b": "helps",
    r"\bso many\b": "this many, or num_x",
    r"\bmakes? of\b": "say the result: returns, becomes",
    r"\bto the letter\b": "exactly",
    r"\bwithout a word\b": "silently",
    r"\bfor ever\b": "forever",
    r"\bthat is owed\b|\bis owed\b": "unanswered, or still to send",
    r"\bbears\b|\bto bear\b|\bmust bear\b": "tolerates, or survives",
    r"\bcomes? to its turn\b": "runs, or is next",
    r"\b(do|does) not do[.,;]": "does not work, or fails",
    r"\bdrowns?\b": "is smaller than what can be measured",
    r"\bowns? up\b|\bowned up\b": "declines",
    r"\bforeign requests?\b": "out-of-domain request",
    r"(?<!there\s)\bis no (bug|crash|error|model|number|text|origin|host)\b": "is not a ...",
    r"\bmended?\b|\bmends\b": "fixed, repaired",
    r"\bwhat matters less\b": "less important ...",
    r"\bthose of which\b|\bof whom\b": "two sentences",
    r"\bwherever\b": "where, or in each place that",
    r"\b(have|has|had) (it|them) at hand\b": "holds",
    r"\bprompts?'? beginnings?\b|\bbeginnings of prompts\b": "prefix, cached prefix",
    r"\banew\b": "again; reload, restart, start over",
    r"\bcome(s)? home\b|\bcame home\b": "continue on this machine",
}

# Not checked: files that list such words, and documents about the past.
EXEMPT = ("packaging/words.py", "tests/test_words.py", "CHANGELOG.md")
CHECKED = re.compile(
    r"(edgeagent|examples)/.*\.py|(docs|tests)/.*\.md|packaging/.*\.(md|py)|models/builtin/README\.md|[A-Z]+\.md"
)

# A phrase may continue on the next line.
_PATTERNS = {re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE): instead for pattern, instead in WORDS.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """A word in a file, and what to write instead."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}; better: {self.instead}"


def findings(path: str, text: str) -> Iterator[Finding]:
    """Yield the listed words that a text contains."""
    for first, part in _parts(path, text):
        for pattern, instead in _PATTERNS.items():
            for match in pattern.finditer(part):
                line = first + part.count("\n", 0, match.start())
                yield Finding(path, line, " ".join(match.group().split()), instead)


def _parts(path: str, text: str) -> Iterable[tuple[int, str]]:
    """Return the texts to check, each with the number of its first line. In documents, code blocks are left out."""
    if not path.endswith(".py"):
        # Line breaks are kept so that line numbers stay right.
        return [(1, re.sub(r"^```.*?^```", lambda code: "\n" * code.group().count("\n"), text, flags=re.S | re.M))]
    nodes = ast.walk(ast.parse(text))
    return [
        (node.lineno, node.value) for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def is_checked(path: str) -> bool:
    """Return whether a file of the repository is checked."""
    return bool(CHECKED.fullmatch(path)) and path not in EXEMPT


def checked_files() -> list[str]:
    """Return every file that is checked, relative to the repository."""
    folders = ("edgeagent", "examples", "docs", "packaging", "models/builtin", "tests")
    paths = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    return [name for name in names if is_checked(name)]


def main(names: list[str]) -> int:
    """Print what is found in these files, or in all; return the exit status."""
    chosen = [name for name in names if is_checked(name)] if names else checked_files()
    found = [finding for name in chosen for finding in findings(name, (ROOT / name).read_text(encoding="utf-8"))]
    print("".join(f"{finding}\n" for finding in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
